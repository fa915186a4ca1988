"""Neighbours of an ensemble: no variant is refuted where voting is sound. What they refute is in tests/mutants."""

import functools
from dataclasses import replace

import numpy as np
import pytest

import sartor
from sartor import pate
from sartor.audit import votes as attack
from sartor.audit.bounds import threshold_bound
from sartor.audit.votes import teachers_of, vote_attack
from sartor.errors import SartorError
from sartor.pate import voting
from sartor.pate.account import Accountant
from sartor.pate.partition import partition
from sartor.pate.plan import Confident, GNMax, Interactive
from sartor.run.stream import Stream

DELTA = 1e-2
PLAIN = GNMax(10.0)
TESTED = Confident(noise=8.0, threshold=12.0, threshold_noise=8.0)


@functools.cache
def people():
    return sartor.Budgets(np.random.default_rng(1).permutation(np.repeat([1.0, 8.0], [60, 40])), delta=DELTA)


@functools.cache
def planned(variant="weight", aggregator=PLAIN):
    return pate.plan(people(), variant, teachers=20, aggregator=aggregator)


def bounds(plan, repetitions=1000, queries=150):
    found = vote_attack(plan, people(), repetitions=repetitions, queries=queries, seed=3)
    return [threshold_bound(found[group], DELTA, 0.999) for group in range(2)]


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_no_variant_is_refuted(variant):
    strict, weak = bounds(planned(variant), repetitions=2000)
    assert strict <= 1
    assert weak <= 8
    assert weak > (0.5 if variant != "standard" else 0)  # it does see the open group


@pytest.mark.parametrize(
    "aggregator",
    [TESTED, pytest.param(Interactive(noise=8.0, threshold=3.0, threshold_noise=8.0), marks=pytest.mark.long)],
)
def test_no_test_before_an_answer_is_refuted(aggregator):
    strict, weak = bounds(planned("weight", aggregator), repetitions=200, queries=80)
    assert strict <= 1
    assert 0.3 < weak <= 8


def test_both_worlds_differ_in_one_holders_teachers_alone():
    for variant in ("standard", "upsample", "weight", "vanish"):
        plan = planned(variant)
        for group in range(len(plan)):
            teachers = teachers_of(plan, people(), group, seed=3)
            assert len(teachers) == plan.duplicates[group]
            one, other = attack._Worlds.of(plan, teachers, group, 10).votes
            assert set(np.flatnonzero((one != other).any(0))) == set(teachers.tolist())


def test_an_ensemble_of_people_with_several_records_is_attacked_by_holder():
    owners = sartor.Ownership(np.repeat(np.arange(100), np.resize([1, 3], 100)).tolist(), 100)
    plan = replace(planned("upsample"), records=len(owners))
    for group in range(len(plan)):
        assert len(teachers_of(plan, people(), group, 3, owners)) == plan.duplicates[group]
    strict, weak = vote_attack(plan, people(), ownership=owners, repetitions=20, queries=20).values()
    assert len(strict.inside) == len(weak.outside) == 20
    with pytest.raises(SartorError, match="ownership"):
        vote_attack(plan, people(), repetitions=20, queries=20)


def test_scores_are_likelihood_ratios():
    """By what labels are in many votings, beside what the attack takes to be likely."""
    plan = planned("weight", TESTED)
    worlds = attack._Worlds.of(plan, teachers_of(plan, people(), 1, seed=3), 1, 1)
    outcomes = []
    for world in range(2):
        repeated = np.repeat(worlds.votes[world], 20_000, axis=0)
        again = voting.Voting(plan, repeated, 2, None, Accountant(), Stream(world))
        again._ask(0, len(repeated), np.repeat(plan.weights[None], len(repeated), axis=0))
        outcomes.append(np.bincount(again.labels + 1, minlength=3) / len(repeated))
    seen = np.log(outcomes[0] / outcomes[1])
    assert worlds.ratio[0] == pytest.approx(seen, abs=0.06)


def test_an_attack_is_the_same_under_the_same_seed():
    one, same, other = (vote_attack(planned(), people(), repetitions=20, queries=20, seed=seed)[1] for seed in (1, 1, 2))
    assert np.array_equal(one.inside, same.inside)
    assert not np.array_equal(one.inside, other.inside)


def test_an_attack_of_nothing_is_refused():
    with pytest.raises(SartorError, match="a repetition and a query"):
        vote_attack(planned(), people(), repetitions=0)
    with pytest.raises(SartorError, match="a group has no holder"):
        teachers_of(planned(), sartor.Budgets([1.0] * 10, delta=DELTA), 1, seed=1)


def test_votings_have_coins_of_their_own_in_both_worlds_and_all_repetitions(monkeypatch):
    monkeypatch.setattr(attack, "_ROWS", 20 * 20)  # some repetitions at once
    for aggregator, repetitions in ((PLAIN, 200), (TESTED, 40)):
        found = vote_attack(planned("weight", aggregator), people(), repetitions=repetitions, queries=20, seed=3)[1]
        assert abs(np.corrcoef(found.inside, found.outside)[0, 1]) < 0.5
        assert not np.array_equal(found.inside[:20], found.inside[20:40])


def test_who_is_attacked_has_the_delta_of_the_group_as_well():
    budgets = sartor.Budgets([2.0] * 100, delta=np.repeat([1e-2, 1e-3], 50))
    plan = pate.plan(budgets, "upsample", teachers=20, aggregator=PLAIN)
    assert plan.epsilon.tolist() == [2, 2]
    placed = partition(plan, budgets, b"audit 3", holders=[str(place) for place in range(100)])
    for group, delta in enumerate(plan.delta):
        first = int(np.flatnonzero(budgets.delta == delta)[0])
        assert teachers_of(plan, budgets, group, seed=3).tolist() == np.unique(placed.of_row[placed.rows == first]).tolist()


def test_budgets_of_another_plan_are_refused():
    people = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    others = sartor.Budgets.from_groups([(1.0, 50), (4.0, 50)], delta=1e-3)
    with pytest.raises(SartorError, match="of other sizes"):
        vote_attack(pate.plan(people, "weight", teachers=20), others, repetitions=2, queries=5)
