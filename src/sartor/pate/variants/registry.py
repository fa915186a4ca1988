"""The variants by name. A variant turns a `Request` into a `Treatment` of each group; the plan is built and checked around it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

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


Solver = Callable[[Request], Treatment]


@dataclass(frozen=True)
class Variant:
    """A way to treat people by their budgets, and what may differ between them under it.

    Under `duplicates` people are taught to several teachers. Under `apart` a group's teachers are its own: their votes may weigh other than
    one, and voting may go on without them. Under `rests` teachers take turns, so each of them has an account of its own.
    """

    name: str
    solve: Solver
    duplicates: bool
    apart: bool
    rests: bool


_VARIANTS: dict[str, Variant] = {}


def register(name: str, *, duplicates: bool = False, apart: bool = False, rests: bool = False) -> Callable[[Solver], Solver]:
    """Make a variant known under a name."""

    def keep(solve: Solver) -> Solver:
        _VARIANTS[name] = Variant(name, solve, duplicates, apart, rests)
        return solve

    return keep


def variants() -> tuple[str, ...]:
    """The names of all variants."""
    return tuple(sorted(_VARIANTS))


def find(name: str) -> Variant:
    """The variant of this name."""
    if name not in _VARIANTS:
        raise SartorError(f'a variant is one of {", ".join(variants())}, not "{name}".')
    return _VARIANTS[name]
