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


def coins_at(rate, random, people=600):
    return np.flatnonzero(random.random(people) < rate)


def together(random):
    """All or nobody."""
    return [np.arange(600) if random.random() < 1 / 3 else np.zeros(0, int) for _ in range(30)]


def twins(random):
    """Neighbours share their coin."""
    return [np.sort(np.concatenate([2 * drawn, 2 * drawn + 1])) for drawn in (coins_at(1 / 3, random, 300) for _ in range(200))]


def again(random):
    """One draw comes again, once."""
    found = [coins_at(1 / 3, random) for _ in range(80)]
    return [*found[:17], found[3], *found[18:]]


def drifting(random):
    """A few of those who were drawn stay for the next step."""
    found = [coins_at(1 / 3, random)]
    for _ in range(400):
        stay = random.random(600) < 0.3
        found.append(np.flatnonzero(np.where(stay, np.isin(np.arange(600), found[-1]), random.random(600) < 1 / 3)))
    return found


BROKEN = {
    "more uneven": together,
    "together, or apart": twins,
    "in common": again,
    "common": drifting,
    "more or less": lambda random: [coins_at(0.45, random) for _ in range(60)],
    "or less": lambda random: [coins_at(0.22, random) for _ in range(60)],
}


@pytest.mark.parametrize("words", BROKEN)
def test_what_coins_of_ones_own_do_not_do_is_named(words):
    drawn = BROKEN[words](np.random.default_rng(1))
    budgets = sartor.Budgets.from_groups([(1.0, 600)], delta=1e-3)
    plan = sartor.plan(budgets, "uniform", steps=len(drawn), batch=200, accountant="rdp")
    draws = {step: Draw(step, indices, np.ones(len(indices))) for step, indices in enumerate(drawn)}
    assert any(words in fault for fault in faults_of_draws(plan, np.zeros(600, int), draws, range(len(drawn))))


def of_coins(drawn):
    return {step: Draw(step, np.asarray(who, np.intp), np.ones(len(who))) for step, who in enumerate(drawn)}


def test_two_whose_coins_are_one_are_named_wherever_they_stand():
    budgets = sartor.Budgets.from_groups([(1.0, 200)], delta=1e-2)
    plan = sartor.plan(budgets, "uniform", steps=200, batch=20, accountant="rdp")
    random = np.random.default_rng(1)
    mates = random.permutation(200).reshape(100, 2)
    drawn = of_coins(np.sort(mates[random.random(100) < 0.1].reshape(-1)) for _ in range(200))
    assert any("together, or apart" in fault for fault in faults_of_draws(plan, np.zeros(200, int), drawn, range(200)))


@pytest.mark.parametrize("often", [True, False])
def test_one_holder_with_other_coins_is_named(often):
    budgets = sartor.Budgets.from_groups([(1.0, 300)], delta=1e-2)
    plan = sartor.plan(budgets, "uniform", steps=120, batch=90, accountant="rdp")
    coins = np.random.default_rng(2).random((120, 300)) < 0.3
    coins[:, 7] = often
    found = faults_of_draws(plan, np.zeros(300, int), of_coins(np.flatnonzero(own) for own in coins), range(120))
    assert "somebody is drawn more or less often than the plan's rate for them says." in found


def test_groups_without_coins_of_inclusion_are_looked_at_beside_those_that_have_them():
    budgets = sartor.Budgets.from_groups([(1.0, 100), (8.0, 100)], delta=1e-2)
    plan = sartor.plan(budgets, "rounds", steps=60, batch=40, rounds=2, accountant="rdp")
    sampler, group = PoissonSampler(plan, budgets, Stream(1)), plan.groups_of(budgets)
    draws = [sampler.draw(step).indices for step in range(plan.steps)]
    alone = ~np.isin(group, plan.parts.group[plan.parts.inclusion < 1])
    assert 0 < alone.sum() < len(group)
    assert faults_of_draws(plan, group, of_coins(draws), range(plan.steps)) == []
    same = of_coins(np.union1d(who[~alone[who]], draws[0][alone[draws[0]]]) for who in draws)
    assert any("in common" in fault for fault in faults_of_draws(plan, group, same, range(plan.steps)))


@pytest.mark.parametrize("apart", [1, 2, 300])
def test_few_steps_in_which_everybody_shares_the_coin_of_one_so_far_away_are_named(apart):
    budgets = sartor.Budgets.from_groups([(1.0, 600)], delta=1e-2)
    plan = sartor.plan(budgets, "uniform", steps=12, batch=200, accountant="rdp")
    random, people = np.random.default_rng(1), np.arange(600)
    first = people[people // apart % 2 == 0]
    drawn = [first[random.random(300) < 1 / 3] for _ in range(12)]
    found = faults_of_draws(plan, np.zeros(600, int), of_coins(np.sort([*who, *(who + apart)]) for who in drawn), range(12))
    assert any("together, or apart" in fault for fault in found)
