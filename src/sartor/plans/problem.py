"""What a scheme is given and what it gives back.

Public records are taken out before a scheme sees the groups and put back afterwards, so no scheme has a special case for them: by default
they count as members of the most open finite group, with caps of the caller's they take the rate and clip that the caps say.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sartor import confidential

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
