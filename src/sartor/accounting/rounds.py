"""What rounds behind coins cost, quickly: figures that lead a solver, on one grid for all rounds.

The tight accountant chooses a grid for each exposure anew. A solver that tries many coins before the same rounds does better: here the
losses of a round are computed once, put on a common grid, and every coin tried costs two short transforms. All figures are upper bounds,
as those of `losses` are, but plans are judged by their accountant, not by these.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import losses, rdp
from sartor.accounting.losses import LossDistribution, Pair, TooFine

Array = NDArray[np.float64]

_CUT = float(np.log(1e-6))  # share of delta that may be cut off
_ACCURACY = 1e-4  # share of epsilon that the fine grid of a round may cost
_WAYS = ("remove", "add")
_MOST_POINTS = 1 << 18


@dataclass(frozen=True)
class Grid:
    """A grid for losses, fine enough for the smallest epsilon in question, the smallest delta, and how many rounds there are."""

    step: float
    delta: float
    rounds: int = 1

    @property
    def log_tail(self) -> float:
        """The logarithm of the mass that may be cut off."""
        return float(np.log(self.delta) + _CUT)


def gaussian(mu: float, grid: Grid) -> Pair:
    """The losses of one Gaussian whose sensitivity over noise is `mu`: what many small steps are close to."""
    return losses.sampled_step(1.0, 1 / mu, grid.step, grid.log_tail, most=_MOST_POINTS)


def inner(rate: float, noise_multiplier: float, steps: int, grid: Grid) -> Pair:
    """The losses of a round's steps, composed on a grid of their own and put on the common one."""
    if rate == 1:
        return gaussian(float(np.sqrt(steps)) / noise_multiplier, grid)
    whole = float(steps * grid.rounds)  # as if all rounds were like this one
    columns = (np.array([value]) for value in (rate, noise_multiplier, whole, grid.delta))
    epsilon, order = (float(found[0]) for found in rdp.epsilon_and_order(*columns))
    tilt, epsilon = max(order - 1, 1e-3), max(epsilon, 1e-6)
    fine, coarsest = min(grid.step, float(np.sqrt(12 * _ACCURACY * epsilon / (order * whole)))), 0.0
    while True:
        try:
            one = losses.sampled_step(rate, noise_multiplier, fine, grid.log_tail - float(np.log(steps)), tilt, _MOST_POINTS)
            finer = 0.9 * fine * float(np.sqrt(_ACCURACY * epsilon / max(order / 2 * whole * one.spread, 1e-300)))
            if fine > 1.3 * max(finer, coarsest):
                fine = max(finer, coarsest)
                continue
            return Pair(grid.step, _coarser(one.remove, steps, fine, grid), _coarser(one.add, steps, fine, grid), 0.0)
        except TooFine as found:
            fine = coarsest = 1.05 * max(found.excess, 1.0) * fine


def _coarser(loss: LossDistribution, steps: int, fine: float, grid: Grid) -> LossDistribution:
    composed = losses.compose([(loss, steps)], fine, 0.0, grid.log_tail, _MOST_POINTS)
    scale = np.exp(composed.log_scale)
    return losses.on_grid(composed.loss, composed.weight * scale, min(1.0, composed.infinite * scale), grid.step)[0]


def joined(pairs: Sequence[Pair], grid: Grid) -> Pair:
    """Rounds that everybody takes part in, as one."""
    if len(pairs) == 1:
        return pairs[0]
    found = []
    for way in _WAYS:
        composed = losses.compose([(getattr(pair, way), 1) for pair in pairs], grid.step, 0.0, grid.log_tail)
        scale = np.exp(composed.log_scale)
        mass = composed.weight * scale
        found.append(LossDistribution(round(float(composed.loss[0]) / grid.step), mass, min(1.0, composed.infinite * scale)))
    return Pair(grid.step, found[0], found[1], 0.0)


def cost(parts: Sequence[tuple[Pair, float, int]], delta: float, grid: Grid) -> float:
    """Epsilon at delta, in the worse direction, of rounds with the probability of being included in each and how often it occurs."""
    pairs = [(pair if chance == 1 else losses.include(pair, chance), count) for pair, chance, count in parts if chance > 0]
    if not pairs:
        return 0.0
    found = (losses.compose([(getattr(pair, way), count) for pair, count in pairs], grid.step, 0.0, grid.log_tail) for way in _WAYS)
    return max(0.0, *(float(composed.epsilon(np.array([delta]))[0]) for composed in found))
