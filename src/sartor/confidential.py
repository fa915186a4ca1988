"""What may be shown of groups: rows for groups of ten holders and more, ranges for smaller ones.

A table, a repr, an error or a default JSON document must not show one holder's budget. So consecutive small groups are merged until
at least ten holders stand in a row, and a merged row shows ranges, widened to 1, 2, 5, 10 and so on, of everything that would give a
budget away. A population of fewer than ten holders is one row.
"""

from __future__ import annotations

import itertools
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

    Large groups stay by themselves and small ones are merged with small neighbours, into at most about ten rows; only where those are too
    few do they join a large neighbour. `most` merges further, for tables that people read.
    """
    small = np.asarray(holders) < FEWEST
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


def _chunks(holders: NDArray[np.int64], begin: int, end: int, size: int) -> list[slice]:
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


def hidden(run: slice, holders: NDArray[np.int64]) -> bool:
    """Whether a row stands for groups that may not be shown one by one."""
    return bool(np.any(holders[run] < FEWEST)) or run.stop - run.start > 1


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


def shown(
    values: NDArray[np.float64], run: slice, holders: NDArray[np.int64], secret: NDArray[np.float64] | None = None
) -> float | tuple[float, float]:
    """The value of a row: a number where ten holders or more share it, otherwise a range.

    `secret` are values of small groups that must not be recognisable elsewhere either: what lies within 1 % of one is a range too.
    """
    part = np.asarray(values)[run]
    low, high = float(part.min()), float(part.max())
    given_away = secret is not None and low > 0 and bool(np.any(np.abs(secret / low - 1) < 0.01))
    if low == high and int(holders[run].sum()) >= FEWEST and not given_away:
        return low
    return outward(low, high)


def text(
    values: NDArray[np.float64],
    run: slice,
    holders: NDArray[np.int64],
    form: str = ".4g",
    secret: NDArray[np.float64] | None = None,
) -> str:
    """One cell of a table: the value of a group, or the range of a merged row."""
    value = shown(values, run, holders, secret)
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
