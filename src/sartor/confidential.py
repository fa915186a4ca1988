"""What may be shown of groups: one view, which every table, document, page, repr and error asks.

Guarantee: of a group of fewer than ten holders nothing is shown but ranges, widened to 1, 2, 5, 10 and so on, of rows in which ten
    holders or more stand together (all of them, in a population of fewer); nor is a figure of larger groups that is a small group's too.
Proof: consecutive small groups are merged, with a neighbour if they must be, until a row has ten holders, and `View.value` gives a number
    only where all of a row share it. A spend follows from an exposure and a budget: a merged row shows the most that anyone in it
    allows and not what was spent, and a row by itself shows its spend as a range where a small group shares its exposure (as under uniform
    treatment, where everyone spends what the strictest allow) or where its digits would tell everybody's budgets (as in PATE).
Breaks if: figures of groups are shown that did not come from a view; the arrays of a plan, its pickle or its sensitive document are shown.

Public by design, and not hidden here, is the mechanism itself, which comes with every release: noise and its multiplier, steps, batch,
clip, a scheme's options, rates and clips of groups that stand alone, PATE's noise, teachers and number of labels. It is made from
everybody's budgets, so whoever knows all of them but one can solve for the last, and under uniform treatment it tells the strictest: where
budgets are themselves secret, use policy levels or `Budgets.deniable`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.numbers import to_json_number

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Shown = float | tuple[float, float]
"""A figure as it may be shown: a number, or the ends of a range."""

FEWEST = 10
"""Holders that a group must have to be shown by itself."""

_MERGED_ROWS = 10
_TABLE_ROWS = 20


def are_few(holders: ArrayLike) -> NDArray[np.bool_]:
    """Which groups are too small to be shown by themselves."""
    return np.asarray(holders) < FEWEST


def rows(holders: Counts, most: int | None = None) -> list[slice]:
    """Runs of groups, given in the order of their budgets, that may each be shown as one row.

    Large groups stay by themselves and small ones are merged with small neighbours, into at most about ten rows; only where those are too
    few do they join a large neighbour. `most` merges further, for tables that people read.
    """
    small = are_few(holders)
    size = max(FEWEST, math.ceil(int(holders[small].sum()) / _MERGED_ROWS))
    edges = [0, *(np.flatnonzero(small[1:] != small[:-1]) + 1).tolist(), len(small)]
    found: list[slice] = []
    for begin, end in itertools.pairwise(edges):
        if not small[begin]:
            found.extend(slice(i, i + 1) for i in range(begin, end))
        elif int(holders[begin:end].sum()) >= FEWEST:
            found.extend(_chunks(holders, begin, end, size))
        elif found:
            found[-1] = slice(found[-1].start, end)
    # too few at the very beginning join what follows, and too few altogether are one row
    found[:1] = [slice(0, found[0].stop if found else len(small))]
    return _coarser(found, holders, most) if most is not None and len(found) > most else found


def _chunks(holders: Counts, begin: int, end: int, size: int) -> list[slice]:
    """A run of small groups cut into rows of about `size` holders; what is left over joins the last."""
    total = np.cumsum(holders[begin:end])
    cuts = [begin]
    while cuts[-1] < end:
        held = int(total[cuts[-1] - begin - 1]) if cuts[-1] > begin else 0
        cut = begin + int(np.searchsorted(total, held + size)) + 1
        if cut >= end or int(total[-1] - total[cut - begin - 1]) < FEWEST:
            cut = end
        cuts.append(cut)
    return [slice(a, b) for a, b in itertools.pairwise(cuts)]


def _coarser(runs: Sequence[slice], holders: Counts, most: int) -> list[slice]:
    total, target = int(holders.sum()), math.ceil(int(holders.sum()) / most)
    merged: list[slice] = []
    start, held = runs[0].start, 0
    for run in runs:
        held += int(holders[run].sum())
        if held >= target or run is runs[-1]:
            merged.append(slice(start, run.stop))
            start, held = run.stop, 0
    assert sum(int(holders[run].sum()) for run in merged) == total
    return merged


def outward(low: float, high: float) -> tuple[float, float]:
    """A range widened to the next of 1, 2, 5, 10, 20, 50 and so on, so that its ends tell little of anybody's value."""
    return _beyond(low, -1), _beyond(high, 1)


def _beyond(value: float, direction: int) -> float:
    if value <= 0 or not math.isfinite(value):
        return value
    exponent = math.floor(math.log10(value))
    ladder = [digit * 10.0**power for power in (exponent - 1, exponent, exponent + 1) for digit in (1, 2, 5)]
    if direction > 0:
        return float(f"{min(step for step in ladder if step > value * (1 + 1e-9)):.1g}")
    return float(f"{max(step for step in ladder if step < value * (1 - 1e-9)):.1g}")


@dataclass(frozen=True, repr=False, eq=False)
class View:
    """The groups of a plan as anybody may see them. Arrays have one entry per group, in the order of the budgets.

    `own` says of each group whether its spend is its own, so that it tells nothing of a small group; without it, no spend is taken to be.
    """

    epsilon: Array
    delta: Array
    holders: Counts
    own: NDArray[np.bool_] | None = None

    def rows(self, most: int | None = None) -> list[slice]:
        """Runs of groups that may each be shown as one row, at most so many."""
        return rows(self.holders, most)

    @cached_property
    def merged(self) -> bool:
        """Whether some groups may not be shown one by one."""
        return any(self.hides(row) for row in self.rows())

    def hides(self, row: slice) -> bool:
        """Whether a row stands for groups that may not be shown one by one."""
        return bool(are_few(self.holders[row]).any()) or row.stop - row.start > 1

    def shows_spent(self, row: slice) -> bool:
        """Whether the spend of a row may be shown as a number."""
        return not self.hides(row) and (not self.merged or (self.own is not None and bool(self.own[row].all())))

    def people(self, row: slice) -> int:
        """Holders in a row."""
        return int(self.holders[row].sum())

    def count(self, of: NDArray[np.bool_]) -> str:
        """How many holders are in some of the groups: a number where no group is small, otherwise a range, from which none follows."""
        number, everybody = int(self.holders[of].sum()), int(self.holders.sum())
        if are_few(number):
            return f"fewer than {FEWEST} holders"
        if not self.merged:
            return f"{int(of.sum())} of {len(of)} groups, with {number} of {everybody} holders,"
        low, high = outward(number, number)
        return f"{max(low, FEWEST):.0f} to {min(high, everybody):.0f} of {everybody} holders"

    def value(self, values: ArrayLike, row: slice) -> Shown:
        """A figure of the groups, for a row: a number where ten holders or more share it, otherwise a range."""
        part = np.asarray(values, float)[row]
        low, high = float(part.min()), float(part.max())
        return low if low == high and self.people(row) >= FEWEST else outward(low, high)

    def coarse(self, values: ArrayLike) -> Array:
        """Figures of the groups with one digit where some groups are merged: with more digits they could be solved for their budgets."""
        exact = np.asarray(values, float)
        return np.array([float(f"{value:.1g}") for value in exact.ravel()]).reshape(exact.shape) if self.merged else exact

    def spent(self, values: ArrayLike, row: slice) -> Shown:
        """What the groups have spent, for a row; see `spend_beside`."""
        part = np.asarray(values, float)[row]
        ends = (float(part.min()), float(part.max()))
        return spend_beside(self.value(self.epsilon, row), ends, merged=self.hides(row), own=self.shows_spent(row))

    def above(self, value: float) -> float:
        """An upper figure that is everybody's; with some groups merged, the next of 1, 2, 5, 10 and so on above it."""
        return outward(value, value)[1] if self.merged else value

    def __repr__(self) -> str:
        parts = [
            f"{self.people(row)} at epsilon {text(self.value(self.epsilon, row), 'g')}, delta {text(self.value(self.delta, row), 'g')}"
            for row in self.rows(_TABLE_ROWS)
        ]
        return "; ".join(parts)


def spend_beside(budget: Shown, spent: tuple[float, float], *, merged: bool, own: bool) -> Shown:
    """The spend of a row, given the ends of what its groups spent, as it may stand beside the row's budget.

    A merged row shows from nothing up to what is allowed in it: nobody spends more, and less would tell a budget. A row by itself shows its
    spend if it is its `own`, and otherwise a range around it, which ends at the row's budget.
    """
    low, high = spent
    if own or high == 0 or math.isinf(low):
        return high
    if merged:
        most = budget[1] if isinstance(budget, tuple) else budget
        return 0.0, most if high <= most else outward(high, high)[1]
    low, most = outward(low, high)
    return low, min(most, budget) if isinstance(budget, float) and high <= budget else most


def text(value: Any, form: str = ".4g") -> str:
    """A figure as a cell of a table shows it, from a view or from a document."""
    if isinstance(value, tuple | list):
        return " to ".join(text(end) for end in value)
    if isinstance(value, str):
        return value
    return f"{value:,}" if isinstance(value, int) else format(value, form)


def to_json(value: Shown) -> Any:
    """A figure as a document shows it."""
    return [to_json_number(end) for end in value] if isinstance(value, tuple) else to_json_number(value)


def lent(holders: int, records: int | None) -> str:
    """How many people there are, and how much they lent, if that is known.

    >>> lent(71_518, 101_766)
    '71,518 holders (101,766 records)'
    """
    return f"{holders:,} holders" + ("" if records is None else f" ({records:,} records)")


def name_group(epsilon: float, holders: int) -> str:
    """A group as an error may name it."""
    if are_few(holders):
        return f"a group of fewer than {FEWEST} holders"
    return f"the group at epsilon {epsilon:g}"
