"""Levels: a public grid of norms, as fractions of the clip that the plan gives a holder, to which norms are rounded.

The grid is the same for everybody and known before the run, so that which levels there are tells nothing; which one a holder is at is
sensitive. `up` is for readings that must not understate, `nearest` for estimates (as in individual accounting, algorithm 2).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.errors import SartorError
from sartor.immutable import immutable

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
