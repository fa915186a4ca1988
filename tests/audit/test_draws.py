"""Draws: coins of one's own are never taken for anything else. What is taken for a fault is in tests/mutants."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import sartor
from sartor.audit.draws import faults_of_draws
from sartor.run.sampling import Draw, PoissonSampler
from sartor.run.stream import Stream
from sartor_testing.amount import examples


@settings(max_examples=examples(30, 400))
@given(
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    share=st.sampled_from([0.002, 0.05, 0.5, 0.95, 1.0]),
    steps=st.integers(1, 40),
    scheme=st.sampled_from(["uniform", "sample", "scale", "sequential"]),
    seed=st.integers(0, 10**6),
)
@pytest.mark.filterwarnings("ignore")
def test_coins_of_ones_own_are_no_fault(sizes, share, steps, scheme, seed):
    budgets = sartor.Budgets.from_groups([(1.0 + place, size) for place, size in enumerate(sizes)], delta=1e-2)
    try:
        plan = sartor.plan(budgets, scheme, steps=steps, batch=share * sum(sizes), accountant="rdp")
    except sartor.Infeasible:
        assume(False)
    sampler = PoissonSampler(plan, budgets, Stream(seed))
    draws = {step: sampler.draw(step) for step in range(steps)}
    assert faults_of_draws(plan, plan.groups_of(budgets), draws, sorted(draws)) == []


def test_while_nobody_rests_draws_under_a_filter_are_looked_at_too():
    budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-2)
    plan = sartor.plan(budgets, "scale", steps=60, batch=50, filter="renyi", refresh=2, full_steps=20, accountant="rdp")
    sampler = PoissonSampler(plan, budgets, Stream(1), filtered=True)
    draws = {step: sampler.draw(step) for step in range(plan.steps)}
    assert faults_of_draws(plan, plan.groups_of(budgets), draws, sorted(draws)) == []
    again = {step: draws[step - step % 2] for step in draws}
    assert any("in common" in fault for fault in faults_of_draws(plan, plan.groups_of(budgets), again, sorted(again)))


@pytest.mark.long
def test_rare_alarms_are_as_rare_as_they_should_be(monkeypatch):
    """At one in ten instead of one in a billion, so that they can be counted."""
    monkeypatch.setattr("sartor.audit.draws.UNLIKELY", 0.1)
    budgets = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-2)
    plan = sartor.plan(budgets, "sample", steps=20, batch=20, accountant="rdp")
    alarms = np.zeros(4)
    for seed in range(500):
        sampler = PoissonSampler(plan, budgets, Stream(seed))
        faults = " ".join(faults_of_draws(plan, plan.groups_of(budgets), {step: sampler.draw(step) for step in range(20)}, range(20)))
        alarms += [words in faults for words in ("even sizes", "uneven", "in common", "together")]
    assert np.all(alarms / 500 <= 0.15)


def test_few_batches_that_are_all_as_large_as_expected_are_chance():
    """Sizes are whole numbers, so two or three of them are all the mean now and then."""
    budgets = sartor.Budgets.from_groups([(1.0, 60)], delta=1e-2)
    plan = sartor.plan(budgets, "uniform", steps=30, batch=20, accountant="rdp")
    same = [Draw(step, np.sort(np.random.default_rng(step).permutation(60)[:20]), np.ones(20)) for step in range(30)]
    few, many = (faults_of_draws(plan, np.zeros(60, int), dict(enumerate(same[:count])), range(count)) for count in (3, 30))
    assert few == []
    assert any("more even" in fault for fault in many)
