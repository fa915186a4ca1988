"""Faults put in on purpose: each must be caught, by the plan's own check or by an independent accountant."""

import logging
import warnings

import dp_accounting
import numpy as np
import pytest

import sartor
from sartor.accounting import pld, rdp, spending
from sartor.plans import hybrid, scale
from sartor.plans.problem import Parameters
from sartor_testing.plans import changed

BUDGETS = sartor.Budgets.from_shares([1, 2, 4], [0.5, 0.3, 0.2], holders=2_000, delta=1e-5, seed=0)


@pytest.fixture(autouse=True)
def nothing_remembered():
    spending._memory.clear()
    yield
    spending._memory.clear()


def kept_by_dp_accounting(plan: sartor.Plan, slack: float) -> bool:
    """Whether dp_accounting's Rényi accountant, on the same orders, finds everybody within budget."""
    logging.getLogger("absl").setLevel(logging.CRITICAL)
    spent = []
    for group in range(len(plan)):
        accountant = dp_accounting.rdp.RdpAccountant(orders=[float(a) for a in rdp.ORDERS if a <= 64])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            spent.append(accountant.compose(plan.exposure(group).to_dp_event()).get_epsilon(float(plan.delta[group])))
    return bool(np.all(np.array(spent) <= plan.epsilon * (1 + slack)))


def planned(scheme: str, steps: int = 300, accountant: str = "rdp") -> sartor.Plan:
    return sartor.plan(BUDGETS, scheme, steps=steps, batch=100, accountant=accountant)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
def test_noise_solved_two_per_cent_too_low_is_caught(monkeypatch, accountant):
    planned("scale", accountant=accountant)
    solve = scale.noise_for
    monkeypatch.setattr(scale, "noise_for", lambda *values, **more: 0.98 * solve(*values, **more))
    with pytest.raises(sartor.Overspent):
        planned("scale", accountant=accountant)


def test_a_rate_bound_to_the_wrong_group_is_caught(monkeypatch):
    planned("sample")
    solve = hybrid.mixed

    def swapped(problem, mix):
        found = solve(problem, mix)
        return Parameters(found.rate[[1, 0, 2]], found.noise_multiplier)

    monkeypatch.setattr(hybrid, "mixed", swapped)
    with pytest.raises(sartor.Overspent, match="the group at epsilon 1"):
        planned("sample")


def test_an_accountant_that_drops_a_step_is_caught(monkeypatch):
    assert kept_by_dp_accounting(planned("scale", steps=15), slack=1e-3)
    spending._memory.clear()
    full = spending._evaluated

    def one_step_short(table, *how):
        fewer = table.copy()
        fewer[:, 2] = np.maximum(fewer[:, 2] - 1, 0)
        return full(fewer, *how)

    monkeypatch.setattr(spending, "_evaluated", one_step_short)
    assert not kept_by_dp_accounting(planned("scale", steps=15), slack=1e-3)


@pytest.mark.parametrize(("kept", "understated"), [("add", True), ("remove", False)])
def test_a_dropped_direction_is_caught(monkeypatch, kept, understated):
    """For the sampled Gaussian removing is the worse direction: without it the accountant falls below dp_accounting's figure."""
    true = 6.3124  # rate 0.04, noise 2.2, 5,000 steps, delta 1e-5
    assert spending.spend(0.04, 2.2, 5_000, 1e-5)[0] >= true * (1 - 1e-4)
    spending._memory.clear()
    monkeypatch.setattr(pld._Evaluation, "epsilon", lambda self, delta: np.maximum(getattr(self, kept).epsilon(delta), 0.0))
    assert bool(spending.spend(0.04, 2.2, 5_000, 1e-5)[0] < true * 0.99) is understated


def test_a_clip_of_another_group_is_caught(monkeypatch):
    plan = planned("scale")
    with pytest.raises(sartor.Overspent):
        changed(plan, clips=plan.clips[::-1])


def test_arithmetic_instead_of_harmonic_mean_is_caught():
    """The published program averages noise multipliers arithmetically, so the mean clip is not the one asked for."""
    plan = planned("scale")
    harmonic = 1 / np.average(1 / plan.noise_multipliers, weights=plan.holders)
    arithmetic = np.average(plan.noise_multipliers, weights=plan.holders)
    assert plan.noise_multiplier == pytest.approx(harmonic, rel=1e-9)
    assert arithmetic > 1.05 * harmonic
    assert np.average(plan.clips, weights=plan.holders) == pytest.approx(plan.clip, rel=1e-12)
