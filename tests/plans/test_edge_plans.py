"""Two thousand random plans at the edges: nobody is overspent, little is wasted, and a refusal is proved by other means.

Mean rates near 0 and 1, mixes near 0 and 1, reserves of up to 0.99, epsilons from 1e-5, public records with caps, by both accountants.
A few run by default, all with --long (make test-long). How long each takes is printed by `sartor_testing/edge_requests.py`, not asserted.
"""

import warnings
from collections import Counter

import numpy as np
import pytest

import sartor
from sartor.accounting import noise_for, spend
from sartor.budgets import spendable
from sartor_testing.edge_requests import EdgeRequest, edge_request


def check(plan: sartor.Plan, asked: EdgeRequest) -> None:
    finite = np.isfinite(plan.epsilon)
    allowed, delta = (spendable(values, plan.reserve)[finite] for values in (plan.epsilon, plan.delta))
    spent = spend(plan.rate[finite], plan.noise / plan.clips[finite], (plan.last - plan.first)[finite], delta, plan.accountant)
    assert np.all(spent <= allowed)
    assert np.all((plan.rate >= 0) & (plan.rate <= 1))
    if asked.scheme in ("sample", "scale", "hybrid"):
        assert np.average(plan.rate, weights=plan.holders) == pytest.approx(asked.batch / len(asked.budgets), rel=1e-3)
        if plan.noise_multiplier > 0:
            assert np.all((spent >= 0.995 * allowed) | plan.capped[finite])
    if asked.scheme == "hybrid" and 0 < asked.options["mix"] < 1 and np.any(plan.rate[finite] < 1):
        assert not plan.capped.any()  # clips take up what rates cannot


def ever_used(rate: float, steps: int) -> float:
    return float(-np.expm1(steps * np.log1p(-rate))) if rate < 1 else 1.0


def prove(reason: str, asked: EdgeRequest) -> str:
    """The kind of refusal, after an argument of its own that no such plan exists."""
    groups = asked.budgets.groups
    finite = np.isfinite(groups.epsilon)
    public, cap = int(groups.holders[~finite].sum()), asked.options.get("public_rate")
    if "already fill the batch" in reason:
        assert public * cap >= asked.batch
        return "public records fill the batch"
    if "needs a mean rate of" in reason:
        assert asked.batch - public * cap > groups.holders[finite].sum()
        return "the batch is larger than everybody"
    threshold = asked.options.get("threshold")
    epsilon, delta = (spendable(values, asked.budgets.reserve)[finite] for values in (groups.epsilon, groups.delta))
    if "nobody is left" in reason:
        assert np.all(epsilon < threshold)
        return "nobody is left"
    if "cannot fill the batch" in reason:
        kept = int(groups.holders[finite][epsilon >= threshold].sum()) + (public if cap is None else 0)
        assert kept < asked.batch - (0 if cap is None else public * cap)
        return "those who are left cannot fill the batch"
    weight = groups.holders[finite].astype(float)
    if cap is None:
        weight[np.lexsort((delta, epsilon))[-1]] += public
    rate = (asked.batch - (public * cap if cap is not None else 0)) / weight.sum()
    if "needs no noise at all" in reason:  # at a common rate, some are used at all with a probability of delta, and others with more
        rare = ever_used(rate, asked.steps) <= delta
        assert rare.any()
        assert not rare.all()
        return "no clip fits both"
    assert "with a probability of at most its delta" in reason
    assert must_leave_somebody_out(asked, epsilon, delta, weight, rate)
    return "sampling leaves somebody out"


def must_leave_somebody_out(asked: EdgeRequest, epsilon: np.ndarray, delta: np.ndarray, weight: np.ndarray, mean: float) -> bool:
    """At the least noise that lets every group be drawn with a probability above its delta, the mean rate exceeds the one asked for.

    More noise only raises rates, so with less somebody is left out, and with as much the batch is too large.
    """
    mix = asked.options.get("mix", 1.0)
    rare = -np.expm1(np.log1p(-delta) / asked.steps) * (1 + 1e-6)
    needed = np.array(
        [noise_for(e, d, rate=r, steps=asked.steps, accountant=asked.accountant) for e, d, r in zip(epsilon, delta, rare, strict=True)]
    )
    # a group's noise multiplier is z v^(mix-1) at v = (rate/mean)^(1/mix)
    log_noise = np.max(np.log(np.maximum(needed, 1e-300)) + (1 - mix) / mix * np.log(rare / mean))
    total = 0.0
    for e, d, w in zip(epsilon, delta, weight, strict=True):
        low, high = -60.0, float(np.log(1 / mean))  # of the log rate over the mean
        for _ in range(40):
            middle = (low + high) / 2
            noise = np.exp(log_noise - (1 - mix) / mix * middle)
            fits = spend(min(mean * np.exp(middle), 1.0), noise, asked.steps, d, asked.accountant)[0] <= e
            low, high = (middle, high) if fits else (low, middle)
        total += w * mean * np.exp(low)
    return total / weight.sum() > mean * (1 - 1e-3)


def planned(numbers: range, accountants: tuple[str, ...] = ("rdp", "pld")) -> Counter[str]:
    made: Counter[str] = Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.RarelyUsed)
        warnings.simplefilter("ignore", sartor.NoNoise)
        for number in numbers:
            asked = edge_request(number)
            if asked.accountant not in accountants:
                continue
            try:
                plan = asked.plan()
            except sartor.Infeasible as infeasible:
                made[prove(str(infeasible), asked)] += 1
                continue
            check(plan, asked)
            made["made"] += 1
    return made


def test_renyi_plans_at_the_edges_are_made_or_proved_impossible():
    assert planned(range(40), ("rdp",))["made"] >= 10


@pytest.mark.long
@pytest.mark.parametrize("part", range(100))
def test_plans_at_the_edges_are_made_or_proved_impossible(part):
    assert planned(range(20 * part, 20 * (part + 1)))["made"] > 0
