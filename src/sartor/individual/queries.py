"""What is asked of people's figures before there is any noise: sums over holders, and how far zeroing one holder can move each of them.

Everything here is sensitive, and leaves through `release` alone, which adds noise in proportion to the sensitivity that a query carries.

Guarantee: between two populations of the same, public size that differ by zeroing one holder, the values of a query differ by at most its
    sensitivity in the Euclidean norm, whatever the figures are.
Proof: every query is a sum over holders of a vector that follows from one holder's figures alone. A zeroed holder has account 0, has
    nothing right, loss 0 and no category, and keeps their budget. So zeroing moves the sum by the distance of one holder's vector from that
    of a zeroed one, which is bounded at each query.
Breaks if: other holders' figures move with the zeroed one's; figures come here that were not brought into their ranges by `within`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

Array = NDArray[np.float64]


@dataclass(frozen=True, repr=False, eq=False)
class Query:
    """Values that are private, and their sensitivity, which is public."""

    values: Array
    sensitivity: float


def within(values: ArrayLike, most: float, unknown: float) -> Array:
    """Figures brought into [0, most], each by itself; `unknown` stands for what is no number.

    Nothing is refused: an error that follows from one holder's figure would be a release.
    """
    return np.asarray(np.clip(np.nan_to_num(np.asarray(values, float), nan=unknown, posinf=most, neginf=0.0), 0.0, most), float)


def total(account: Array, cap: float) -> Query:
    """The sum of accounts in [0, cap].

    Sensitivity: cap, since a zeroed holder adds 0.
    """
    return Query(np.array([account.sum()]), cap)


def counts(account: Array, edges: ArrayLike) -> Query:
    """How many accounts lie up to the first edge, between each edge and the next (which belongs to the cell below it), and above the last.

    Sensitivity: sqrt(2), however many edges there are. A holder is in one cell and, zeroed, in that of 0: one count falls by 1 and
        another rises by 1, or nothing moves.
    """
    inner = np.asarray(edges, float)
    found = np.bincount(np.searchsorted(inner, account, side="left"), minlength=inner.size + 1)
    return Query(found.astype(float), math.sqrt(2))


def sums(columns: Sequence[Array], cell: NDArray[np.intp], cells: int) -> Query:
    """The sums of columns in [0, 1] over the holders of each cell, (columns, cells); a holder whose cell is none of them is in none.

    Sensitivity: sqrt(columns). A holder adds one vector with entries in [0, 1] to one cell, and zeroed adds 0, whether they keep their cell
        (a budget's) or lose it (a category, which is their own).
    """
    inside = (cell >= 0) & (cell < cells)
    values = [np.bincount(cell[inside], weights=column[inside], minlength=cells) for column in columns]
    return Query(np.array(values, float), math.sqrt(len(columns)))


def moments(x: Array, y: Array) -> Query:
    """Sums of x/2, y/2, x^2 - x, y^2 - y and xy - (x + y)/2, for x and y in [0, 1]: what a correlation is made of.

    Sensitivity: sqrt(1/2); a zeroed holder, at x = y = 0, adds 0. As x (1 - x) <= 1/4, x^2/4 + x^2 (1 - x)^2 <= x/4, and so for y.
        h = (x + y)/2 - xy lies in [0, 1/2], so h^2 <= h/2. The squares add up to at most (x + y)/4 + (x + y)/4 - xy/2 =
        (1 - (1 - x)(1 - y))/2 <= 1/2, which is reached at x = y = 1. Squares and products as they are would have sqrt(5).
    """
    parts = (x / 2, y / 2, x * (x - 1), y * (y - 1), x * y - (x + y) / 2)
    return Query(np.array([part.sum() for part in parts]), math.sqrt(0.5))


def correlation(means: Array) -> tuple[float, float, float]:
    """Variance of x, variance of y and their covariance, from `moments` over the number of holders."""
    x, y = 2 * means[:2]
    return float(means[2] + x - x * x), float(means[3] + y - y * y), float(means[4] + (x + y) / 2 - x * y)


def correlation_moves(means: Array) -> Array:
    """How far, to first order, noise of deviation 1 on each of these means moves the two variances and the covariance, as deviations."""
    x, y = np.clip(2 * means[:2], 0.0, 1.0)
    return np.sqrt([1 + 4 * (1 - 2 * x) ** 2, 1 + 4 * (1 - 2 * y) ** 2, 1 + (1 - 2 * x) ** 2 + (1 - 2 * y) ** 2])
