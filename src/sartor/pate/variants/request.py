"""What a variant is given and what it gives back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Request:
    """Groups, strictest first, and what is asked of them.

    Sensitivities are to follow `value`: the epsilons, or with `tune` the square roots of what budgets allow. `price` is what an answered
    query costs at sensitivity 1.
    """

    holders: Counts
    value: Array
    teachers: int
    price: float
    tune: bool
    precision: float
    power: float
    most_teachers: int


@dataclass(frozen=True, repr=False)
class Treatment:
    """The teachers and how they grew by `scale`; of each group the arrays that `PatePlan` names, or one number for all groups."""

    teachers: int
    duplicates: int | Counts
    begin: int | Counts
    end: int | Counts
    weight: float | Array
    taking_part: int | Counts
    scale: float = 1.0
