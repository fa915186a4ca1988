"""Many searches at once for the largest argument whose value still fits: brackets and secants, vectorised.

Nothing here knows what is searched for. What is returned has been evaluated and found to fit.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.errors import Infeasible

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_STEP_OFF = 1e-9  # above the least argument
_SLOPES = (0.1, 10.0)  # that are believed
_REACH = 3.0  # of one step outward
_PATIENCE = 3  # steps outward, after which they grow


def largest_fitting(
    value: Callable[[Array, Indices], Array],
    target: Array,
    start: Array,
    limit: float,
    waste: float,
    width: float = 1e-12,
    least: Array | None = None,
) -> Array:
    """The largest x, up to the waste, whose value is at most the target, for increasing values.

    Steps outward, by the slope that the last two points show, until a bracket is found, then secants between its ends (Illinois), all in
    logarithms. Only points that were evaluated and found to fit are returned. A bracket narrower than `width` is close enough whatever
    is wasted: values may jump. `least` are arguments known to fit; where nothing above them does, they are the answer.
    """
    bracket = Bracket.around(target * (1 - waste / 2))
    bottom = np.full(len(target), -np.inf) if least is None else least + _STEP_OFF
    x = np.minimum(np.maximum(start.astype(float), bottom), limit)
    active = np.arange(len(target))
    for iteration in range(200):
        found = value(x[active], active)
        bracket.learn(active, x[active], found, found <= target[active])
        low, high = bracket.low, bracket.high
        if least is not None:
            low[high <= bottom] = least[high <= bottom]
        with np.errstate(invalid="ignore"):
            done = (
                (bracket.at_low >= target * (1 - waste))
                | (low >= limit)
                | (high - low < width * np.maximum(1.0, np.abs(low)))
                | (high <= bottom)
            )
        active = active[~(done & np.isfinite(low))[active]]
        if not len(active):
            return low
        x[active] = np.minimum(np.maximum(bracket.next(active, iteration), bottom[active]), limit)
    raise Infeasible("the search for a parameter did not settle; the budgets or the number of steps are beyond what can be computed.")


@dataclass
class Bracket:
    """For many searches at once: the largest argument known to fit, the smallest known not to, and their values."""

    goal: Array
    low: Array
    high: Array
    at_low: Array
    at_high: Array
    weight_low: Array
    weight_high: Array
    last: Array
    at_last: Array
    slope: Array  # of the logarithm of the value; 1 until two points are known

    @classmethod
    def around(cls, goal: Array) -> Bracket:
        """Nothing known yet, of searches for these values."""
        inf, zeros = np.full(goal.shape, np.inf), np.zeros(goal.shape)
        ones = (np.ones(goal.shape) for _ in range(4))
        weights, (at_last, slope) = (next(ones), next(ones)), (next(ones), next(ones))
        return cls(goal, -inf, inf, zeros, inf.copy(), *weights, np.full(goal.shape, np.nan), at_last, slope)

    def learn(self, which: Indices, x: Array, value: Array, fits: NDArray[np.bool_]) -> None:
        """Move one end; the other, if it stays a second time, loses half its weight (Illinois)."""
        with np.errstate(divide="ignore", invalid="ignore"):
            slope = np.log(value / self.at_last[which]) / (x - self.last[which])
        self.slope[which] = np.where(slope > 0, np.clip(slope, *_SLOPES), self.slope[which])  # never of what is not a number
        self.last[which], self.at_last[which] = x, value
        yes, no = which[fits], which[~fits]
        again_low, again_high = self.weight_low[yes] >= 1, self.weight_high[no] >= 1
        self.low[yes], self.at_low[yes] = x[fits], value[fits]
        self.high[no], self.at_high[no] = x[~fits], value[~fits]
        self.weight_high[yes] = np.where(again_low, self.weight_high[yes] / 2, self.weight_high[yes])
        self.weight_low[no] = np.where(again_high, self.weight_low[no] / 2, self.weight_low[no])
        self.weight_low[yes], self.weight_high[no] = 1.0, 1.0

    def next(self, which: Indices, iteration: int) -> Array:
        """Where to look next."""
        low, high, goal = self.low[which], self.high[which], self.goal[which]
        with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
            below, above = np.log(self.at_low[which] / goal), np.log(self.at_high[which] / goal)
            growth = 1.3 ** max(iteration - _PATIENCE, 0)
            up, down = (np.where(np.isfinite(gap), np.clip(gap / self.slope[which], 1e-4, _REACH), 2.0) * growth for gap in (-below, above))
            weighted_below, weighted_above = below * self.weight_low[which], above * self.weight_high[which]
            share = weighted_below / (weighted_below - weighted_above)
            sound = np.isfinite(share) & (iteration % 8 != 7)
            inside = low + np.clip(np.where(sound, share, 0.5), 1e-4, 1 - 1e-4) * (high - low)
        return np.where(np.isinf(high), low + up, np.where(np.isinf(low), high - down, inside))
