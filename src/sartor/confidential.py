"""What may be shown of groups: rows for groups of ten holders and more, ranges for smaller ones.

A table, a repr, an error or a default JSON document must not show one holder's budget. So consecutive small groups are merged until
at least ten holders stand in a row, and a merged row shows ranges, rounded outward to two digits, of everything that would give a
budget away. A population of fewer than ten holders is one row.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

FEWEST = 10
"""Holders that a group must have to be shown by itself."""

_MERGED_ROWS = 10
_TABLE_ROWS = 20


def rows(holders: NDArray[np.int64], most: int | None = None) -> list[slice]:
    """Runs of groups, given in the order of their budgets, that may each be shown as one row.

    Large groups stay by themselves; small ones are merged with their neighbours into at most about ten rows. `most` merges further, for
    tables that people read.
    """
    count = len(holders)
    small = np.asarray(holders) < FEWEST
    size = max(FEWEST, math.ceil(int(holders[small].sum()) / _MERGED_ROWS)) if small.any() else FEWEST
    found: list[slice] = []
    begin, held = 0, 0
    for i in range(count):
        if not small[i] and held == 0:
            found.append(slice(i, i + 1))
            begin = i + 1
            continue
        held += int(holders[i])
        run_ends = i + 1 == count or not small[i + 1]
        if held >= size or (run_ends and held >= FEWEST):
            found.append(slice(begin, i + 1))
            begin, held = i + 1, 0
    if held:  # too few remain at the end: they join the row before
        before = found.pop() if found else slice(0, 0)
        found.append(slice(before.start, count))
    if most is not None and len(found) > most:
        found = _coarser(found, holders, most)
    return found


def _coarser(runs: Sequence[slice], holders: NDArray[np.int64], most: int) -> list[slice]:
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
    """A range widened to the next two-digit numbers, so that its ends are nobody's value."""
    return _beyond(low, -1), _beyond(high, 1)


def _beyond(value: float, direction: int) -> float:
    if value == 0 or not math.isfinite(value):
        return value
    unit = 10.0 ** (math.floor(math.log10(abs(value))) - 1)
    steps = round(value / unit, 6)
    steps = math.floor(steps) + 1 if direction > 0 else math.ceil(steps) - 1
    return float(f"{steps * unit:.2g}") if steps else 0.0


def shown(values: NDArray[np.float64], run: slice, holders: NDArray[np.int64]) -> float | tuple[float, float]:
    """The value of a row: a number where ten holders or more share it, otherwise a range."""
    part = np.asarray(values)[run]
    low, high = float(part.min()), float(part.max())
    if low == high and int(holders[run].sum()) >= FEWEST:
        return low
    return outward(low, high)


def text(values: NDArray[np.float64], run: slice, holders: NDArray[np.int64], form: str = ".4g") -> str:
    """One cell of a table: the value of a group, or the range of a merged row."""
    value = shown(values, run, holders)
    if isinstance(value, tuple):
        return f"{value[0]:.2g} to {value[1]:.2g}"
    return format(value, form)


def describe(epsilon: NDArray[np.float64], delta: NDArray[np.float64], holders: NDArray[np.int64]) -> str:
    """Groups in one line, as a repr shows them."""
    parts = [
        f"{int(holders[run].sum())} at epsilon {text(epsilon, run, holders, 'g')}, delta {text(delta, run, holders, 'g')}"
        for run in rows(holders, _TABLE_ROWS)
    ]
    return "; ".join(parts)


def name_group(epsilon: float, holders: int) -> str:
    """A group as an error may name it."""
    if holders < FEWEST:
        return f"a group of fewer than {FEWEST} holders"
    return f"the group at epsilon {epsilon:g}"
