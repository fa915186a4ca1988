"""Costs: the Rényi divergence of one step of a plan at every level, in tables that are built once.

Guarantee: what the tables say of a step at a level is not below the divergence of a sampled Gaussian with the group's rate and the
    group's noise multiplier over the level, at each order.
Proof: tables are exact at some levels and linear in y = (level / noise multiplier)^2 between them, and the logarithm of the moment is
    convex in y at every order. For with R = exp(sqrt(y) X - y / 2), X normal, p = q R / (1 - q + q R) and h = a (a - 1) p^2 / 2, Itô's rule
    gives for l(y) = log E[(1 - q + q R)^a], under the law whose density is tilted by (1 - q + q R)^a: l' = E[h], which is not negative, so
    that rounding up never lowers a cost, and l'' = Var[h] + E[h (1 - p) (1 + (2 a - 3) p)], which is not negative for a >= 1.
    Groups of one rate share a table; those with more noise begin at a level further down, rounded up. Where rates are more than tables, a
    rate between those of two tables costs what lies between both on a straight line in s = log q, and l is convex in s too. For with
    f = 1 - q + q R and g = 1 - 1 / f, whose derivative in s is g (1 - g), and under the same tilted law, l' = a E[g] and
    l'' = a (a - 1) Var[g] + a E[g] (1 - E[g]). E[g] is below 1, as f is above 0; and it is not negative, so that a cost grows with the
    rate: the moment is convex in q, and at q = 0 its derivative is a E[R - 1] = 0.
Breaks if: a holder contributes a vector of norm above their level, or is drawn otherwise than by independent coins at the group's rate.

Orders: those of `rdp.ORDERS` from the best of a whole run at full clip on; none below can be anybody's best. For l' / (a - 1), which is
    a E[p^2] / 2, grows with the order: p grows with R, and a larger order tilts towards larger R. So what a larger order adds to a
    divergence grows with y and with the steps; it is most for the whole run at full clip, and even there the larger order pays.

Accuracy: a line between tables whose rates differ by the factor e^h lies above the cost by about h^2 / 2 of it, as costs grow with the
    square of the rate, and by more at orders where they grow faster. Readings of 200 budgets from 1 to 3, whose rates differ by a factor of
    2.7, are within 0.05 %; where rates lie further apart than so many tables reach, h is larger: within 0.8 % for budgets from 0.3 to 10,
    a factor of 27.

Levels: norms are rounded to a public grid, as fractions of the clip that the plan gives a holder. It is the same for everybody and known
before the run, so that which levels there are tells nothing; which one a holder is at is sensitive. `up` is for readings that must not
understate, `nearest` for estimates (as in individual accounting, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import rdp
from sartor.budgets import spendable
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.plans import Plan

Array = NDArray[np.float64]
Indices = NDArray[np.intp]


@dataclass(frozen=True)
class Levels:
    """Fractions from 1 down, `per_octave` of them to each halving, for so many `octaves`; the last level is 0, where nothing entered.

    >>> levels = Levels(per_octave=1, octaves=3)
    >>> levels.values.tolist()
    [1.0, 0.5, 0.25, 0.125, 0.0]
    >>> levels.values[levels.up([0.0, 0.01, 0.25, 0.3, 7.0])].tolist()
    [0.0, 0.125, 0.25, 0.5, 1.0]
    >>> levels.values[levels.nearest([0.0, 0.01, 0.25, 0.3, 7.0])].tolist()
    [0.0, 0.0, 0.25, 0.25, 1.0]
    """

    per_octave: int = 4096
    octaves: int = 16

    def __post_init__(self) -> None:
        if self.per_octave < 1 or self.octaves < 1:
            raise SartorError(f"a grid needs a level and an octave at least, not {self.per_octave} levels in {self.octaves} octaves.")

    @cached_property
    def values(self) -> Array:
        """The fraction of each level, descending."""
        return immutable(np.append(np.exp2(-np.arange(self.octaves * self.per_octave + 1) / self.per_octave), 0.0))

    @cached_property
    def _ascending(self) -> Array:
        return immutable(self.values[::-1])

    def __len__(self) -> int:
        return self.octaves * self.per_octave + 2

    @property
    def nothing(self) -> int:
        """The level of those of whom nothing entered."""
        return len(self) - 1

    def up(self, fractions: ArrayLike) -> Indices:
        """The lowest level that covers each fraction.

        Guarantee: no level lies below its fraction. Fractions above 1 are at 1, since gradients are clipped there; so is what is not a
            number: the engine lets nothing of such a gradient enter, but a reading does not depend on that.
        Proof: the fractions are compared with the levels themselves, so no logarithm can round to the wrong side.
        """
        return len(self) - 1 - np.searchsorted(self._ascending, _clipped(fractions))

    def nearest(self, fractions: ArrayLike) -> Indices:
        """The level nearest to each fraction, the higher of two; above 1, and of what is not a number, 1."""
        exact = _clipped(fractions)
        above = len(self) - 1 - np.searchsorted(self._ascending, exact)
        below = np.minimum(above + 1, self.nothing)
        return np.where(exact - self.values[below] < self.values[above] - exact, below, above)


def _clipped(fractions: ArrayLike) -> Array:
    found = np.asarray(fractions, float)
    if np.any(found < 0):
        raise SartorError("norms are 0 or more: a negative one is no norm.")
    return np.where(np.isnan(found), 1.0, np.minimum(found, 1.0))


MOST_RATES = 50
"""Tables that are kept at once; each takes half a second to build and some six megabytes. More rates lie between them."""

_ROWS_PER_OCTAVE = 256
_FIRST_ROWS = 512  # apart; between them rows are evaluated where a cost is not yet a straight line
_BEND = 5e-5  # share by which a straight line may lie above the cost at its middle
_APART = 0.025  # how far the logarithms of two tables' rates are, at least, where rates lie between them
_MARGIN = 2.0**-30  # for the rounding of divergences and of their sums
_NO_NOISE = 1e-50  # a noise multiplier below this is none
_REMEMBERED = 16  # tables


class Costs:
    """The tables of a plan. A step costs what `table` says at a row, or in part at the next: see `rows`.

    Tables follow from the plan and the levels alone. Groups with an infinite epsilon have none: they ask for no protection.
    """

    def __init__(self, plan: Plan, levels: Levels | None = None) -> None:
        if np.any(plan.parts.inclusion < 1):
            raise SartorError(
                "readings are not defined for plans with coins of inclusion: a stage costs as a whole there, not step by step; ask "
                "plan.spent_after(steps)."
            )
        self.plan, self.levels = plan, Levels() if levels is None else levels
        parts, delta = plan.parts, spendable(plan.delta, plan.reserve)
        used = (parts.rate > 0) & np.isfinite(parts.noise_multiplier)
        self._endless = used & (np.isinf(plan.epsilon)[parts.group] | (parts.noise_multiplier < _NO_NOISE))
        counted = np.flatnonzero(used & ~self._endless)
        rates, own = np.unique(parts.rate[counted], return_inverse=True)
        self._rates = _chosen(rates)
        sides = [(table[own], weight[own]) for table, weight in _about(rates, self._rates)]
        self._noise = np.full(len(self._rates), np.inf)  # the least of those who use a table
        ways: dict[bytes, Array] = {}  # through the run: the steps in each table
        for table_of, _ in sides:
            np.minimum.at(self._noise, table_of, parts.noise_multiplier[counted])
            steps = np.zeros((len(plan), len(self._rates)))
            np.add.at(steps, (parts.group[counted], table_of), (parts.last - parts.first)[counted])
            ways.update((row.tobytes(), row) for row in steps)
        self.orders = _orders(self._rates, self._noise, np.stack(list(ways.values())), float(delta.max()))

        self._delta = float(delta.min())
        self._fractions, self._row, self._share = _laid_out(self.levels)
        self._empty = len(self._fractions) * len(self._rates)
        self._sides = []  # of each part: the first row of its table, by how many levels it is further down, and the table's weight
        for table_of, weight in sides:
            side = np.full(len(used), self._empty), np.zeros(len(used), np.intp), np.zeros(len(used))
            side[0][counted] = len(self._fractions) * table_of
            side[1][counted] = self.levels.up(self._noise[table_of] / parts.noise_multiplier[counted])
            side[2][counted] = weight
            self._sides.append(side)

    @cached_property
    def table(self) -> Array:
        """The divergence of a step, (rows, orders); built when it is first asked for."""
        known = self.orders.tobytes()
        each = zip(self._rates.tolist(), self._noise.tolist(), strict=True)
        tables = [_remembered(rate, (least / self._fractions).tobytes(), known, self._delta) for rate, least in each]
        return immutable(np.concatenate([*tables, np.zeros((2, len(self.orders)))]))

    def rows(self, stage: int, groups: Indices, levels: NDArray[np.integer[Any]]) -> tuple[Indices, Array]:
        """The rows of `table` whose sum, with these weights, is a step of a stage for holders of these groups; few, along the first axis.

        `levels` has one entry for each holder, or a row of them for each of several times.
        """
        parts, own = self.plan.parts, np.flatnonzero(self.plan.parts.stage == stage)
        rows, weights = [], []
        for side in self._sides:
            begin, down, part = np.full(len(self.plan), self._empty), np.zeros(len(self.plan), np.intp), np.zeros(len(self.plan))
            for all_, of_part in zip((begin, down, part), side, strict=True):
                all_[parts.group[own]] = of_part[own]
            first = begin[groups]
            entered = (first < self._empty) & (levels < self.levels.nothing)
            level = np.minimum(levels + down[groups], self.levels.nothing - 1)
            row, share = np.where(entered, first + self._row[level], self._empty), np.where(entered, self._share[level], 0.0)
            rows += [row, row + 1]
            weights += [part[groups] * (1 - share), part[groups] * share]
        return np.stack(rows), np.stack(weights)

    def endless(self, steps: int) -> NDArray[np.bool_]:
        """Of each group: whether the first `steps` steps used it without a bound: public records, or a sum without noise."""
        parts = self.plan.parts
        touched = parts.group[self._endless & (parts.taken(steps) > 0)]
        return np.bincount(touched, minlength=len(self.plan)) > 0

    def __repr__(self) -> str:
        return f"Costs({self._empty} rows, {len(self.orders)} orders from {self.orders[0]:g})"


def _chosen(rates: Array) -> Array:
    """The rates that have tables: all; or, of many, some such that every other lies between two that are close, as close as can be."""
    at, apart = np.log(rates), _APART
    places = list(range(len(rates)))
    while len(places) > MOST_RATES:
        places = [0]
        while places[-1] < len(rates) - 1:
            reached = int(np.searchsorted(at, at[places[-1]] + apart, side="right")) - 1
            places.append(max(reached, places[-1] + 1))  # where the next is further off, nothing lies between
        apart *= 1.05
    return rates[places]


def _about(rates: Array, chosen: Array) -> list[tuple[Indices, Array]]:
    """Of each rate the tables about it and their weights: one, where all have their own, or the one below and the one above."""
    above = np.searchsorted(chosen, rates)
    if len(chosen) == len(rates):
        return [(above, np.ones(len(rates)))]
    below = np.maximum(above - 1, 0)
    with np.errstate(invalid="ignore"):
        share = (np.log(rates) - np.log(chosen[below])) / (np.log(chosen[above]) - np.log(chosen[below]))
    share = np.where(chosen[above] == rates, 1.0, share)
    return [(below, 1 - share), (above, share)]


def _laid_out(levels: Levels) -> tuple[Array, Indices, Array]:
    """The fractions at which a table has rows, and of each level its row and its share of the way, in squares, to the next row."""
    every = np.arange(levels.nothing)
    apart = max(1, levels.per_octave // _ROWS_PER_OCTAVE)
    fractions = levels.values[np.unique(np.append(every[::apart], every[-1]))]
    row, square = every // apart, np.append(fractions**2, 0.0)
    return fractions, row, immutable((square[row] - levels.values[:-1] ** 2) / (square[row] - square[row + 1]))


def _orders(rates: Array, noise: Array, steps: Array, delta: float) -> Array:
    """The orders that can be anybody's best; `steps` has a row for each way through the run."""
    if not len(rates):
        return rdp.ORDERS[-1:]
    gain, price = rdp.conversion_terms(rdp.ORDERS, delta)
    epsilon = steps @ rdp.sampled_gaussian(rates, noise, rdp.ORDERS) + gain - price
    return immutable(rdp.ORDERS[int(np.argmin(epsilon, axis=1).min()) :])


@lru_cache(maxsize=_REMEMBERED)
def _remembered(rate: float, noise: bytes, orders: bytes, delta: float) -> Array:
    """`_table`, of arrays as bytes: what a run needs again after a stop, or for its reading, is known by then."""
    return immutable(_table(rate, np.frombuffer(noise), np.frombuffer(orders), delta))


def _table(rate: float, noise: Array, orders: Array, delta: float) -> Array:
    """Divergences at ascending noise multipliers, (noise, orders): exact, or on a straight line in 1 / noise^2 between exact ones.

    Where a single step costs more beyond its cost at the order before than the order saves, that order is nobody's best, and any line
    will do.
    """
    y = noise**-2.0
    gain, price = rdp.conversion_terms(orders, delta)
    worth = np.append(np.inf, -np.diff(gain - price))  # what each order saves over the one before
    first = np.unique(np.append(np.arange(0, len(y), _FIRST_ROWS), len(y) - 1))
    begun = rdp.sampled_gaussian(rate, noise[first], orders)
    out = np.zeros((len(y), len(orders)))
    for j, order in enumerate(orders):
        column = np.full(len(y), np.nan)
        column[first] = begun[:, j]
        most = out[:, j - 1] + worth[j]
        left, right = first[:-1], first[1:]
        while len(left):
            open_ = (right - left > 1) & (column[right] <= most[right])
            left, right = left[open_], right[open_]
            middle = (left + right) // 2
            column[middle] = rdp.sampled_gaussian(rate, noise[middle], order)[:, 0]
            share = (y[left] - y[middle]) / (y[left] - y[right])
            line = (1 - share) * column[left] + share * column[right]
            bent = line > (1 + _BEND) * column[middle]
            left, right = np.append(left[bent], middle[bent]), np.append(middle[bent], right[bent])
        known = np.flatnonzero(~np.isnan(column))
        out[:, j] = np.interp(-y, -y[known], column[known])
    return out * (1 + _MARGIN)
