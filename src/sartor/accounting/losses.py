"""Privacy losses on a grid: discretised so that they can only be too large, composed by Fourier transform.

A holder's exposure is a pair of output distributions, with the holder (P) and with the holder zeroed (Q). The loss log(P/Q) of one
step is put on a grid so that the pair only becomes easier to tell apart, steps are composed by Fourier transform, and delta(epsilon)
is read off. Both directions are followed: *remove* has P with the holder, *add* has P without.

Guarantee: every epsilon and delta from here is at least the true one (up to rounding of floating point, about 1e-9 relative).
Proof: mass between two grid points is split between them so that both P and Q keep their mass, which is a refinement of the pair
    (the output is told more than it was), so divergences can only grow (connect-the-dots, Doroshenko et al. 2022). Dominating pairs
    compose (Zhu, Dong and Wang 2022). Mass that is cut off above is treated as lost entirely: it goes to infinity.
Breaks if: the two directions are mixed within one composition, or mass is rounded to the nearest grid point.

Transforms run on the exponentially tilted distribution, whose bulk sits at the epsilon in question, so small deltas lose no digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from sartor.accounting.gaussian import log_ratio_at
from sartor.accounting.special import ndtr, ndtri_exp

Array = NDArray[np.float64]

MOST_POINTS = 1 << 21  # of a grid: bounds the memory of one evaluation to some 100 MB
_MOST_LIFT = 18.0  # exponent up to which undoing the tilt may lift rounding errors of 1e-15
_NOTHING = -120.0  # log of what changes no digit of a transform of entries up to 1
_APART = 100.0  # points of a grid so far apart have nothing to do with each other
_MIDDLE = 3.0  # exponent of a Chernoff bound, in inverse deviations of the sum
_OTHERS = ((5.0, 7.0, 10.0, 15.0), (1.5, 0.7, 0.3, 0.1, 0.03, 0.01, 3e-3, 1e-3))  # in either direction of it


@dataclass(frozen=True)
class LossDistribution:
    """The distribution under P of a loss on the grid: `mass[i]` at (offset + i) * grid, `infinite` at infinity."""

    offset: int
    mass: Array
    infinite: float

    @cached_property
    def log_mass(self) -> Array:
        """The logarithm of each mass."""
        with np.errstate(divide="ignore"):
            return np.log(self.mass)


@dataclass(frozen=True)
class Pair:
    """Losses of one exposure in both directions on one grid, and the variance that the grid has added to them."""

    grid: float
    remove: LossDistribution
    add: LossDistribution
    spread: float
    surplus: float = 0.0  # mass above 1 that rounding added


class TooFine(Exception):
    """The grid that was asked for needs more memory than one evaluation may take: `excess` times as many points."""

    def __init__(self, points: int, most: int) -> None:
        super().__init__(points, most)
        self.excess = points / most


def sampled_step(rate: float, noise_multiplier: float, grid: float, log_tail: float, tilt: float = 0.0, most: int = MOST_POINTS) -> Pair:
    """One step of the sampled Gaussian on a grid.

    With g standard normal under Q and shifted by mu = 1 / noise_multiplier under the included half of P, the loss is
    log(1 - rate + rate exp(mu g - mu^2/2)), increasing in g, so a cell of losses is an interval of g.
    `log_tail` is the logarithm of the mass per step that may be cut off; `tilt` is where `spread` is measured.
    """
    mu = 1.0 / noise_multiplier
    high = mu - float(ndtri_exp(log_tail))
    low = float(ndtri_exp(log_tail))
    floor, cut = np.log1p(-rate) if rate < 1 else -np.inf, _loss_at(low, rate, mu)
    bounded = floor >= cut - grid  # then nothing needs cutting off below
    first = int(np.floor((floor if bounded else cut) / grid))
    last = max(int(np.ceil(_loss_at(high, rate, mu) / grid)), first + 1)  # a cell at least, however much noise there is
    if last - first + 1 > most:
        raise TooFine(last - first + 1, most)
    node = np.arange(first, last + 1)
    edge = log_ratio_at(node[1:] * grid, rate) / mu + mu / 2
    ends = np.append(-np.inf if bounded else min(low, edge[0]), edge)
    without = _between(ends)
    mixture = (1 - rate) * without + rate * _between(ends - mu)
    top = edge[-1]
    above = ((1 - rate) * float(ndtr(-top)) + rate * float(ndtr(mu - top)), float(ndtr(-top)))
    cut_off = (0.0, 0.0) if bounded else ((1 - rate) * float(ndtr(low)) + rate * float(ndtr(low - mu)), float(ndtr(low)))
    return pair_of(Cells(grid, first, mixture, without, above, cut_off), tilt)


@dataclass(frozen=True, eq=False)
class Cells:
    """Masses of a step's outputs, with the holder and without, by where their loss lies.

    `mixture[i]` and `without[i]` are those of losses between (first + i) * grid and the next point; `above` and `below` are pairs of the
    two masses beyond the last point and before the first.
    """

    grid: float
    first: int
    mixture: Array
    without: Array
    above: tuple[float, float]
    below: tuple[float, float]


def pair_of(cells: Cells, tilt: float) -> Pair:
    """The losses of a step on its grid: the mass of a cell goes to its two ends, so that both P and Q keep theirs.

    What lies beyond the ends is infinite in one direction, and moved inwards, to a larger loss, in the other. `tilt` is where `spread` is
    measured.
    """
    grid, mixture, without = cells.grid, cells.mixture, cells.without
    a, span = (cells.first + np.arange(len(mixture))) * grid, -np.expm1(-grid)
    # the share of each cell's mass that goes to its upper end
    up_remove = np.clip((mixture - without * np.exp(np.minimum(a, 700.0))) / span, 0.0, mixture)
    up_add = np.clip((without - mixture * np.exp(np.minimum(-(a + grid), 700.0))) / span, 0.0, without)
    remove = np.append(mixture - up_remove, 0.0)
    remove[1:] += up_remove
    add = np.append(up_add, 0.0)  # node k carries the loss -k in this direction, so "up" is the lower index
    add[1:] += without - up_add
    remove[1] += cells.below[0]  # not the first point, which may lie below the cut
    add[-1] += cells.above[1]
    weight = np.exp(np.minimum(tilt * a, 700.0))
    with np.errstate(divide="ignore", invalid="ignore"):
        variance = np.nan_to_num(up_remove * (mixture - up_remove) / mixture)
    spread = grid**2 * float(weight @ variance) / float(weight @ mixture)
    last = cells.first + len(mixture)
    return Pair(
        grid, LossDistribution(cells.first, remove, cells.above[0]), LossDistribution(-last, add[::-1].copy(), cells.below[1]), spread
    )


def _loss_at(g: float, rate: float, mu: float) -> float:
    exponent = mu * g - mu**2 / 2
    with np.errstate(divide="ignore"):
        return float(np.logaddexp(np.log1p(-rate) if rate < 1 else -np.inf, np.log(rate) + exponent))


def interval(low: Array, high: Array) -> Array:
    """Mass of the standard normal between two points, without cancellation in the upper tail."""
    flip = low > 0
    mass: Array = ndtr(np.where(flip, -low, high)) - ndtr(np.where(flip, -high, low))
    return np.maximum(mass, 0.0)


def _between(ends: Array) -> Array:
    """Mass of the standard normal between each of ascending points and the next: see `interval`."""
    low, high, tail = ends[:-1], ends[1:], ndtr(-np.abs(ends))
    mass: Array = np.where(low > 0, tail[:-1] - tail[1:], tail[1:] - tail[:-1])
    around = (low <= 0) & (high > 0)
    mass[around] = ndtr(high[around]) - tail[:-1][around]
    return np.maximum(mass, 0.0)


def include(pair: Pair, probability: float) -> Pair:
    """The pair of "with this probability the inner pair, otherwise nothing", put back on the grid.

    Proof: remove compares (1-p) Q + p P with Q: loss log(1-p+p e^L), outputs drawn from the mixture, of which Q's share has weight
    e^-L; add compares Q with the mixture: loss -log(1-p+p e^-M) with M = log(Q/P) and outputs drawn from Q.
    """
    p, h = probability, pair.grid
    loss = (pair.remove.offset + np.arange(len(pair.remove.mass))) * h
    with np.errstate(over="ignore"):
        reweighted = pair.remove.mass * (p + (1 - p) * np.exp(np.minimum(-loss, 700.0)))
    # Q's mass where P has none is 1 - sum e^-L P; its loss is below all others here, so it is counted at the lowest
    log_keep = np.log1p(-p) if p < 1 else -np.inf
    orphan = (1 - p) * max(0.0, 1.0 - float(np.exp(np.minimum(-loss, 700.0)) @ pair.remove.mass))
    new_loss = np.logaddexp(log_keep, np.log(p) + loss)
    reweighted[0] += orphan
    remove, spread = on_grid(new_loss, reweighted, p * pair.remove.infinite, h)
    m = (pair.add.offset + np.arange(len(pair.add.mass))) * h
    new_m = -np.logaddexp(log_keep, np.log(p) - m)
    # where P has no mass the loss is -log(1 - p), not infinite
    if p < 1:
        add, _ = on_grid(np.append(new_m, -log_keep), np.append(pair.add.mass, pair.add.infinite), 0.0, h)
    else:
        add, _ = on_grid(new_m, pair.add.mass, pair.add.infinite, h)
    return Pair(h, remove, add, pair.spread + spread, pair.surplus + max(0.0, float(remove.mass.sum()) + remove.infinite - 1))


def on_grid(loss: Array, mass: Array, infinite: float, grid: float) -> tuple[LossDistribution, float]:
    """Point masses moved to the two grid points around them, keeping both P's and Q's mass."""
    first = np.floor(loss / grid).astype(int)
    offset, last = int(first.min()), int(first.max()) + 1
    if last - offset + 1 > MOST_POINTS:
        raise TooFine(last - offset + 1, MOST_POINTS)
    share = np.clip(-np.expm1(-(loss - first * grid)) / -np.expm1(-grid), 0.0, 1.0)
    out = np.bincount(first - offset, mass * (1 - share), last - offset + 1)
    out += np.bincount(first + 1 - offset, mass * share, last - offset + 1)
    return LossDistribution(offset, out.astype(np.float64), infinite), grid**2 * float(np.sum(mass * share * (1 - share)))


@dataclass(frozen=True)
class Composed:
    """A composed loss on a window of the grid, scaled: the true mass at `loss[i]` is `weight[i] * exp(log_scale)`."""

    loss: Array
    weight: Array
    infinite: float
    log_scale: float
    tilt: float
    log_tail: float
    reference: float
    lost: float  # the mass at infinity, not scaled

    def junk(self, epsilon: float) -> float:
        """A bound on what the divergence at epsilon holds that is not there: the cut-off, counted as infinite, and its wrap-around.

        The transform is cyclic, so up to exp(log_tail) of tilted mass from beyond the window lies somewhere inside it.
        """
        wrapped = float(np.exp(np.minimum(self.log_tail - self.tilt * (epsilon - self.reference) + self.log_scale, 0.0)))
        return wrapped + self.lost

    def delta(self, epsilon: Array) -> Array:
        """The hockey-stick divergence at each epsilon."""
        upper, lower = self._suffix
        at = np.searchsorted(self.loss, epsilon, side="right")
        shifted = np.exp(np.minimum(epsilon - self.loss[np.minimum(at, len(self.loss) - 1)], 0.0))
        scaled = upper[at] - np.where(at < len(self.loss), shifted * lower[at], 0.0)
        out: Array = np.minimum(np.maximum(scaled, 0.0) * np.exp(self.log_scale), 1.0)
        return out

    def epsilon(self, delta: Array) -> Array:
        """The smallest epsilon at which the divergence is at most delta; where it lies below the window, the window's first loss."""
        upper, lower = self._suffix
        with np.errstate(over="ignore"):
            target = np.exp(np.log(delta) - self.log_scale)
        index = np.searchsorted(self._rising, -target, side="left")  # the first node whose divergence is at most the target
        node = np.clip(index, 0, len(self.loss) - 1)
        with np.errstate(divide="ignore", invalid="ignore"):
            inside = self.loss[node] + np.log(np.maximum(upper[node] - target, 0.0) / lower[node])
        out = np.where(index == 0, self.loss[0], np.minimum(np.nan_to_num(inside, nan=np.inf), self.loss[node]))
        return np.asarray(np.where(self.lost > delta, np.inf, out))

    @cached_property
    def _rising(self) -> Array:
        """Minus the divergence at each node; it falls along the window to `infinite`."""
        upper, lower = self._suffix
        step = np.append(np.exp(self.loss[:-1] - self.loss[1:]), 0.0)
        rising: Array = np.minimum.accumulate((lower[1:] * step - upper[1:])[::-1])[::-1]
        return rising

    @cached_property
    def _suffix(self) -> tuple[Array, Array]:
        """For each i, the scaled mass at or above loss[i], and the same weighted by exp(loss[i] - loss); one entry past the end."""
        upper = np.append(np.cumsum(self.weight[::-1])[::-1], 0.0) + self.infinite
        # sum over j >= i of w_j exp(loss_i - loss_j), as exp(loss_i) times a suffix sum, in blocks that cannot overflow
        lower = np.zeros(len(self.weight) + 1)
        span = self.loss[1] - self.loss[0] if len(self.loss) > 1 else 1.0
        if span > _APART:
            lower[:-1] = self.weight  # what larger losses add is left out: less is taken off the divergence
            return upper, lower
        block = int(300 / span)
        carry, stop = 0.0, len(self.weight)
        while stop > 0:
            start = max(0, stop - block)
            decay = np.exp(-(self.loss[start:stop] - self.loss[start]))
            tail = np.cumsum((self.weight[start:stop] * decay)[::-1])[::-1]
            tail += carry * np.exp(-(span * (stop - start)))
            lower[start:stop] = tail / decay
            carry, stop = lower[start], start
        return upper, lower


def compose(parts: Sequence[tuple[LossDistribution, int]], grid: float, tilt: float, log_tail: float, most: int = MOST_POINTS) -> Composed:
    """Each loss composed with itself so many times, and all with each other.

    The window holds zero and all but exp(log_tail) of the tilted mass; what may lie above it is counted as infinite. Below, it ends where
    undoing the tilt would lift rounding errors into sight, and above, where it would leave next to nothing of whatever is there.
    """
    from scipy import fft  # here, so that importing the library stays quick

    at = _placed(parts, grid, tilt, log_tail)
    tilted, mean, drift, (low, high) = at.tilted, at.mean, at.drift, at.window
    length = fft.next_fast_len(high - low + 1, real=True)
    if length > most:
        raise TooFine(length, most)
    spectrum: NDArray[np.complex128] | None = None
    for weight, position, count in tilted:
        folded = np.bincount(position % length, weight, length)
        part = _power(fft.rfft(folded), count)
        spectrum = part if spectrum is None else spectrum * part
    assert spectrum is not None
    middle = round(drift)  # where the tilted mass sits, in cells from `mean`
    first, last = low, high
    if tilt > 0:
        first = max(low, min(middle - int(_MOST_LIFT / (tilt * grid)), high))
        last = min(high, max(middle + int(-_NOTHING / (tilt * grid)), first, 1 - mean))
    density = np.maximum(np.roll(fft.irfft(spectrum, length), -first)[: last - first + 1], 0.0)
    loss_grid = (mean + np.arange(first, last + 1)) * grid
    reference = (mean + middle) * grid
    with np.errstate(over="ignore"):
        weight = density * np.exp(-tilt * (loss_grid - reference))
    log_scale = at.log_mass - tilt * reference
    # true mass above the window is at most the tilted mass there times the largest untilting factor
    lost = -np.expm1(sum(count * np.log1p(-loss.infinite) for loss, count in parts))
    log_above = (log_tail if last == high else 0.0) - tilt * (float(loss_grid[-1]) - reference)
    with np.errstate(over="ignore", divide="ignore"):
        infinite = float(np.exp(log_above) + np.exp(np.log(lost) - log_scale))
        lost = min(1.0, float(lost + np.exp(min(log_above + log_scale, 0.0))))
    return Composed(np.asarray(loss_grid, np.float64), weight, infinite, log_scale, tilt, log_tail, reference, lost)


def _power(spectrum: NDArray[np.complex128], count: int) -> NDArray[np.complex128]:
    """Each entry to the power of `count`; what comes to next to nothing, which is most of many steps, is 0."""
    if count == 1:
        return spectrum
    out = np.zeros_like(spectrum)
    seen = np.flatnonzero(np.abs(spectrum) > np.exp(_NOTHING / count))
    out[seen] = np.exp(count * np.log(spectrum[seen]))
    return out


class _Placed(NamedTuple):
    """Tilted losses of single steps, each around its mean, and the window that their composition needs around the sum of these."""

    tilted: list[tuple[Array, NDArray[np.int64], int]]
    log_mass: float
    mean: int
    drift: float
    window: tuple[int, int]


def _placed(parts: Sequence[tuple[LossDistribution, int]], grid: float, tilt: float, log_tail: float) -> _Placed:
    tilted, log_mass, mean, drift, variance = [], 0.0, 0, 0.0, 0.0
    for loss, count in parts:
        position = np.arange(len(loss.mass)) + loss.offset
        log_weight = loss.log_mass + tilt * grid * position
        peak = float(log_weight.max())
        weight = np.exp(log_weight - peak)
        total = float(weight.sum())
        weight /= total
        centre = float(weight @ position)
        log_mass += count * (peak + np.log(total))
        mean += count * round(centre)
        drift += count * (centre - round(centre))
        variance += count * float(weight @ (position - centre) ** 2)
        tilted.append((weight, position - round(centre), count))
    low, high = _window(tilted, drift, max(np.sqrt(variance), 0.5), -log_tail)
    return _Placed(tilted, log_mass, mean, drift, (min(low, -mean), max(high, 1 - mean)))


def points(parts: Sequence[tuple[LossDistribution, int]], grid: float, tilt: float, log_tail: float) -> int:
    """Of how many points the composition's window is."""
    low, high = _placed(parts, grid, tilt, log_tail).window
    return high - low + 1


def _window(
    tilted: Sequence[tuple[Array, NDArray[np.int64], int]], drift: float, deviation: float, log_inverse_tail: float
) -> tuple[int, int]:
    """Chernoff bounds on where the sum lies but for exp(-log_inverse_tail) of its mass on either side."""

    def bound(sign: int, scale: float) -> float:
        t, log_moment = scale / deviation, 0.0
        for weight, position, count in tilted:
            exponent = sign * t * position
            peak = max(float(exponent[0]), float(exponent[-1]))
            log_moment += count * (peak + np.log(max(float(weight @ np.exp(exponent - peak)), 1e-320)))
        return float((log_moment + log_inverse_tail) / t)

    ends = []
    for sign in (-1, 1):
        best = float(sum(count * max(sign * int(position[0]), sign * int(position[-1])) for _, position, count in tilted))
        middle = bound(sign, _MIDDLE)
        for scales in _OTHERS:
            last = middle
            for scale in scales:
                if scale < 1 and min(best, last) - sign * drift < 2 * log_inverse_tail * deviation:
                    break  # weak exponents are for heavy tails
                if (found := bound(sign, scale)) >= last:
                    break  # bounds have one valley
                last = found
            best = min(best, last)
        ends.append(best)
    return int(np.floor(-ends[0])), int(np.ceil(ends[1]))


def cumulant(parts: Sequence[tuple[LossDistribution, int]], grid: float, tilt: float) -> float:
    """log E[exp(tilt * loss)] of the composition, over its finite losses."""
    total = 0.0
    for loss, count in parts:
        position = np.arange(len(loss.mass)) + loss.offset
        log_weight = loss.log_mass + tilt * grid * position
        peak = float(log_weight.max())
        total += count * (peak + float(np.log(np.exp(log_weight - peak).sum())))
    return total
