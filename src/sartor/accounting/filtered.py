"""The worst that a filter allows: privacy losses of norms that are chosen on the way, by dynamic programming over what units are left.

A filter lets each stretch of steps be taken at one of few rungs, chosen by whatever the past has shown, as long as units pay for it
(`exposure.Filtered`). The obvious account, which composes what was chosen and stops when it is full, is invalid: a policy that reads the
losses of the past can spend more where they were large. Here the worst of all policies is computed before anything is chosen, so a run has
only whole numbers to compare.

Guarantee: delta(epsilon) from here is at least the hockey-stick divergence, in either direction, between a run with a holder and the same
    run with that holder zeroed, whatever policy chose the rungs.
Proof: let P and Q be the two laws of what is released, L = log P/Q of the past, and x = L - epsilon. With x at hand and no unit left, what
    the rest can still add to the divergence, per unit of P's mass, is w(x, 0) = max(1 - e^-x, 0). With u units it is at most
        w(x, u) = max(w(x, u - 1), max over rungs r with cost c_r <= u of E_P[w(x + l_r, u - c_r)]),
    where l_r is the loss of a stretch at rung r; then delta(epsilon) = w(-epsilon, U), as nothing has happened yet at the beginning.
    (i) Given the past, and the coins of all others, what the holder adds to a step is (1 - q) N(0) + q N(|g|) against N(0) with |g| at most
    the rung: a post-processing of the rung's own pair, whatever the gradient is. (ii) So the steps of a stretch, adaptive as they are, are
    a post-processing of as many independent draws of that pair. (iii) The choice of a rung may read the holder's records: on the
    neighbouring data there is no rung to choose, and a label of the past that is absent there harms nobody. (iv) V(e^L, u) = e^L w is
    convex in e^L, 0 at 0 and of slope at most 1; expectations and maxima keep that, and for such functions a dominating pair has the
    larger expectation, so by induction over the stretches what a policy gets is at most w. A policy may read L itself, so w is attained.
    The other direction is the same with the roles of P and Q exchanged, in a programme of its own.
    On the grid every stretch's pair is replaced by one that is easier to tell apart (`losses`); states beyond the window are given the most
    that convexity and slope allow from its ends; rounding of the transforms is added (`_ROUNDING`, for each layer and for each step).
Breaks if: a rung, or its charge, is fixed after the coins of its stretch; only drawn holders are charged; a rung is chosen by others'
    records other than through what was released; neighbours replace a record instead of zeroing it; a run ends by who still has units.

Filters of this kind may be contained in the residue filters of Regehr et al. 2026. That adaptive choices break the obvious account, and
that Rényi's sum at a fixed order does not break: Feldman and Zrnic 2021; with noise for everybody in every step the sum of squares is exact
(Koskela et al. 2023, Smith and Thakurta 2022).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import gcd
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import losses, rdp
from sartor.accounting.losses import LossDistribution, Pair, TooFine
from sartor.exposure import Filtered

Array = NDArray[np.float64]

_CUT = np.log(1e-7)  # share of delta that truncation may cost
_ROUNDING = 2.0**-52  # times the binary logarithm of a transform's length: what one layer may be off by
_LEAST_CELLS, _MOST_CELLS = 1 << 13, 1 << 17  # of the programme's window
_MOST_LAYERS = 1 << 13  # units, in those of the programme, beyond which Rényi's bound does
_MOST_FINE = 1 << 19  # of the grid that a stretch is composed on
_COARSER = 1.05
_REMEMBERED = 192  # tables: as many as a plan has levels, and some to search among


@dataclass(frozen=True, eq=False)
class Choice:
    """A stretch that may be chosen: its losses on the grid, under the law that they are drawn from, and what it costs in units."""

    loss: LossDistribution
    cost: int


def worst(choices: Sequence[Choice], units: int, grid: float, first: int, count: int) -> Array:
    """w(x, units) of the module's note, at x = (first + i) * grid for i below `count`; ascending.

    >>> fair = Choice(LossDistribution(-1, np.array([1 / 3, 0, 2 / 3]), 0.0), cost=1)  # truth with probability 2/3, on a grid of log 2
    >>> value = worst([fair], units=1, grid=float(np.log(2)), first=-2, count=5)
    >>> float(value[2].round(6))  # at epsilon 0: how much likelier the truth is than a lie
    0.333333
    """
    from scipy import fft

    common = gcd(*(choice.cost for choice in choices))
    costs, layers = [choice.cost // common for choice in choices], units // common
    left = max(0, *(-choice.loss.offset for choice in choices))
    right = max(0, *(choice.loss.offset + len(choice.loss.mass) - 1 for choice in choices))
    length = fft.next_fast_len(count + left + right, real=True)
    kernels = np.stack([_kernel(choice.loss, length) for choice in choices])
    infinite = np.array([choice.loss.infinite for choice in choices])
    allowance = _ROUNDING * np.log2(length)
    with np.errstate(over="ignore"):
        value: Array = np.maximum(-np.expm1(-(first + np.arange(count)) * grid), 0.0)
    wide, decay = np.empty(count + left + right), np.exp(-grid * np.arange(1.0, right + 1))
    spectra: dict[int, NDArray[np.complex128]] = {}
    for layer in range(layers + 1):
        usable = [i for i, cost in enumerate(costs) if cost <= layer]
        if usable:
            before = np.stack([spectra[layer - costs[i]] for i in usable])
            found = fft.irfft(before * kernels[usable], length, axis=1)[:, left : left + count]
            best = np.max(found + infinite[usable, None], axis=0) + allowance
            value = np.minimum(np.maximum.accumulate(np.maximum(value, best)), 1.0)
        # beyond the ends: e^x w(x) is 0 at -infinity and convex, and of slope at most 1 in e^x
        wide[:left], wide[left : left + count], wide[left + count :] = value[0], value, 1 - decay * (1 - value[-1])
        spectra[layer] = fft.rfft(wide, length)
        spectra.pop(layer - max(costs), None)
    return value


def _kernel(loss: LossDistribution, length: int) -> NDArray[np.complex128]:
    """The transform by which values become their means over a loss that is added."""
    from scipy import fft

    place = (np.arange(len(loss.mass)) + loss.offset) % length
    return np.asarray(np.conj(fft.rfft(np.bincount(place, loss.mass, length))))


@dataclass(frozen=True, eq=False)
class Table:
    """The privacy profile of a filter, an upper bound in each direction: delta at epsilon -(first + i) * grid."""

    grid: float
    first: int
    remove: Array
    add: Array

    def delta(self, epsilon: Array) -> dict[str, Array]:
        """delta at each epsilon in each direction; between points of the grid linear in e^epsilon, of which delta is a convex function."""
        return {"remove": self._delta(self.remove, epsilon), "add": self._delta(self.add, epsilon)}

    def epsilon(self, delta: Array) -> Array:
        """The smallest epsilon, of 0 or more, at which both directions are at most delta; infinite where the table does not reach it."""
        return np.maximum(self._epsilon(self.remove, delta), self._epsilon(self.add, delta))

    def _delta(self, value: Array, epsilon: Array) -> Array:
        place = np.clip(-epsilon / self.grid - self.first, 0, len(value) - 1)
        low = np.minimum(place.astype(int), len(value) - 2)
        share = np.clip(np.expm1((low + 1 - place) * self.grid) / np.expm1(self.grid), 0.0, 1.0)
        return np.asarray((1 - share) * value[low + 1] + share * value[low])

    def _epsilon(self, value: Array, delta: Array) -> Array:
        last = np.searchsorted(value, delta, side="right") - 1  # the last point at which delta is kept
        low = np.clip(last, 0, len(value) - 2)
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.clip((value[low + 1] - delta) / (value[low + 1] - value[low]), 0.0, 1.0)
        inside = -(self.first + low + 1) * self.grid + np.log1p(share * np.expm1(self.grid))
        return np.where(last < 0, np.inf, np.where(last > low, 0.0, np.maximum(inside, 0.0)))

    def pair(self, grid: float, most: int) -> Pair:
        """A pair of distributions on another grid with this profile, or a larger one: what composes with other exposures.

        Between the points of the new grid the profile is replaced by its chords, before the first by the chord to 1 at -infinity, and
        beyond the last by its value there; a convex piecewise linear function of e^epsilon is the profile of losses at its kinks.
        """
        points = int(np.floor(-self.first * self.grid / grid))
        if 2 * points + 1 > most:
            raise TooFine(2 * points + 1, most)
        at: Array = grid * np.arange(-points, points + 1.0)
        found = [_losses(_convex(at, value), at, grid) for value in self.delta(at).values()]
        return Pair(grid, found[0], found[1], spread=0.0, surplus=1.0)  # no lower bound follows from what was only rounded up


def _convex(epsilon: Array, delta: Array) -> Array:
    """The largest convex function of e^epsilon below these values: rounding may have bent them, and the true one is convex as well."""
    kept = [0]
    with np.errstate(over="ignore", invalid="ignore"):
        for i in range(1, len(delta)):
            while len(kept) > 1:
                a, b = kept[-2], kept[-1]
                if (delta[b] - delta[a]) / _share(epsilon[a], epsilon[b], epsilon[i]) < delta[i] - delta[a]:
                    break
                kept.pop()
            kept.append(i)
    place = np.clip(np.searchsorted(kept, np.arange(len(delta)), side="right"), 1, max(len(kept) - 1, 1))
    if len(kept) == 1:
        return delta
    begin, end = np.array(kept)[place - 1], np.array(kept)[place]
    return np.asarray(delta[begin] + (delta[end] - delta[begin]) * _share(epsilon[begin], epsilon, epsilon[end]))


def _share(begin: Any, at: Any, end: Any) -> Any:
    """How far e^at has come from e^begin to e^end, wherever on the scale they are."""
    return np.exp(at - end) * np.expm1(begin - at) / np.expm1(begin - end)


def _losses(delta: Array, epsilon: Array, grid: float) -> LossDistribution:
    """The losses, on a grid, whose profile is convex and piecewise linear in e^epsilon with these values."""
    # in units of each point's own e^epsilon: the slope after it, and the one before
    after = np.append(np.diff(delta) / np.expm1(grid), 0.0)
    before = np.append((delta[0] - 1.0), after[:-1] * np.exp(grid))
    mass = np.maximum(after - before, 0.0)
    return LossDistribution(round(float(epsilon[0]) / grid), mass, float(delta[-1]))


def table(exposure: Filtered, delta: float, accuracy: float) -> Table:
    """The profile of a filter, most exact about a delta; what was computed is remembered by all that it depends on."""
    return _table(exposure, int(np.floor(np.log10(delta))), accuracy)


@lru_cache(maxsize=_REMEMBERED)
def _table(exposure: Filtered, decade: int, accuracy: float) -> Table:
    delta = max(10.0**decade, 1e-300)
    epsilon, order = _start(exposure, delta)
    wide = max(_start(exposure, delta * float(np.exp(_CUT)))[0], epsilon)
    most, share = exposure.most_stretches, 6 * accuracy * epsilon / order  # a half of what the grids may cost
    grid = max(min(float(np.sqrt(share / most)), epsilon / 60, 2 * wide / _LEAST_CELLS), 2 * wide / _MOST_CELLS)
    first = -int(np.ceil(wide / grid)) - 1
    log_tail = float(np.log(delta / most) + _CUT)
    fine = min(float(np.sqrt(share / (most * exposure.stretch))), grid / 2)
    if exposure.units // gcd(*exposure.costs) > _MOST_LAYERS:
        return _by_renyi(exposure, grid, first)
    ways: dict[str, list[Choice]] = {"remove": [], "add": []}
    for rung, cost in zip(exposure.rungs, exposure.costs, strict=True):
        if cost <= exposure.units:
            pair = _stretch(exposure, rung, fine, grid, log_tail)
            ways["remove"].append(Choice(pair.remove, cost))
            ways["add"].append(Choice(pair.add, cost))
    found = {name: worst(choices, exposure.units, grid, first, 1 - 2 * first) for name, choices in ways.items()}
    for value in found.values():
        value.setflags(write=False)
    return Table(grid, first, found["remove"], found["add"])


def _by_renyi(exposure: Filtered, grid: float, first: int) -> Table:
    """The profile by Rényi's bound, for units too fine for a programme: the same in both directions, and below 0 by their identity."""
    epsilon = -grid * (first + np.arange(1.0 - first))  # from the largest down to 0
    above = np.maximum.accumulate(rdp.to_delta(rdp.curve(exposure), rdp.ORDERS, epsilon))
    below = -np.expm1(-epsilon[-2::-1]) + np.exp(-epsilon[-2::-1]) * above[-2::-1]
    both = np.minimum(np.append(above, below), 1.0)
    both.setflags(write=False)
    return Table(grid, first, both, both)


def _start(exposure: Filtered, delta: float) -> tuple[float, float]:
    """Rényi's bound on epsilon and its order: how fine a grid has to be."""
    values = rdp.curve(exposure) + np.subtract(*rdp.conversion_terms(rdp.ORDERS, max(delta, 1e-300)))
    best = int(np.argmin(values))
    return max(float(values[best]), 1e-9), float(rdp.ORDERS[best])


def _stretch(exposure: Filtered, rung: float, fine: float, grid: float, log_tail: float) -> Pair:
    """The losses of one stretch at a rung: composed on a fine grid, and put on the programme's, both so that they only become larger."""
    noise, steps = exposure.noise_multiplier / rung, exposure.stretch
    while True:
        try:
            step = losses.sampled_step(exposure.rate, noise, fine, log_tail - float(np.log(steps)), most=_MOST_FINE)
            remove, add = (_composed(loss, steps, fine, grid, log_tail) for loss in (step.remove, step.add))
            return Pair(grid, remove, add, spread=0.0)
        except TooFine as found:
            fine *= _COARSER * max(found.excess, 1.0)


def _composed(loss: LossDistribution, steps: int, fine: float, grid: float, log_tail: float) -> LossDistribution:
    composed = losses.compose([(loss, steps)], fine, 0.0, log_tail, _MOST_FINE)
    mass = composed.weight * np.exp(composed.log_scale)
    # what was cut off; what rounding may have taken from a power of a transform, or put where it does not belong
    infinite = float(composed.infinite * np.exp(composed.log_scale)) + steps * _ROUNDING / 2
    return losses.on_grid(composed.loss, mass, min(infinite, 1.0), grid)[0]
