"""How far zeroing one holder moves what is asked: by brute force, never further than a query says, and as far as that for somebody."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.random import Generator
from numpy.typing import NDArray

from sartor.individual import release
from sartor.individual.release import Query

Array = NDArray[np.float64]

CAP, HOLDERS = 3.0, 40


def zeroed(holder: int, *columns: Array) -> list[Array]:
    """The same columns with one holder at 0."""
    found = [column.copy() for column in columns]
    for column in found:
        column[holder] = 0
    return found


def figures(generator: Generator) -> tuple[Array, Array]:
    """Accounts and a column in [0, 1] with many people at the ends."""
    account = np.clip(generator.normal(1.0, 2.0, HOLDERS), 0, CAP)
    return account, np.clip(generator.normal(0.5, 0.8, HOLDERS), 0, 1)


def moved(query: Query, other: Query) -> float:
    assert query.sensitivity == other.sensitivity
    return float(np.linalg.norm(query.values - other.values))


def far(ask: Callable[[Generator, int], tuple[Query, Query]], cases: int = 400) -> float:
    """The largest move over random people, and the sensitivity that was stated: `ask` gives a query and what it is with one zeroed."""
    found = []
    for case in range(cases):
        generator = np.random.default_rng(case)
        one, other = ask(generator, int(generator.integers(HOLDERS)))
        found.append((moved(one, other), one.sensitivity))
    largest, stated = max(found)
    assert largest <= stated * (1 + 1e-12)
    return largest / stated


def test_the_sum_moves_by_at_most_the_cap() -> None:
    def ask(generator: Generator, holder: int) -> tuple[Query, Query]:
        account, _ = figures(generator)
        return release.total(account, CAP), release.total(zeroed(holder, account)[0], CAP)

    assert far(ask) == pytest.approx(1)


@pytest.mark.parametrize("edges", [[1.5], [0.5, 1.0, 2.5], [-1.0, 0.0, 3.0], [0.2, 0.2, 0.2], np.linspace(0.01, 2.99, 50)])
def test_counts_move_by_at_most_the_root_of_two(edges: Any) -> None:
    def ask(generator: Generator, holder: int) -> tuple[Query, Query]:
        account, _ = figures(generator)
        return release.counts(account, edges), release.counts(zeroed(holder, account)[0], edges)

    assert far(ask) == pytest.approx(1)


@pytest.mark.parametrize("width", [1, 2, 4])
@pytest.mark.parametrize("keeps", [True, False], ids=["keeps the cell", "loses the cell"])
def test_sums_by_cell_move_by_at_most_the_root_of_the_columns(width: int, keeps: bool) -> None:
    def ask(generator: Generator, holder: int) -> tuple[Query, Query]:
        columns = [(generator.random(HOLDERS) < 0.7).astype(float) for _ in range(width)]
        cell = generator.integers(-1, 4, HOLDERS)
        other = cell.copy()
        other[holder] = cell[holder] if keeps else -1
        return release.sums(columns, cell, 3), release.sums(zeroed(holder, *columns), other, 3)

    assert far(ask) == pytest.approx(1)


def test_moments_move_by_at_most_the_root_of_a_half() -> None:
    def ask(generator: Generator, holder: int) -> tuple[Query, Query]:
        x, y = figures(generator)[1], figures(generator)[1]
        return release.moments(x, y), release.moments(*zeroed(holder, x, y))

    assert far(ask) == pytest.approx(1)
    side = np.linspace(0, 1, 1_001)
    x, y = (axis.ravel() for axis in np.meshgrid(side, side))
    squares = (x / 2) ** 2 + (y / 2) ** 2 + (x * (x - 1)) ** 2 + (y * (y - 1)) ** 2 + (x * y - (x + y) / 2) ** 2
    assert squares.max() <= 0.5 * (1 + 1e-15)


def test_counts_are_those_of_a_loop_and_an_edge_belongs_to_the_cell_below() -> None:
    found = release.counts(np.array([0.0, 0.5, 0.5, 0.7, 1.0, 2.0]), [0.5, 1.0]).values
    assert found.tolist() == [3, 2, 1]


def test_sums_are_those_of_a_loop_and_who_has_no_cell_is_in_none() -> None:
    found = release.sums([np.array([1.0, 0.5, 0.25, 1.0]), np.ones(4)], np.array([1, -1, 1, 5]), 3)
    assert found.values.tolist() == [[0, 1.25, 0], [0, 2, 0]]


def test_variances_and_covariance_come_back_from_the_moments() -> None:
    generator = np.random.default_rng(1)
    x = generator.random(1_000)
    y = np.clip(x + generator.normal(0, 0.1, 1_000), 0, 1)
    found = release.correlation(release.moments(x, y).values / 1_000)
    assert found == pytest.approx((x.var(), y.var(), np.mean(x * y) - x.mean() * y.mean()), rel=1e-9)


def test_what_is_no_number_or_out_of_range_is_brought_into_it_without_a_word() -> None:
    given = [math.nan, math.inf, -math.inf, -1.0, 0.5, 1e308, 3.0]
    assert release.within(given, 3.0, 2.0).tolist() == [2.0, 3.0, 0.0, 0.0, 0.5, 3.0, 3.0]
