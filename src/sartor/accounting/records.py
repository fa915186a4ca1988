"""One step that draws several records of one holder, each by a coin of its own: its privacy loss on a grid.

With k records at rate q, a step adds to the sum as many vectors of norm at most 1 as are drawn, so to the holder it compares the mixture
of the Gaussians N(j, sigma^2), with j binomial of k and q, with N(0, sigma^2). That is far from k times what one record costs: hardly ever
are many records drawn at once.

Guarantee: whatever the records' vectors are, and however they were chosen by what earlier steps released, a step's output is no easier to
    tell from one without the holder than this pair, in both directions.
Proof: let v(S) be the sum, over sigma, of the vectors of a set S of drawn records, and z standard normal. The ratio of the outputs'
    densities is the mean over S of exp(<v(S), z> - |v(S)|^2 / 2), and the divergence in either direction is the mean over z of a convex
    function of it. By Kahane's inequality (1985) such a mean can only grow with the covariances <v(S), v(T)>, and those are at most
    |S| |T| / sigma^2: those of vectors that all point one way. (Choquette-Choo, Ganesh, Steinke and Thakurta 2024 prove it as the
    mixture of Gaussians mechanism; Charles et al. 2024 use that for people with several records.) Dominating pairs compose.
Breaks if: records share a coin, or are drawn in fixed numbers; somebody else's record depends on one of the holder's.

Chernoff's bound on composed losses is from moments alone, before anything is composed. It says where a composition has to be looked at
closely (its tilt), and bounds it where no closer look is possible.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import losses
from sartor.accounting.losses import MOST_POINTS, Cells, LossDistribution, Pair, TooFine, interval, pair_of
from sartor.accounting.special import ndtr, ndtri_exp

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


Array = NDArray[np.float64]

_FAR = 39.0  # deviations beyond which a normal distribution has no mass that a double can hold
_NEAR_ZERO = 0.5  # losses below which logarithms are taken of one and a bit
_EXACT = 1e-9  # of a cell: how far an edge's loss may lie from its point of the grid
_ROUNDING = 16 * float(np.finfo(float).eps)  # of the largest loss: what computing one may be off by
_MOST_STEPS = 100  # of Newton and bisection, which end at neighbouring doubles
_KNOTS = (64, 4096)  # at which losses are known before edges are searched: at least and at most
_BLOCK = 1_000_000  # numbers held at once


def records_step(
    records: int, rate: float, noise_multiplier: float, grid: float, log_tail: float, tilt: float = 0.0, most: int = MOST_POINTS
) -> Pair:
    """One step in which each of `records` records enters with probability `rate`, on a grid; see `losses.sampled_step`.

    With g standard normal under Q, the loss is log(sum over j of p_j exp(j mu g - j^2 mu^2 / 2)), increasing and convex in g, so a cell of
    losses is an interval of g. An edge between two cells is searched until its loss is within 1e-9 of a cell of its point of the grid
    (or rounding is in the way), and P's and Q's masses are those of the interval between the edges that were found, so both keep their
    mass whatever the edges are. Misplaced mass lies at most that far outside of its cell, which moves epsilon by no more in each step.

    Numbers of records that are hardly ever drawn, together more rarely than exp(log_tail), are left out of the mixture: it is told when
    they are drawn, which only helps to tell P from Q, and their probability goes to infinity.
    """
    step = _Step.of(records, rate, noise_multiplier, log_tail)
    low, high = float(ndtri_exp(log_tail)), step.reach(log_tail)
    (cut, top), _ = step.loss(np.array([low, high]))
    floor = records * np.log1p(-rate) if step.shift[0] == 0 else -np.inf
    bounded = floor >= cut - grid  # then nothing needs cutting off below
    first = int(np.floor((floor if bounded else cut) / grid))
    last = max(int(np.ceil(top / grid)), first + 1)  # a cell at least, however much noise there is
    if last - first + 1 > most:
        raise TooFine(last - first + 1, most)
    edge = _edges(step, grid * np.arange(first + 1.0, last + 1.0), -_FAR if bounded else low, high, _EXACT * grid)
    edge[-1] = max(edge[-1], high)  # whose loss is no larger, though it may look the same where there is much noise
    below = np.append(-np.inf if bounded else low, edge[:-1])
    cut_off = (0.0, 0.0) if bounded else (step.chance @ ndtr(low - step.shift), ndtr(low))
    beyond = (step.chance @ ndtr(step.shift - edge[-1]) + step.dropped, ndtr(-edge[-1]))
    cells = Cells(grid, first, step.mass(below, edge), interval(below, edge), (float(beyond[0]), float(beyond[1])), cut_off)
    return pair_of(cells, tilt)


@dataclass(frozen=True, eq=False)
class _Step:
    """The mixture of one step: by how many deviations it may be shifted, with which probabilities, and what was left out of it."""

    shift: Array
    chance: Array
    dropped: float

    @classmethod
    def of(cls, records: int, rate: float, noise_multiplier: float, log_tail: float) -> _Step:
        """All numbers of drawn records, but for the smallest and largest, which together are rarer than exp(log_tail)."""
        chance, least = _binomial(records, rate), float(np.exp(log_tail)) / 2
        rising, falling = np.cumsum(chance), np.cumsum(chance[::-1])
        begin, end = int(np.searchsorted(rising, least, "right")), records + 1 - int(np.searchsorted(falling, least, "right"))
        dropped = (rising[begin - 1] if begin else 0.0) + (falling[records - end] if end <= records else 0.0)
        return cls(np.arange(begin, end) / noise_multiplier, chance[begin:end], float(dropped))

    def reach(self, log_tail: float) -> float:
        """An output above which the mixture has at most exp(log_tail): no member has more than its part of it."""
        share = log_tail - np.log(len(self.chance)) - np.log(self.chance)
        seen = share < 0
        return float(np.max(self.shift[seen] - ndtri_exp(share[seen])))

    def loss(self, g: Array) -> tuple[Array, Array]:
        """The loss at each output, and its slope there; exact to the rounding of the largest term, and of small losses to their own."""
        value, slope = np.empty(len(g)), np.empty(len(g))
        rows = max(1, _BLOCK // len(self.shift))
        for begin in range(0, len(g), rows):
            part = slice(begin, begin + rows)
            value[part], slope[part] = self._loss(g[part])
        return value, slope

    def _loss(self, g: Array) -> tuple[Array, Array]:
        exponent = g[:, None] * self.shift - self.shift**2 / 2
        weight = np.log(self.chance) + exponent
        peak = weight.max(axis=1)
        weight = np.exp(weight - peak[:, None])
        total = weight.sum(axis=1)
        value: Array = peak + np.log(total)
        near = np.abs(value) < _NEAR_ZERO
        value[near] = np.log1p(np.expm1(exponent[near]) @ self.chance - self.dropped)
        return value, np.asarray(weight @ self.shift / total)

    def mass(self, low: Array, high: Array) -> Array:
        """The mixture's mass between outputs, which ascend; each member has some only around its own shift."""
        out = np.zeros(len(high))
        begin, end = np.searchsorted(high, self.shift - _FAR, "left"), np.searchsorted(low, self.shift + _FAR, "right")
        for chance, shift, part in zip(self.chance, self.shift, map(slice, begin, end), strict=True):
            out[part] += chance * interval(low[part] - shift, high[part] - shift)
        return out


def _binomial(records: int, rate: float) -> Array:
    """The probabilities of 0 to `records` drawn records, from the likeliest number outwards, so that no digits are lost on the way."""
    drawn = np.arange(1.0, records + 1)
    log_ratio = np.log(records + 1 - drawn) - np.log(drawn) + np.log(rate) - np.log1p(-rate)
    mode = min(int((records + 1) * rate), records)
    chance = np.exp(np.concatenate([-np.cumsum(log_ratio[:mode][::-1])[::-1], [0.0], np.cumsum(log_ratio[mode:])]))
    return np.asarray(chance / chance.sum())


def _edges(step: _Step, losses: Array, low: float, high: float, close: float) -> Array:
    """The outputs at which ascending losses are reached, at least `low`, and at most where nothing is left to be cut off.

    Losses are known at some knots first, and a cubic between two of them leads to within few steps of Newton. Those that leave their
    bracket are replaced by halving it, so the search ends whatever the slope.
    """
    end = max(high, float(step.shift[-1])) + _FAR
    count = int(np.clip(16 * (high - low) * max(1.0, float(step.shift[-1] - step.shift[0])), *_KNOTS))
    knot = np.append(np.linspace(low, high, count), end)
    known, slope = step.loss(knot)
    known = np.maximum.accumulate(known)
    close += _ROUNDING * max(abs(known[0]), abs(known[-2]))
    place = np.searchsorted(known, losses)
    out = np.where(place == 0, low, end)
    active = np.flatnonzero((place > 0) & (place < len(knot)))
    right = place[active]
    left, right, goal = knot[right - 1], knot[right], losses[active]
    g = _between(goal, place[active], knot, known, slope)
    for _ in range(_MOST_STEPS):
        value, rise = step.loss(g)
        open_ = np.abs(value - goal) > close
        out[active] = g
        if not open_.any():
            break
        active, goal, value, rise, g = active[open_], goal[open_], value[open_], rise[open_], g[open_]
        left, right = np.where(value < goal, g, left[open_]), np.where(value > goal, g, right[open_])
        with np.errstate(divide="ignore", over="ignore"):
            newton = g - (value - goal) / rise
        g = np.where((newton > left) & (newton < right), newton, (left + right) / 2)
    return np.maximum.accumulate(out)


def _between(goal: Array, place: NDArray[np.intp], knot: Array, known: Array, slope: Array) -> Array:
    """Where a cubic through two knots, with the slopes that the loss has there, reaches a loss; halfway where that is not between them."""
    left, right, rise = knot[place - 1], knot[place], known[place] - known[place - 1]
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        t = (goal - known[place - 1]) / rise
        begin, end = rise / slope[place - 1], rise / slope[place]
        guess = left + t * t * (3 - 2 * t) * (right - left) + t * (1 - t) * ((1 - t) * begin - t * end)
    return np.where((guess > left) & (guess < right), guess, (left + right) / 2)
