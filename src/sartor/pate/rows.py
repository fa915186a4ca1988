"""The rows of an account: one for each group, or one for each teacher where teachers take turns.

Whoever shares a row undergoes the same: members of a group, or the people of one teacher. A group spends what its worst row does.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sartor.pate.plan import PatePlan

Array = NDArray[np.float64]


def row_count(plan: PatePlan) -> int:
    """How many rows an account under a plan has."""
    return plan.teachers if plan.rests else len(plan)


def per_row(plan: PatePlan, values: Array) -> Array:
    """A figure of each group as a figure of each row; where groups share a teacher, the strictest of theirs."""
    if not plan.rests:
        return values
    found = np.full(plan.teachers, np.inf)
    for group in range(len(plan)):
        part = slice(int(plan.begin[group]), int(plan.end[group]))
        found[part] = np.minimum(found[part], values[group])
    return found


def rows_of(plan: PatePlan) -> list[slice]:
    """The rows that are each group's."""
    if not plan.rests:
        return [slice(group, group + 1) for group in range(len(plan))]
    return [slice(int(begin), int(end)) for begin, end in zip(plan.begin, plan.end, strict=True)]


def sensitivities(plan: PatePlan) -> Array:
    """For each row how many votes one of its people moves at most, in a query that they take part in."""
    return plan.weights if plan.rests else plan.sensitivity
