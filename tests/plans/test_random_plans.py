"""Ten thousand random plans: nobody is overspent, little is wasted, or it is infeasible for a stated reason.

Epsilons from 0.05 to 50 and infinite, 1 to 50 groups, rates up to 1, all schemes. 9,500 by the Rényi accountant and 500 by the tight
one; one random group of each of 500 is checked by dp_accounting as well.
"""

import logging
import sys
import warnings
from collections import Counter
from pathlib import Path

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import sartor
from sartor.accounting import rdp, spend

sys.path.insert(0, str(Path(__file__).parent))
from random_requests import SCHEMES, request

REASONS = ("cannot fill the batch", "nobody is left", "with a probability of at most its delta", "needs no noise at all")
REFERENCE_ORDERS = [float(a) for a in rdp.ORDERS if a == round(a)] + [1.5, 2.5, 3.5, 4.5]


def check(plan: sartor.Plan, scheme: str, budgets: sartor.Budgets, batch: float) -> None:
    groups = budgets.groups
    assert np.array_equal(plan.epsilon, groups.epsilon)
    assert np.array_equal(plan.holders, groups.holders)
    finite = np.isfinite(plan.epsilon)
    fresh = spend(plan.rate, plan.noise / plan.clips, plan.last - plan.first, plan.delta, plan.accountant)
    assert np.all(fresh[finite] <= plan.epsilon[finite])
    assert np.all(plan.rate <= 1)
    if scheme in ("sample", "scale", "hybrid"):
        waste = 1 - fresh[finite] / plan.epsilon[finite]
        assert np.all((waste <= 0.005) | plan.capped[finite])
        assert np.average(plan.rate, weights=plan.holders) == pytest.approx(batch / len(budgets), rel=1e-3)
        assert np.average(plan.clips, weights=plan.holders) == pytest.approx(plan.clip, rel=1e-9)
    if scheme in ("uniform", "scale"):
        assert np.all(plan.rate == plan.rate[0])
    if scheme == "sequential":
        assert int(np.max(plan.last)) <= plan.steps
        assert np.sum((plan.last - plan.first)[finite]) == plan.steps


def planned(seed: int, count: int, accountant: str, **limits: int) -> Counter[str]:
    rng, made = np.random.default_rng(seed), Counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.RarelyUsed)
        for _ in range(count):
            asked = request(rng, **limits)
            try:
                plan = asked.plan(accountant)
            except sartor.Infeasible as infeasible:
                made["infeasible"] += 1
                made["unstated"] += not any(reason in str(infeasible) for reason in REASONS)
                continue
            check(plan, asked.scheme, asked.budgets, asked.batch)
            made[asked.scheme] += 1
    assert made["unstated"] == 0
    return made


@pytest.mark.parametrize("seed", range(38))
def test_renyi_plans_overspend_nobody_and_waste_little(seed):
    made = planned(seed, 250, "rdp")
    assert all(made[scheme] >= 12 for scheme in SCHEMES)
    assert made["infeasible"] <= 60


@pytest.mark.parametrize("seed", range(100, 120))
def test_tight_plans_overspend_nobody_and_waste_little(seed):
    made = planned(seed, 25, "pld", most_groups=12, most_steps=5_000)
    assert sum(made.values()) - made["infeasible"] >= 15


def independent_epsilon(rate: float, noise: float, steps: int, delta: float) -> float:
    """The better of dp_accounting's two accountants, both of them upper bounds."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        event = sartor.SampledGaussian(rate, noise, steps).to_dp_event()
        value = dp_accounting.rdp.RdpAccountant(orders=REFERENCE_ORDERS).compose(event).get_epsilon(delta)
        spread = rate * np.sqrt(np.expm1(min(noise**-2, 20.0)))
        grid = min(max(spread / 3, spread * np.sqrt(steps) / 5_000, 1e-6), 0.01)
        tight = privacy_loss_distribution.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=grid)
        return float(min(value, tight.self_compose(steps).get_epsilon_for_delta(delta)))


@pytest.mark.parametrize("seed", range(200, 210))
def test_one_group_of_each_plan_is_within_budget_by_an_independent_accountant(seed):
    """Fifty plans a run: dp_accounting, another implementation, must find that the group kept its budget and was not left far below."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # it says of each order that did not converge
    rng, checked = np.random.default_rng(seed), 0
    while checked < 50:
        asked = request(rng, most_groups=8)
        try:
            plan = asked.plan("rdp")
        except sartor.Infeasible:
            continue
        group = int(rng.choice(np.flatnonzero(np.isfinite(plan.epsilon))))
        exposure = plan.exposure(group)
        checked += 1
        if exposure.steps == 0 or exposure.rate == 0:
            assert plan.spent[group] == 0
            continue
        spent = independent_epsilon(exposure.rate, exposure.noise_multiplier, exposure.steps, float(plan.delta[group]))
        assert spent <= plan.epsilon[group] * (1 + 1e-6)
        if plan.epsilon[group] < 3 and asked.scheme in ("sample", "scale", "hybrid") and plan.expected_uses[group] > 1:
            assert spent >= plan.epsilon[group] * 0.5 or plan.capped[group]
