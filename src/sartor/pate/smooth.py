"""Publishing the data-dependent bound of standard PATE: smooth sensitivity, the noisy figure, and what the figure costs.

The tight Rényi bound of GNMax is computed from the votes, so the bound is as private as the votes are. Here it leaves through noise
that follows the smooth sensitivity of the bound (Nissim, Raskhodnikova and Smith 2007; Papernot et al. 2018, appendix on smooth
sensitivity). This is for the *standard* variant only: each holder in one teacher, each teacher one vote of weight one, plain GNMax.
Histograms and everything computed from them without noise, the smooth sensitivity included, are sensitive.

Two histograms are neighbours if one vote is moved from one class to another. A holder can change all answers of one teacher, so two
sequences of histograms are neighbours if they are equal or neighbours query by query.

The argument, used by every function here. Let h(g) = erfc(g / 2 noise) / 2, which is convex for g >= 0, and let q be the sum of h over
the gaps between the winner and each other class; of all classes the winner gives the smallest q, so ties do not matter.

1. *The bound f grows with q.* With x = mu2 = noise sqrt(log 1/q) and v = noise^2, (q e^eps2)^((mu2-1)/mu2) is w = e^(-(x-1)^2/v), and the
   tight bound is log(S) / (a-1) with R = (1-q)/(1-w) >= 1 and S = (1-q) R^(a-1) + q e^((a-1)(2x+1)/v). Its condition on q is
   E >= (x+1)/(x-1) for E = e^((2x-1)/v), so all conditions together are x >= x0 for some x0. There S falls with x: that is
   a x <= (a-1)(x-1) E R + (x-a+1) (e^((2x+1)/v) / R)^(a-1), and the right side is at least (a-1)(x+1) R + (x-a+1) (E/R)^(a-1). If
   E >= R, that is at least (a-1)(x+1) + x-a+1 = a x. If E < R, its excess over a x is convex in a on [1, x+1], is zero at a = 1
   and has slope (x+1)(R-1) + x log(E/R) >= 0 there. Outside x >= x0, f is the loose bound, which it never exceeds.
2. *Near a tie the bound is loose.* The condition on E needs log 1/q > 1 + sqrt(log 1/q) / (2 noise), and x > 1. At a gap of one or
   less q is at least h(1), and then one of the two fails for every noise (one inequality in one variable: see the tests). So where the
   bound is not loose the winner leads by two votes or more, and wins or ties in every neighbour too. Any q above 1/2 may be taken as 1/2.
3. *The largest q within d moved votes* comes from moving all d from the winner to the runner-up, while their gap g stays g - 2d >= 0:
   taking from the winner lowers every gap, and how the d votes are given is the maximum of a convex function over a simplex, reached
   at the class with the smallest gap. Once g < 2d, q is taken as 1/2, where the bound is loose.
4. *The smallest q within d moved votes* comes from giving d votes to the winner, each taken from the class that is then second: a
   separable convex minimum, for which greedy steps are optimal. Electing another class is never better (exchange the two classes).
5. *One moved vote raises q to at most U(q)* where f changes. By 2 and 3 it lowers one gap by two and the others by one. With
   H_s(p) = h(h^-1(p) - s), which is concave, U(q) is the largest H_2(p) + (m-2) H_1(r) with p + (m-2) r = q, for m classes. Equal slopes
   H_2'(p) = H_1'(r) mean p = h(t) and r = h(2t - 3/2), so the curve (q, U(q)) is known in closed form with parameter t.

So the change of f between neighbours of which one is within d votes of the given histogram is at most the supremum of f(q'') - f(q')
over q' <= q'' <= U(q') with q' in I_d and q'' <= max I_(d+1), or q'' in I_d and q' >= min I_(d+1), where I_d is the range of q within d
votes by 3 and 4. The ranges of neighbours are nested, I_d(n) within I_(d+1)(n'), hence so are the suprema: their discounted maximum
over d is beta-smooth.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import rdp
from sartor.accounting.special import log_ndtr, ndtri_exp
from sartor.errors import Infeasible, SartorError
from sartor.pate import bounds

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_LOG_HALF = math.log(0.5)
_CELLS = 2**17  # of the table in q, at least: each move is cut into about a thousand
_CELLS_PER_VOTE = 8  # at least
_ROUNDING = 1e-9  # share by which every change is raised, more than what floating-point numbers lose of one
_SMALLEST = 1e-300


def smooth_sensitivity(counts: ArrayLike, noise: float, order: float, beta: float) -> float:
    """The largest exp(-beta d) times the sum over queries of the local sensitivity at distance d, over all d. Sensitive.

    Guarantee: at least the local sensitivity of the summed bound, and within a factor exp(beta) of its value at every neighbouring sequence
        of histograms, one vote moved in any number of queries.
    Proof: the suprema at distance d are at most those at d + 1 of a neighbour (the module's docstring), for each query and so for the sum.
        From the distance at which every query can be made unanimous and tied, the ranges are whole and nothing grows; that distance
        follows from the numbers of teachers and classes, so how many are looked at tells nothing of the votes.
    Breaks if: teachers have weights, a holder is in several teachers, or the bound is not the one of `_bound`.
    """
    votes = _checked(counts)
    _check_mechanism(noise, order)
    _check_beta(beta)
    teachers, classes = _teachers(votes), votes.shape[1]
    table = _table(classes, teachers, noise, order)
    ranges = _ranges(votes, noise)
    near, best = next(ranges), 0.0
    for distance in range(max(teachers // 2 + 1, teachers - math.ceil(teachers / classes)) + 1):
        far = next(ranges)
        best = max(best, math.exp(-beta * distance) * float(table.largest_change(near, far).sum()))
        near = far
    # never 0 but where it is for all votes: far distances underflow, and the larger of a smooth figure and a constant is smooth
    return max(best, _SMALLEST) if table.from_here.max() > 0 else 0.0


@dataclass(frozen=True)
class Release:
    """A published figure: the noisy sum of bounds, and how far the truth may lie above it."""

    figure: float
    margin: float
    failure: float
    ceiling: float

    @property
    def upper(self) -> float:
        """At least the true sum of bounds, except with probability `failure`; between 0 and the loose bound, which hold anyway."""
        return min(max(self.figure + self.margin, 0.0), self.ceiling)


def release(
    counts: ArrayLike,
    noise: float,
    order: float,
    beta: float,
    scale: float,
    generator: np.random.Generator,
    *,
    margin_scale: float = math.inf,
    failure: float = 0.01,
) -> Release:
    """The summed data-dependent bound at `order`, with noise of standard deviation `scale` times its smooth sensitivity.

    The figure alone is no bound: half of the time it lies below the truth. How far below depends on the smooth sensitivity, which is
    private too, so no margin is free. With a finite `margin_scale` the logarithm of the smooth sensitivity is published as well, with noise
    of standard deviation `beta * margin_scale`, and the margin follows from that; otherwise the margin is infinite and `upper` is the loose
    bound.

    Guarantee: the divergences of `cost(beta, scale, orders, margin_scale)` under one teacher's votes changed; figure + margin is at least
        the true sum with probability 1 - failure.
    Proof: `cost`. Each of the two normal draws is below its quantile at failure / 2 with that probability; else the noisy logarithm plus
        its quantile is at least the true one, and so the margin at least the noise that was taken from the figure.
    Breaks if: `beta`, `scale`, `order` or `margin_scale` were chosen by looking at the votes; the generator can be guessed.
    """
    votes = _checked(counts)
    _check_scale(scale, margin_scale)
    if not 0 < failure < 1:
        raise SartorError(f"The probability of failure must lie between 0 and 1, not {failure}.")
    smooth = smooth_sensitivity(votes, noise, order, beta)
    truth = float(_bound(_log_q(np.sort(votes, axis=1)[:, ::-1], _log_tails(_teachers(votes), noise)), noise, order).sum())
    first, second = (float(draw) for draw in generator.standard_normal(2))
    quantile = -float(ndtri_exp(math.log(failure / 2)))
    margin = 0.0 if smooth == 0 else math.inf  # it is 0 for one sequence of votes only if it is for all, and the figure is exact
    if smooth > 0 and math.isfinite(margin_scale):
        published = math.log(smooth) + beta * margin_scale * second
        margin = scale * quantile * math.exp(published + beta * margin_scale * quantile)
    return Release(truth + smooth * scale * first, margin, failure, ceiling=len(votes) * order / noise**2)


def cost(beta: float, scale: float, orders: ArrayLike, margin_scale: float = math.inf) -> Array:
    """Rényi divergence of `release` at each order, infinite from order 1 / (1 - exp(-2 beta)) on.

    Guarantee: exact for the worst neighbours that a beta-smooth sensitivity allows, in both directions.
    Proof: between N(0, s^2) and N(D, s'^2), with y = log(s'/s) and V = 1 + a (e^(2y) - 1) > 0, the divergence is
        a D^2 / (2 s^2 V) + (a y - log(V) / 2) / (a-1) (Gil et al. 2013). D is at most the smaller of s and s' over `scale`, as the local
        sensitivity on either side bounds it, and |y| <= beta. The first term falls with y > 0 and, at D = s' / scale, with y < 0 too; the
        second has derivative a (e^(2y) - 1) / V, so it grows away from 0, faster below than above. Both are largest at y = -beta. The
        logarithm of the smooth sensitivity is a Gaussian mechanism with sensitivity beta, and independent noise adds divergences.
    Papernot et al. 2018 state a e^(2 beta) / scale^2 + (beta a - log(1 - 2 a beta) / 2) / (a-1) for a < 1 / (2 beta).
        That is too small for orders close to 1 / (2 beta), where V nearly vanishes: 6 times at beta 0.05, scale 1 and order 9.9.
    """
    _check_beta(beta)
    _check_scale(scale, margin_scale)
    a = np.asarray(orders, float)
    if not np.all(a > 1):
        raise SartorError("Rényi orders must be above 1.")
    return _divergence(np.float64(beta), np.float64(scale), a, margin_scale)


def _divergence(beta: Any, scale: Any, a: Any, margin_scale: float) -> Array:
    variance = 1 + a * np.expm1(-2 * beta)
    with np.errstate(divide="ignore", invalid="ignore"):
        shift = a * np.exp(-2 * beta) / (2 * scale**2 * variance)
        width = (-a * beta - np.log(variance) / 2) / (a - 1)
    return np.asarray(np.where(variance > 0, shift + width + a / (2 * margin_scale**2), np.inf), float)


class Calibration(NamedTuple):
    """How a release is made: see `release`."""

    beta: float
    scale: float
    margin_scale: float


def calibrate(epsilon: float, delta: float, distance: float, margin_scale: float = math.inf) -> Calibration:
    """The beta and scale at which a release costs at most (epsilon, delta), with about the least noise if `distance` is guessed well.

    The noise is scale times the smooth sensitivity, which falls with beta like exp(-beta d), where d is the distance at which its maximum
    is reached: how many teachers would have to change their minds before most queries lose their tight bound. `distance` is a guess
    of it from public facts (half the lead of the winner that one expects, less what counts as near a tie). A wrong guess costs accuracy,
    never privacy; a guess made from the votes would.

    Guarantee: `cost` of the result, at the orders of the Rényi accountant, converts to at most epsilon at delta.
    """
    if not (epsilon > 0 and 0 < delta < 1):
        raise SartorError(f"A release needs epsilon above 0 and delta between 0 and 1, not {epsilon} and {delta}.")

    def fits(beta: Array, scale: Array) -> NDArray[np.bool_]:
        curves = _divergence(beta[:, None], scale[:, None], rdp.ORDERS, margin_scale)
        return np.asarray(rdp.to_epsilon(curves, rdp.ORDERS, np.full(len(beta), delta)) <= epsilon)

    if not 0 <= distance < math.inf:
        raise SartorError(f"A distance is a number of moved votes, 0 or more, not {distance}.")
    _check_scale(1.0, margin_scale)
    beta = np.geomspace(1e-5, 1.0, 251)
    low, high = np.full(len(beta), -20.0), np.full(len(beta), 20.0)  # logarithms of the scale
    feasible = fits(beta, np.exp(high))
    if not feasible.any():
        raise Infeasible(
            f"A release at epsilon {epsilon:g} and delta {delta:g} is not possible: raise the budget or margin_scale ({margin_scale:g})."
        )
    while np.max(high - low) > 1e-4:
        middle = (low + high) / 2
        enough = fits(beta, np.exp(middle))
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    best = int(np.argmin(np.where(feasible, high - beta * distance, np.inf)))
    return Calibration(float(beta[best]), float(np.exp(high[best])), margin_scale)


def _bound(log_q: Array, noise: float, order: float) -> Array:
    """The Rényi bound of one answer of GNMax, from a bound q on the probability that it is not the winner."""
    return bounds.answer([order], noise, 1.0, log_q)[..., 0]


def _log_tails(teachers: int, noise: float) -> Array:
    """log h(g) for gaps of 0 to all votes."""
    return np.asarray(_log_tail(np.arange(teachers + 1.0), noise))


def _log_tail(gap: Array, noise: float) -> Array:
    """log of the probability that noise turns a gap around: erfc(gap / 2 noise) / 2."""
    return np.asarray(log_ndtr(-gap / (noise * math.sqrt(2))))


def _log_q(ranked: Counts, log_tails: Array) -> Array:
    """log q of histograms with the winner in the first column, at most log 1/2, above which all bounds are loose."""
    terms = log_tails[ranked[:, :1] - ranked[:, 1:]]
    return np.asarray(np.minimum(np.logaddexp.reduce(terms, axis=1), _LOG_HALF))


class _Range(NamedTuple):
    """The smallest and the largest log q of each query within a distance."""

    low: Array
    high: Array


def _ranges(votes: Counts, noise: float) -> Iterator[_Range]:
    """The ranges of log q at distance 0, 1, 2 and so on."""
    log_tails = _log_tails(_teachers(votes), noise)
    flat = np.sort(votes, axis=1)[:, ::-1]
    united, every = flat.copy(), np.arange(len(flat))
    while True:
        open_gap = flat[:, 0] >= flat[:, 1]
        high = np.full(len(flat), _LOG_HALF)
        high[open_gap] = _log_q(flat[open_gap], log_tails)
        yield _Range(_log_q(united, log_tails), high)
        flat[:, 0] -= 1
        flat[:, 1] += 1
        second = 1 + np.argmax(united[:, 1:], axis=1)
        moved = (united[every, second] > 0).astype(np.int64)
        united[every, second] -= moved
        united[:, 0] += moved


@dataclass(frozen=True)
class _Table:
    """Along a grid of q: log q, log U(q), and running maxima of what one vote can change within a cell, from either end."""

    noise: float
    order: float
    log_q: Array
    log_raised: Array
    up_to: Array
    from_here: Array

    def largest_change(self, near: _Range, far: _Range) -> Array:
        """The supremum of the module's docstring, of pairs with one end in the near range and the other in the far one."""
        return (1 + _ROUNDING) * np.maximum(self._between(near.low, far.high), self._between(far.low, near.high))

    def _between(self, low: Array, high: Array) -> Array:
        """The supremum of f(q'') - f(q') over low <= q' <= q'' <= min(U(q'), high).

        Where U(q') is below high, q' lies in a cell up to the one in which U passes high; their maximum is at most the smaller of the
        maxima to the right of low and to the left of that cell (equal to it where the change has one peak). Else q'' is high itself.
        """
        last = np.maximum(np.searchsorted(self.log_raised, high, side="left") - 1, 0)
        first = np.clip(np.searchsorted(self.log_q, low, side="right") - 1, 0, len(self.up_to) - 1)
        last = np.minimum(last, len(self.up_to) - 1)
        inner = np.where(first <= last, np.minimum(self.up_to[last], self.from_here[first]), 0.0)
        edge = _bound(high, self.noise, self.order) - _bound(np.maximum(self.log_q[last], low), self.noise, self.order)
        return np.maximum(inner, edge)


@lru_cache(maxsize=4)
def _table(classes: int, teachers: int, noise: float, order: float) -> _Table:
    cells = max(_CELLS, _CELLS_PER_VOTE * (teachers + 1))
    t = np.linspace(teachers + 1.0, 0.0, cells + 1)
    others = math.log(classes - 2) if classes > 2 else -np.inf
    log_q = np.logaddexp(_log_tail(t, noise), others + _log_tail(2 * t - 1.5, noise))
    log_raised = np.logaddexp(_log_tail(t - 2, noise), others + _log_tail(2 * t - 2.5, noise))
    log_q, log_raised = np.minimum(log_q, _LOG_HALF), np.minimum(log_raised, _LOG_HALF)
    change = np.maximum(_bound(log_raised[1:], noise, order) - _bound(log_q[:-1], noise, order), 0.0)
    return _Table(noise, order, log_q, log_raised, np.maximum.accumulate(change), np.maximum.accumulate(change[::-1])[::-1])


def _teachers(votes: Counts) -> int:
    return int(votes[0].sum()) if len(votes) else 1


def _checked(counts: ArrayLike) -> Counts:
    given = np.asarray(counts)
    if given.ndim != 2 or given.shape[1] < 2:
        raise SartorError(f"Votes are one row per query and one column per class, of two classes or more, not of shape {given.shape}.")
    votes = np.where(np.isfinite(given), given, -1).astype(np.int64)
    totals = votes.sum(axis=1)
    if np.any(votes != given) or np.any(votes < 0) or np.any(totals != totals[:1]) or np.any(totals < 1):
        raise SartorError("Votes must be whole numbers, and each query must be answered by all teachers, one vote each.")
    return votes


def _check_mechanism(noise: float, order: float) -> None:
    if not (0 < noise < math.inf and 1 < order < math.inf):
        raise SartorError(f"Noise must be above 0 and the order above 1, both finite, not {noise} and {order}.")


def _check_beta(beta: float) -> None:
    if not 0 < beta < math.inf:
        raise SartorError(f"beta must be above 0 and finite, not {beta}.")


def _check_scale(scale: float, margin_scale: float) -> None:
    if not (scale > 0 and margin_scale > 0):
        raise SartorError(f"Scales of noise must be above 0, not {scale} and {margin_scale}.")
