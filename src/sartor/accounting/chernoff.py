"""Chernoff's bound on composed losses: from moments alone, before anything is composed.

It says where a composition has to be looked at closely (its tilt), and bounds it where no closer look is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sartor.accounting import losses
from sartor.accounting.losses import LossDistribution

Parts = Sequence[tuple[LossDistribution, int]]
"""Losses of steps in one direction, each with how often it occurs."""

_MOST_TILTS = 30
_TILTS = np.geomspace(1e-7, 1e7, 140)


def best_tilt(parts: Parts, grid: float, delta: float, tilt: float) -> float:
    """Where the Chernoff bound on epsilon is smallest."""
    bound = {tilt: (losses.cumulant(parts, grid, tilt) - np.log(delta)) / tilt}
    for factor in (1.5, 1 / 1.5):
        best = min(bound, key=lambda t: bound[t])
        for _ in range(_MOST_TILTS):
            trial = best * factor
            bound[trial] = (losses.cumulant(parts, grid, trial) - np.log(delta)) / trial
            if bound[trial] >= bound[best]:
                break
            best = trial
    return min(bound, key=lambda t: bound[t])


@dataclass(frozen=True, eq=False)
class Chernoff:
    """Losses of steps in both directions, from whose moments the composition's epsilon and delta are bounded; `lost` is its infinite mass.

    Proof: the divergence at epsilon is at most the probability of a larger loss, which is `lost` and Markov's bound on exp(t * loss) at
    any t > 0.
    """

    grid: float
    ways: tuple[Parts, ...]
    lost: float

    @classmethod
    def of(cls, grid: float, ways: Sequence[Parts]) -> Chernoff:
        """The bound on these losses."""
        kept = [sum(count * float(np.log1p(-loss.infinite)) for loss, count in parts) for parts in ways]
        return cls(grid, tuple(ways), -float(np.expm1(min(kept))))

    def epsilon(self, delta: float) -> tuple[float, float]:
        """Epsilon at delta in the worse direction, and its Rényi order."""
        left = delta - self.lost
        if left <= 0:
            return np.inf, 1 + float(np.log(1 / delta))
        tilts = [best_tilt(parts, self.grid, left, float(np.log(1 / delta))) for parts in self.ways]
        found = [(losses.cumulant(parts, self.grid, t) - float(np.log(left))) / t for parts, t in zip(self.ways, tilts, strict=True)]
        epsilon, tilt = max(zip(found, tilts, strict=True))
        return max(epsilon, 0.0), tilt + 1

    def delta(self, epsilon: float) -> float:
        """Delta at epsilon in the worse direction."""
        logs = [min(losses.cumulant(parts, self.grid, t) - t * epsilon for t in _TILTS.tolist()) for parts in self.ways]
        return float(np.exp(min(max(logs), 0.0))) + self.lost
