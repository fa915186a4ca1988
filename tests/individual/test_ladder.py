"""Rungs and units: whole numbers that nobody overdraws, whatever norms an adversary chooses."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from sartor.individual.ladder import climb, fractions
from sartor.plans import Filter

_COSTS = st.lists(st.integers(1, 40), min_size=1, max_size=6).map(sorted)


@st.composite
def filters(draw: st.DrawFn) -> Filter:
    """Filters of few groups, each with rungs, costs and units of its own."""
    groups, count = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    rungs, costs, units = [], [], []
    for _ in range(groups):
        below = draw(st.lists(st.floats(0.01, 0.99), min_size=count - 1, max_size=count - 1, unique=True))
        rungs.append([*sorted(below), 1.0])
        costs.append(sorted(draw(st.lists(st.integers(1, 40), min_size=count, max_size=count))))
        units.append(draw(st.integers(0, 200)))
    return Filter("ladder", 10, 100, rungs, costs, units)


_NORM = st.one_of(st.floats(0, 3), st.sampled_from([0.0, 1.0, np.inf, np.nan, 1e-300]))


@given(filters(), st.data())
def test_nobody_uses_a_unit_they_do_not_have_and_none_rests_while_a_rung_fits(filter: Filter, data: st.DataObject) -> None:
    people = 4
    group = np.array([data.draw(st.integers(0, len(filter) - 1)) for _ in range(people)])
    left = filter.units[group].copy()
    used = np.zeros(people, np.int64)
    for _ in range(12):
        before = left.copy()
        # the adversary sees what is left, which follows from past norms, and chooses norms by it
        fraction = np.array([data.draw(_NORM) if units % 3 else data.draw(st.floats(0, 1)) for units in before.tolist()])
        rung, left = climb(filter, group, fraction, before)
        used += before - left
        for i in range(people):
            costs, rungs = filter.costs[group[i]], filter.rungs[group[i]]
            affordable = [k + 1 for k in range(len(costs)) if costs[k] <= before[i]]
            covering = [k + 1 for k in range(len(costs)) if fraction[i] <= rungs[k]] or [len(costs)]
            assert rung[i] == min(covering[0], max(affordable, default=0))
            assert before[i] - left[i] == (costs[rung[i] - 1] if rung[i] else 0)
            assert left[i] >= 0
            assert rung[i] > 0 or before[i] < costs[0]
    assert np.all(used <= filter.units[group])


def test_each_holder_is_charged_by_their_own_group() -> None:
    filter = Filter("ladder", 10, 100, rungs=[[0.5, 1.0], [0.25, 1.0]], costs=[[1, 4], [2, 9]], units=[8, 20])
    group, fraction = np.array([0, 1, 1, 0]), np.array([0.4, 0.4, 0.2, 0.9])
    rung, left = climb(filter, group, fraction, np.array([8, 20, 20, 8]))
    assert rung.tolist() == [1, 2, 1, 2]
    assert left.tolist() == [7, 11, 18, 4]
    assert fractions(filter, group, rung).tolist() == [0.5, 1.0, 0.25, 1.0]
    assert fractions(filter, group, np.zeros(4, np.int64)).tolist() == [0.0] * 4


@given(filters(), st.integers(0, 10**6))
def test_nobodys_rung_follows_others(filter: Filter, seed: int) -> None:
    random = np.random.default_rng(seed)
    group = random.integers(0, len(filter), 30)
    fraction: NDArray[np.float64] = random.random(30) * 1.2
    left = random.integers(0, 60, 30)
    together = climb(filter, group, fraction, left)
    for i in range(0, 30, 7):
        alone = climb(filter, group[i : i + 1], fraction[i : i + 1], left[i : i + 1])
        assert alone[0][0] == together[0][i]
        assert alone[1][0] == together[1][i]
