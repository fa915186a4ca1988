"""People with several records: all of a holder's are with the same teachers, and plans count people."""

import json

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import TensorDataset

import sartor
from sartor.errors import SartorError
from sartor.pate.build import plan
from sartor.pate.partition import partition
from sartor.pate.plan import GNMax, PatePlan
from sartor.pate.teachers import EstimatorTeachers
from sartor.pate.variants import VARIANTS
from sartor.pate.voting import aggregate
from sartor_testing.ensembles import lent, made, populations, random_votes, records_go_where_their_holder_goes

PEOPLE = sartor.Budgets.from_groups([(1.0, 50), (2.0, 30), (4.0, 20)], delta=1e-5)
OWNERS = sartor.Ownership(np.random.default_rng(5).permutation(np.repeat(np.arange(100), np.arange(100) % 3 + 1)), 100)
REVERSED = sartor.Ownership(OWNERS.of_record[::-1], 100)
PLAN = plan(PEOPLE, "upsample", teachers=10, aggregator=GNMax(noise=30.0))


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.data())
def test_all_records_of_a_holder_are_with_the_holders_teachers_and_each_as_often_as_planned(population, variant, data):
    budgets, teachers = population
    found = made(budgets, variant, teachers)
    owners = data.draw(lent(budgets))
    assert records_go_where_their_holder_goes(budgets=budgets, found=found, owners=owners)
    placed = partition(found, budgets, b"key", ownership=owners)
    times = np.bincount(placed.rows, minlength=len(owners))
    assert times.tolist() == found.duplicates[found.groups_of(budgets)][owners.of_record].tolist()
    assert sum(len(records) for records in placed.slices()) == times.sum()
    for holder in range(len(budgets)):  # at most `duplicates` teachers know anything of them
        reached = np.unique(placed.of_row[owners.of_record[placed.rows] == holder])
        assert len(reached) == found.duplicates[found.groups_of(budgets)[holder]]


def taught(found, budgets, owners, record):
    """For each teacher what it learns from, in its order: the given name of each record."""
    return [[record[i] for i in records] for records in partition(found, budgets, b"key", ownership=owners).slices()]


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.data())
def test_a_holder_who_leaves_changes_no_other_teacher_however_many_records_go(population, variant, data):
    budgets, teachers = population
    found, owners = made(budgets, variant, teachers), data.draw(lent(budgets))
    gone = data.draw(st.integers(0, len(budgets) - 1))
    if len(budgets) == 1:
        return
    kept = np.flatnonzero(owners.of_record != gone)
    fewer, rest = owners.only(kept, budgets)
    before = taught(found, budgets, owners, range(len(owners)))
    after = taught(found, fewer, rest, kept.tolist())
    own = {record for record in range(len(owners)) if owners.of_record[record] == gone}
    changed = [teacher for teacher in range(found.teachers) if before[teacher] != after[teacher]]
    assert len(changed) == found.duplicates[found.groups_of(budgets)[gone]]
    for teacher in changed:
        assert own <= set(before[teacher])
        assert after[teacher] == [record for record in before[teacher] if record not in own]


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.data())
def test_a_holder_who_brings_one_more_record_changes_no_other_teacher(population, variant, data):
    budgets, teachers = population
    found, owners = made(budgets, variant, teachers), data.draw(lent(budgets))
    holder, place = data.draw(st.integers(0, len(budgets) - 1)), data.draw(st.integers(0, len(owners)))
    more = sartor.Ownership(np.insert(owners.of_record, place, holder), len(budgets))
    names = [*range(place), "new", *range(place, len(owners))]
    before, after = taught(found, budgets, owners, range(len(owners))), taught(found, budgets, more, names)
    changed = [teacher for teacher in range(found.teachers) if before[teacher] != after[teacher]]
    assert len(changed) == found.duplicates[found.groups_of(budgets)[holder]]
    for teacher in range(found.teachers):
        assert [record for record in after[teacher] if record != "new"] == before[teacher]
        assert after[teacher].count("new") == (teacher in changed)


def test_only_the_votes_of_a_holders_teachers_change_when_all_their_records_are_zeroed_or_go():
    rng = np.random.default_rng(0)
    budgets = sartor.Budgets.from_groups([(1.0, 20), (2.0, 20)], delta=1e-5)
    owners = sartor.Ownership(rng.permutation(np.repeat(np.arange(40), [3] * 39 + [60])), 40)
    found = plan(budgets, "upsample", teachers=8, aggregator=GNMax(noise=3.0))
    x, y = torch.from_numpy(rng.normal(size=(len(owners), 3)).astype(np.float32)), torch.from_numpy(rng.integers(0, 3, len(owners)))
    queries = torch.from_numpy(rng.normal(size=(40, 3)).astype(np.float32))
    slices, theirs = partition(found, budgets, b"key", ownership=owners).slices(), owners.of_record == 39
    zeroed = x.clone(), y.clone()
    for part in zeroed:
        part[torch.from_numpy(theirs)] = 0
    teachers = EstimatorTeachers(DecisionTreeClassifier(), workers=1, seed=0, progress=False)
    votes = teachers.votes(TensorDataset(x, y), slices, queries)
    without = [records[~theirs[records]] for records in slices]
    others = teachers.votes(TensorDataset(*zeroed), slices, queries), teachers.votes(TensorDataset(x, y), without, queries)
    reached = [teacher for teacher, records in enumerate(slices) if theirs[records].any()]
    assert len(reached) == found.duplicates[1] == 2
    assert [np.flatnonzero((votes != other).any(0)).tolist() for other in others] == [reached, reached]


def test_records_of_one_each_are_placed_as_without_an_ownership():
    plain = partition(PLAN, PEOPLE, b"key", ownership=sartor.Ownership(np.arange(100), 100))
    bare = partition(PLAN, PEOPLE, b"key")
    assert np.array_equal(plain.rows, bare.rows)
    assert np.array_equal(plain.of_row, bare.of_row)


def test_plans_count_holders_and_know_of_records_only_their_number():
    one, other = (plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(noise=3.0), ownership=o) for o in (OWNERS, REVERSED))
    bare = plan(PEOPLE, "weight", teachers=10, aggregator=GNMax(noise=3.0))
    assert one == other != bare
    assert json.dumps(one.to_json()) == json.dumps(other.to_json())
    assert {name: value for name, value in one.to_json().items() if name != "records"} == bare.to_json()
    assert one.counted == {"holders": 100, "records": len(OWNERS)}
    assert bare.counted == {"holders": 100}
    assert PatePlan.from_json(one.to_json(sensitive=True)) == one
    assert f"100 holders ({len(OWNERS)} records)" in repr(one)
    with pytest.raises(SartorError, match="from 1 to 100"):  # though there are more records
        plan(PEOPLE, teachers=101, ownership=OWNERS)
    for wrong in (99, 0, 150.5, "many", True):
        with pytest.raises(SartorError, match=r"^this is not a plan for PATE: (every holder has a record at least|a number is [^:.]*)\.$"):
            PatePlan.from_json({**one.to_json(sensitive=True), "records": wrong})


def test_records_are_not_taken_for_holders():
    known, fewer = plan(PEOPLE, teachers=10, ownership=OWNERS), sartor.Ownership(np.arange(99), 99)
    with pytest.raises(SartorError, match="say whose each of them is"):
        partition(known, PEOPLE, b"key")
    for act in (lambda: plan(PEOPLE, teachers=10, ownership=fewer), lambda: partition(PLAN, PEOPLE, b"key", ownership=fewer)):
        with pytest.raises(SartorError, match="of 99 holders, but there are 100 budgets"):
            act()


def test_an_account_says_how_many_holders_and_records_there_are_and_nothing_of_whose_they_are():
    votes = random_votes(40, 10, 3, 1)[0]
    said = [aggregate(plan(PEOPLE, teachers=10, ownership=owners), votes, 3).account.to_json() for owners in (OWNERS, REVERSED, None)]
    assert said[0] == said[1]
    assert (said[0]["holders"], said[0]["records"]) == (100, len(OWNERS))
    assert {name: value for name, value in said[0].items() if name != "records"} == said[2]
