"""Ten thousand random plans: nobody is overspent, little is wasted, or it is infeasible for a stated reason.

Epsilons from 0.05 to 50 and infinite, 1 to 50 groups, rates up to 1, all schemes. 9,500 by the Rényi accountant, and 500 of up to 12
groups whose epsilons lie within a factor of twenty by the tight one; one random group of each of 500 is checked by dp_accounting as well.
Few of them run by default (seeds 1, 101 and 200), all with --long (make test-long).
"""

import logging
import warnings
from collections import Counter

import dp_accounting
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution

import sartor
from sartor.accounting import rdp, spend
from sartor_testing.amount import most_are_long
from sartor_testing.random_requests import SCHEMES, request

REASONS = ("cannot fill the batch", "nobody is left", "with a probability of at most its delta", "needs no noise at all")
REFERENCE_ORDERS = [float(a) for a in rdp.ORDERS if a == round(a) and a <= 1024] + [1.25, 1.5, 1.75, 2.5, 3.5, 4.5]


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


def planned(seed: int, count: int, accountant: str, **limits) -> Counter[str]:
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


@pytest.mark.parametrize("seed", most_are_long((1, 0, *range(2, 38)), 1))
def test_renyi_plans_overspend_nobody_and_waste_little(seed):
    made = planned(seed, 250, "rdp", most_groups=50 if seed % 4 == 0 else 10)
    assert all(made[scheme] >= 12 for scheme in SCHEMES)
    assert made["infeasible"] <= 60


@pytest.mark.parametrize("seed", most_are_long((101, 100, *range(102, 120)), 1))
def test_tight_plans_overspend_nobody_and_waste_little(seed):
    made = planned(seed, 25, "pld", most_groups=12, steps=(30, 5_000), most_width=1.5)
    assert sum(made.values()) - made["infeasible"] >= 15


def kept_by_dp_accounting(exposure: sartor.SampledGaussian, delta: float, epsilon: float) -> bool:
    """Whether another implementation finds a budget kept: to 1 % by its Rényi accountant, or else strictly by its tight one.

    Its Rényi accountant searches few fractional orders here, so for large epsilons its tight one is asked, on a coarse, pessimistic grid.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        accountant = dp_accounting.rdp.RdpAccountant(orders=REFERENCE_ORDERS)
        if accountant.compose(exposure.to_dp_event()).get_epsilon(delta) <= epsilon * 1.01:
            return True
        spread = exposure.rate * np.sqrt(np.expm1(min(exposure.noise_multiplier**-2, 20.0)))
        grid = min(max(spread / 3, spread * np.sqrt(exposure.steps) / 3_000), epsilon / 500)
        one = privacy_loss_distribution.from_gaussian_mechanism(
            exposure.noise_multiplier, sampling_prob=exposure.rate, value_discretization_interval=grid
        )
        return bool(one.self_compose(exposure.steps).get_epsilon_for_delta(delta) <= epsilon)


@pytest.mark.parametrize("seed", most_are_long(range(200, 210), 1))
def test_one_group_of_each_plan_is_within_budget_by_an_independent_accountant(seed):
    """Fifty plans a run: dp_accounting, another implementation, must find that the group kept its budget."""
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
        else:
            assert kept_by_dp_accounting(exposure, float(plan.delta[group]), float(plan.epsilon[group]))
