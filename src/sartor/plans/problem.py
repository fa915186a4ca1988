"""The schemes by name. A scheme turns a `Problem` into `Parameters`, or a schedule of rounds; the plan is built and checked around it.

Public records are taken out before a scheme sees the groups and put back afterwards, so no scheme has a special case for them: by default
they count as members of the most open finite group, with caps of the caller's they take the rate and clip that the caps say.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.errors import SartorError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, repr=False)
class Problem:
    """Finite groups and what is asked of them; epsilon and delta are what may be spent.

    `weight` are holders, for the mean rate and mean clip, with public records counted in the most open group unless they have caps.
    `mean_rate` is the weighted mean of the rates that gives the expected batch.
    """

    epsilon: Array
    delta: Array
    holders: Counts
    weight: Array
    mean_rate: float
    steps: int
    batch: float
    accountant: str

    def name(self, group: int) -> str:
        """A group as an error may name it."""
        return confidential.name_group(float(self.epsilon[group]), int(self.holders[group]))


@dataclass(frozen=True, repr=False)
class Parameters:
    """Of each group: its rate, its noise multiplier (noise over the group's clip), and the steps it takes part in (all, unless given)."""

    rate: Array
    noise_multiplier: Array
    first: Counts | None = None
    last: Counts | None = None


class OneRound(Protocol):
    """A stage with one rate, noise and clip for all, and of each group the probability of taking part in it."""

    @property
    def steps(self) -> int:
        """How many it has."""

    @property
    def rate(self) -> float:
        """Of those who take part."""

    @property
    def noise_multiplier(self) -> float:
        """Noise over the plan's clip."""

    @property
    def inclusion(self) -> Array:
        """By group."""


@dataclass(frozen=True, repr=False)
class Scheduled:
    """A schedule of rounds, and what the plan is to say of it beside the options that were given."""

    rounds: Sequence[OneRound]
    options: Mapping[str, Any]


def everyone(value: float, like: Array) -> Array:
    """One value for every group."""
    return np.full(len(like), float(value))


Solver = Callable[..., Parameters | Scheduled]
_S = TypeVar("_S", bound=Solver)


@dataclass(frozen=True)
class Scheme:
    """A way of turning budgets into parameters, and the options that it takes."""

    name: str
    solve: Solver
    options: tuple[str, ...]


_SCHEMES: dict[str, Scheme] = {}


def register(name: str, *, options: tuple[str, ...] = ()) -> Callable[[_S], _S]:
    """Make a scheme known under a name."""

    def keep(solve: _S) -> _S:
        _SCHEMES[name] = Scheme(name, solve, options)
        return solve

    return keep


def schemes() -> tuple[str, ...]:
    """The names of all schemes."""
    return tuple(sorted(_SCHEMES))


def find(name: str) -> Scheme:
    """The scheme of this name."""
    if name not in _SCHEMES:
        raise SartorError(f'there is no scheme "{name}"; there are {", ".join(schemes())}.')
    return _SCHEMES[name]
