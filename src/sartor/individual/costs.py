"""Costs: the Rényi divergence of one step of a plan at every level, in tables that are built once.

Guarantee: what the tables say of a step at a level is not below the divergence of a sampled Gaussian with the group's rate and the
    group's noise multiplier over the level, at each order.
Proof: tables are exact at some levels and linear in y = (level / noise multiplier)^2 between them, and the logarithm of the moment is
    convex in y at every order. For with R = exp(sqrt(y) X - y / 2), X normal, p = q R / (1 - q + q R) and h = a (a - 1) p^2 / 2, Itô's rule
    gives for l(y) = log E[(1 - q + q R)^a], under the law whose density is tilted by (1 - q + q R)^a: l' = E[h], which is not negative, so
    that rounding up never lowers a cost, and l'' = Var[h] + E[h (1 - p) (1 + (2 a - 3) p)], which is not negative for a >= 1.
    Groups of one rate share a table; those with more noise begin at a level further down, rounded up.
Breaks if: a holder contributes a vector of norm above their level, or is drawn otherwise than by independent coins at the group's rate.

Orders: those of `rdp.ORDERS` from the best of a whole run at full clip on; none below can be anybody's best. For l' / (a - 1), which is
    a E[p^2] / 2, grows with the order: p grows with R, and a larger order tilts towards larger R. So what a larger order adds to a
    divergence grows with y and with the steps; it is most for the whole run at full clip, and even there the larger order pays.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import rdp
from sartor.budgets import spendable
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.individual.levels import Indices, Levels
from sartor.plans import Plan

Array = NDArray[np.float64]

MOST_RATES = 50
"""Tables that are kept at once; each takes half a second to build and some six megabytes."""

_ROWS_PER_OCTAVE = 256
_FIRST_ROWS = 512  # apart; between them rows are evaluated where a cost is not yet a straight line
_BEND = 5e-5  # share by which a straight line may lie above the cost at its middle
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
        rates, table_of = np.unique(parts.rate[counted], return_inverse=True)
        if len(rates) > MOST_RATES:
            raise SartorError(
                f"readings keep a table for each rate, and this plan has {len(rates)} of them, more than {MOST_RATES}; let people choose "
                'from a policy\'s levels, or plan by the scheme "scale", which has one rate.'
            )
        noise = np.full(len(rates), np.inf)  # the least at each rate
        np.minimum.at(noise, table_of, parts.noise_multiplier[counted])
        steps = np.zeros((len(plan), len(rates)))
        np.add.at(steps, (parts.group[counted], table_of), (parts.last - parts.first)[counted])
        self.orders = _orders(rates, noise, np.unique(steps, axis=0), float(delta.max()))

        fractions, self._row, self._share = _laid_out(self.levels)
        known, strictest = self.orders.tobytes(), float(delta.min())
        each = zip(rates.tolist(), noise.tolist(), strict=True)
        tables = [_remembered(rate, (least / fractions).tobytes(), known, strictest) for rate, least in each]
        self.table: Array = immutable(np.concatenate([*tables, np.zeros((2, len(self.orders)))]))
        self._empty = len(self.table) - 2
        self._begin = np.full(len(used), self._empty)  # of each part: its first row
        self._down = np.zeros(len(used), np.intp)  # and by how many levels it is further down
        self._begin[counted] = len(fractions) * table_of
        self._down[counted] = self.levels.up(noise[table_of] / parts.noise_multiplier[counted])

    def rows(self, stage: int, groups: Indices, levels: NDArray[np.integer[Any]]) -> tuple[Indices, Array]:
        """Where in `table` a step of a stage is, for holders of these groups: at a row, and by this share of the way at the next.

        `levels` has one entry for each holder, or a row of them for each of several times.
        """
        parts, own = self.plan.parts, np.flatnonzero(self.plan.parts.stage == stage)
        begin, down = np.full(len(self.plan), self._empty), np.zeros(len(self.plan), np.intp)
        begin[parts.group[own]], down[parts.group[own]] = self._begin[own], self._down[own]
        first = begin[groups]
        entered = (first < self._empty) & (levels < self.levels.nothing)
        level = np.minimum(levels + down[groups], self.levels.nothing - 1)
        return np.where(entered, first + self._row[level], self._empty), np.where(entered, self._share[level], 0.0)

    def endless(self, steps: int) -> NDArray[np.bool_]:
        """Of each group: whether the first `steps` steps used it without a bound: public records, or a sum without noise."""
        parts = self.plan.parts
        touched = parts.group[self._endless & (parts.taken(steps) > 0)]
        return np.bincount(touched, minlength=len(self.plan)) > 0

    def __repr__(self) -> str:
        return f"Costs({len(self.table)} rows, {len(self.orders)} orders from {self.orders[0]:g})"


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
