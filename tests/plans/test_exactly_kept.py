"""A budget is a limit and not a mark to aim at: a plan over it by any share, however small, cannot be had in any way."""

import dataclasses
import functools
import json
import pickle

import numpy as np
import pytest
from scipy.stats import norm

import sartor
from sartor.accounting import epsilon
from sartor_testing.plans import changed

ACCOUNTANTS = ("rdp", "pld")
SCHEMES = ("scale", "sample")


@functools.cache
def spending_all(scheme: str, accountant: str, reserve: float = 0.0) -> sartor.Plan:
    """A plan under which every group spends exactly what it allows: the spend of another plan, made the budget."""
    budgets = sartor.Budgets.from_groups([(1.0, 300), (2.0, 200), (4.0, 100)], delta=1e-5, reserve=reserve)
    plan = sartor.plan(budgets, scheme, steps=40, batch=60, accountant=accountant)
    allowed = plan.spent / (1 - reserve)
    allowed = np.where(allowed * (1 - reserve) < plan.spent, np.nextafter(allowed, np.inf), allowed)  # rounding may not take any of it
    return dataclasses.replace(plan, epsilon=allowed)


@pytest.mark.parametrize("reserve", [0.0, 0.25])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("over", [1e-12, 1e-6, 1e-3, 4e-3])
def test_a_budget_missed_by_any_share_is_missed(scheme, accountant, reserve, over):
    plan = spending_all(scheme, accountant, reserve)
    for group in range(len(plan)):
        less = plan.epsilon.copy()
        less[group] *= 1 - over
        with pytest.raises(sartor.Overspent, match="1 of 3 groups"):
            dataclasses.replace(plan, epsilon=less)
        document = json.loads(json.dumps(plan.to_json(sensitive=True)))
        document["groups"][group]["epsilon"] = float(less[group])
        with pytest.raises(sartor.Overspent, match="1 of 3 groups"):
            sartor.Plan.from_json(document)


CHANGES = {
    "noise": lambda plan: {"noise_multiplier": plan.noise_multiplier * 0.999},
    "clips": lambda plan: {"clips": plan.clips * 1.001},
    "rates": lambda plan: {"rate": plan.rate * 1.001},
    "deltas": lambda plan: {"delta": plan.delta * 0.995},
    "steps": lambda plan: {"steps": plan.steps + 1},
    "reserve": lambda plan: {"reserve": plan.reserve + 1e-3},
}


@pytest.mark.parametrize("reserve", [0.0, 0.25])
@pytest.mark.parametrize("accountant", ACCOUNTANTS)
@pytest.mark.parametrize("what", CHANGES)
def test_a_thousandth_less_protection_than_the_budgets_allow_is_refused(what, accountant, reserve):
    plan = spending_all("scale", accountant, reserve)
    change = CHANGES[what](plan)
    with pytest.raises(sartor.Overspent):
        changed(plan, **change)
    document = json.loads(json.dumps(plan.to_json(sensitive=True)))
    for name, value in change.items():
        column = {"clips": "clip"}.get(name, name)
        if np.ndim(value):
            for row, own in zip(document["groups"], value.tolist(), strict=True):
                row[column] = own
        else:
            document[name] = value
    with pytest.raises(sartor.Overspent):
        sartor.Plan.from_json(document)


@pytest.mark.parametrize("accountant", ACCOUNTANTS)
def test_a_budget_that_is_met_exactly_is_met(accountant):
    """Or the refusals above would show nothing."""
    plan = spending_all("sample", accountant)
    np.testing.assert_array_equal(plan.spent, plan.epsilon)
    assert sartor.Plan.from_json(json.loads(json.dumps(plan.to_json(sensitive=True)))) == plan
    assert pickle.loads(pickle.dumps(plan)) == plan


@pytest.mark.parametrize("reserve", [0.0, 0.25])
def test_what_is_spent_is_counted_at_the_delta_that_the_reserve_leaves(reserve):
    """Full batches are one Gaussian, whose delta at an epsilon is exact by the normal distribution; Rényi's figure is not below it."""
    budgets = sartor.Budgets.from_groups([(1.0, 30), (3.0, 20)], delta=[1e-5, 1e-4], reserve=reserve)
    for accountant in ACCOUNTANTS:
        plan = sartor.plan(budgets, "scale", steps=25, batch=50, accountant=accountant)
        assert np.all(plan.rate == 1)
        ratio = np.sqrt(plan.steps) / plan.noise_multipliers
        at = plan.spent / ratio
        exact = norm.cdf(ratio / 2 - at) - np.exp(plan.spent) * norm.cdf(-ratio / 2 - at)
        left = plan.delta * (1 - reserve)
        assert np.all(exact <= left * (1 + 1e-6))
        if accountant == "pld":
            np.testing.assert_allclose(exact, left, rtol=1e-6)
        else:
            own = [epsilon(plan.exposure(i), float(left[i]), "rdp").upper for i in range(len(plan))]
            np.testing.assert_allclose(plan.spent, own, rtol=1e-9)
