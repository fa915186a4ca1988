"""Who is taught to which teacher: by name and key alone, nobody twice, evenly."""

import importlib

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

import sartor
from sartor.errors import SartorError
from sartor.pate.build import plan
from sartor.pate.plan import GNMax
from sartor.pate.variants import VARIANTS
from sartor_testing import pate_reference as reference
from sartor_testing.ensembles import made, no_teacher_sees_a_record_twice, populations

placing = importlib.import_module("sartor.pate.partition")


def by_name(found, budgets):
    """For each teacher the names of those that it learns from."""
    return [{budgets.names[row] for row in rows.tolist()} for rows in found.slices()]


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_teacher_sees_a_record_twice(variant):
    assert no_teacher_sees_a_record_twice(variant)


@settings(max_examples=80)
@given(populations(), st.sampled_from(VARIANTS), st.booleans())
def test_everyone_is_in_as_many_teachers_of_their_own_group_as_planned(population, variant, tune):
    budgets, teachers = population
    found = made(budgets, variant, teachers, tune=tune)
    placed = placing.partition(found, budgets, b"key")
    for holder, own in enumerate(reference.teachers_of(placed, len(budgets))):
        group = next(g for g in range(len(found)) if (found.epsilon[g], found.delta[g]) == (budgets.epsilon[holder], budgets.delta[holder]))
        assert len(own) == len(set(own)) == found.duplicates[group]
        assert all(found.begin[group] <= teacher < found.end[group] for teacher in own)
    assert sum(len(rows) for rows in placed.slices()) == int(np.sum(found.duplicates * found.holders))
    assert len(placed.slices()) == found.teachers


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.integers(0, 10**6))
def test_places_follow_the_holders_under_any_order(population, variant, seed):
    budgets, teachers = population
    found = made(budgets, variant, teachers)
    order = np.random.default_rng(seed).permutation(len(budgets))
    other = budgets.ordered_as([budgets.names[i] for i in order])
    assert by_name(placing.partition(found, budgets, b"key"), budgets) == by_name(placing.partition(found, other, b"key"), other)


@settings(max_examples=60)
@given(populations(), st.sampled_from(VARIANTS), st.integers(0, 10**6))
def test_removing_a_holder_changes_only_the_teachers_that_hold_them(population, variant, pick):
    budgets, teachers = population
    found = made(budgets, variant, teachers)
    gone = pick % len(budgets)
    rest = [i for i in range(len(budgets)) if i != gone]
    if not rest:
        return
    names = [budgets.names[i] for i in rest]
    fewer = sartor.Budgets(budgets.epsilon[rest], delta=budgets.delta[rest], holders=names, reserve=budgets.reserve)
    before, after = (by_name(placing.partition(found, b, b"key"), b) for b in (budgets, fewer))
    changed = [t for t in range(found.teachers) if before[t] != after[t]]
    assert len(changed) == found.duplicates[found.groups_of(budgets)[gone]]
    assert all(before[t] - after[t] == {budgets.names[gone]} and after[t] <= before[t] for t in changed)


def test_names_may_be_given_apart_from_the_budgets():
    named = sartor.Budgets([1.0, 2.0, 1.0, 2.0] * 10, delta=1e-5, holders=[f"n{i}" for i in range(40)])
    bare = sartor.Budgets(named.epsilon, delta=1e-5)
    found = plan(named, "upsample", teachers=6, aggregator=GNMax(noise=3.0))
    one = placing.partition(found, named, b"key")
    two = placing.partition(found, bare, b"key", holders=named.names)
    assert all(np.array_equal(a, b) for a, b in zip(one.slices(), two.slices(), strict=True))
    with pytest.raises(SartorError, match="names"):
        placing.partition(found, bare, b"key", holders=["a"])
    with pytest.raises(SartorError, match="same name"):
        placing.partition(found, bare, b"key", holders=["a"] * 40)


def test_rows_are_the_names_of_those_without():
    budgets = sartor.Budgets.from_groups([(1.0, 30)], delta=1e-5)
    found = plan(budgets, teachers=5, aggregator=GNMax(noise=3.0))
    named = placing.partition(found, budgets, b"key", holders=[str(i) for i in range(30)])
    assert np.array_equal(named.of_row, placing.partition(found, budgets, b"key").of_row)


def test_another_key_is_another_partition_and_without_one_each_is_new():
    budgets = sartor.Budgets.from_groups([(1.0, 500)], delta=1e-5)
    found = plan(budgets, teachers=50, aggregator=GNMax(noise=3.0))
    places = [placing.partition(found, budgets, key).of_row.tolist() for key in (b"a", b"b", b"", None, None)]
    assert len({tuple(p) for p in places}) == 5
    assert placing.partition(found, budgets, b"a").of_row.tolist() == places[0]


@pytest.mark.parametrize("key", [b"one", b"two", b"three"])
def test_a_partition_is_close_to_uniform(key):
    budgets = sartor.Budgets.from_groups([(1.0, 20_000), (3.0, 10_000)], delta=1e-5)
    for variant in ("standard", "upsample", "weight"):
        found = plan(budgets, variant, teachers=60, aggregator=GNMax(noise=3.0))
        placed = placing.partition(found, budgets, key)
        group = found.groups_of(budgets)[placed.rows]
        for g in range(2):
            counts = np.bincount(placed.of_row[group == g] - found.begin[g], minlength=int(found.end[g] - found.begin[g]))
            expected = counts.sum() / len(counts)
            # without replacement the counts of a holder's teachers vary a little less than those of independent draws
            statistic = np.sum((counts - expected) ** 2 / expected)
            assert chi2.cdf(statistic, len(counts) - 1) < 0.9999
            assert chi2.sf(statistic, len(counts) - 1) < 0.9999


def test_pairs_of_teachers_are_drawn_evenly():
    budgets = sartor.Budgets.from_groups([(1.0, 10), (2.0, 20_000)], delta=1e-5)
    found = plan(budgets, "upsample", teachers=4, aggregator=GNMax(noise=3.0))
    assert found.duplicates.tolist() == [1, 2]
    pairs = [tuple(own) for own in reference.teachers_of(placing.partition(found, budgets, b"key"), 20_010)[10:]]
    kinds = found.teachers * (found.teachers - 1) // 2
    counts = np.array([pairs.count(pair) for pair in sorted(set(pairs))])
    assert len(counts) == kinds
    assert chi2.cdf(np.sum((counts - 20_000 / kinds) ** 2 / (20_000 / kinds)), kinds - 1) < 0.9999


def test_a_partition_does_not_show_who_is_where():
    budgets = sartor.Budgets.from_groups([(1.0, 30)], delta=1e-5)
    found = plan(budgets, teachers=5, aggregator=GNMax(noise=3.0))
    assert "array" not in repr(placing.partition(found, budgets, b"key"))
