"""Rényi differential privacy of the sampled Gaussian, for many mechanisms and orders at once.

What this room promises: an upper bound on the Rényi divergence between a run with a holder and the same run with that holder
zeroed, in both directions, and the (epsilon, delta) that follows from it. It knows nothing of people or plans.

Integer orders are a finite sum of positive terms, fractional orders an integral of a positive analytic function by the
trapezoidal rule, whose error falls exponentially in the number of nodes. Neither subtracts large numbers, so rates of 1e-12
lose no digits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.special import gammaln
from sartor.accounting.use import probability_of_use
from sartor.errors import SartorError
from sartor.exposure import Composition, Exposure, Filtered, Included, SampledGaussian, SampledRecords

Array = NDArray[np.float64]
Conversion = Literal["balle", "mironov"]
NAME = "rdp"
"""By which plans and documents name the accountant of this room; the others are in `accountants`."""

_FRACTIONAL_BELOW = 11.0
_LARGEST_ORDER = 8192
_LARGE = np.unique(np.round(64 * 1.06 ** np.arange(1, 84))).astype(float)

ORDERS: Array = np.unique(
    np.concatenate(
        [
            1 + np.geomspace(0.01, 0.1, 8),
            np.arange(1.15, 3, 0.05),
            np.arange(3.0, _FRACTIONAL_BELOW, 0.1),
            np.arange(_FRACTIONAL_BELOW, 64),
            _LARGE[_LARGE <= _LARGEST_ORDER],
        ]
    ).round(12)
)
"""The orders that are searched first: fine where budgets of 0.05 to 50 have their optimum; `_beyond` goes on where the last is the best."""

_COARSE = np.unique(np.append(np.arange(0, len(ORDERS), 12), len(ORDERS) - 1))
_USUAL = int(np.searchsorted(ORDERS[_COARSE], 400))  # larger orders are looked at only by those whose optimum may lie there
_NO_NOISE = 1e-50  # a noise multiplier below this is none
_BLOCK = 2_000_000  # numbers held at once
_MOST_NODES = 4096  # of the quadrature: reached at a noise multiplier of about 0.08
_NODES_BELOW = 128  # of the integral up to a point, at large orders
_FURTHER: Array = 1.06 ** np.arange(1.0, 40.0)  # a stretch of orders beyond one, over that one


def sampled_gaussian(rate: ArrayLike, noise_multiplier: ArrayLike, orders: ArrayLike) -> Array:
    """Rényi divergence of one step of the sampled Gaussian, as an array of shape (mechanisms, orders).

    Guarantee: one step in which a vector of norm at most 1 enters, with probability `rate`, a sum with Gaussian noise of standard
        deviation `noise_multiplier`, has Rényi divergence at most this at each order, with the holder added or removed.
    Proof: Mironov, Talwar and Zhang 2019, theorem 4 (reduction to one dimension) and corollary 7 (removing is the worse direction).
    Breaks if: the coins of different holders or steps are not independent, or the draw is not Poisson.
    """
    q, z = np.broadcast_arrays(np.atleast_1d(np.asarray(rate, float)), np.atleast_1d(np.asarray(noise_multiplier, float)))
    a = np.atleast_1d(np.asarray(orders, float))
    if not np.all(a > 1):
        raise ValueError("Rényi orders must be above 1.")
    z = np.where(z < _NO_NOISE, 0.0, z)
    out = np.empty((len(q), len(a)))
    with np.errstate(divide="ignore", over="ignore"):
        out[:] = np.where(q[:, None] == 0, 0.0, a / (2 * z[:, None] ** 2))  # rate 0, rate 1 and no noise are closed forms
    inner = (q > 0) & (q < 1) & (z > 0) & (z < 1 / _NO_NOISE)
    if not inner.any():
        return out
    log_moment = np.empty((int(inner.sum()), len(a)))
    whole = a == np.round(a)
    for columns, moment in ((whole, _moment_at_integers), (~whole, _moment_by_quadrature)):
        if columns.any():
            log_moment[:, columns] = moment(q[inner], z[inner], a[columns])
    out[inner] = log_moment / (a - 1)
    return out


def _moment_at_integers(q: Array, z: Array, orders: Array) -> Array:
    """log E[(P/Q)^order] by the binomial sum without its first two terms, which add up to one together with the rest's counterpart.

    E[(1 - q + q R)^a] with E[R^k] = exp(k(k-1)/2z^2) equals 1 + sum over k >= 2 of C(a,k) q^k (1-q)^(a-k) (E[R^k] - 1).
    """
    out = np.empty((len(q), len(orders)))
    for j, a in enumerate(orders):
        k = np.arange(2.0, a + 1)
        log_binomial = gammaln(a + 1) - gammaln(k + 1) - gammaln(a - k + 1)
        rows = max(1, _BLOCK // len(k))
        for start in range(0, len(q), rows):
            part = slice(start, start + rows)
            exponent = k * (k - 1) / (2 * z[part, None] ** 2)
            log_expm1 = exponent + np.log(-np.expm1(-exponent))
            terms = log_binomial + k * np.log(q[part, None]) + (a - k) * np.log1p(-q[part, None]) + log_expm1
            out[part, j] = np.logaddexp(0.0, _logsumexp(terms))
    return out


def _moment_by_quadrature(q: Array, z: Array, orders: Array) -> Array:
    """log E[(1 + u)^order] with u = q (R - 1), as log(1 + E[(1 + u)^order - 1 - order u]): the integrand is nonnegative.

    The integrand is analytic in a strip of half-width pi z around the real axis of the standardised variable, which sets the step.
    `orders` are common to all mechanisms or one row for each.
    """
    out = np.empty((len(q), orders.shape[-1]))
    step, count = _nodes(z, orders)
    harsh = count > _MOST_NODES
    if harsh.any():
        out[harsh] = _moment_by_convexity(q[harsh], z[harsh], orders)
    count = np.where(harsh, 0, count).astype(int)
    for nodes in np.unique(count[~harsh]):
        members = np.flatnonzero(count == nodes)
        rows = max(1, _BLOCK // (int(nodes) * orders.shape[-1]))
        for start in range(0, len(members), rows):
            part = members[start : start + rows]
            own = orders if orders.ndim == 1 else orders[part]
            out[part] = _integrate(q[part, None], z[part, None], own, step[part, None], int(nodes))
    return out


def _nodes(z: Array, orders: Array) -> tuple[Array, Array]:
    """Step and number of nodes for each mechanism, to integrate up to its largest order."""
    step = np.minimum(1 / 1.5, 0.8 * z)
    return step, 2.0 ** np.ceil(np.log2((orders.max(axis=-1) / z + 20) / step))


def _moment_by_convexity(q: Array, z: Array, orders: Array) -> Array:
    """An upper bound for very small noise: log E[(P/Q)^order] is convex in the order and 0 at 1, so it lies below its chords."""
    whole = np.arange(1.0, np.ceil(orders.max()) + 1)
    at_whole = np.concatenate([np.zeros((len(q), 1)), _moment_at_integers(q, z, whole[1:])], axis=1)
    below = np.minimum(np.floor(orders).astype(int), len(whole) - 1)
    share = orders - below
    return np.asarray((1 - share) * at_whole[:, below - 1] + share * at_whole[:, below])


def _integrate(q: Array, z: Array, orders: Array, step: Array, nodes: int) -> Array:
    y = -10 + step * np.arange(nodes)
    log_ratio = y / z - 1 / (2 * z**2)
    log_u = np.log(q) + log_ratio  # of q R
    log_base = np.logaddexp(np.log1p(-q), log_u)  # log(1 + u)
    a = orders[..., None]
    with np.errstate(over="ignore"):
        u = q * np.expm1(log_ratio)
        power, au = a * log_base[:, None, :], a * u[:, None, :]
    small = np.abs(au) < 0.02
    series = np.zeros_like(power)
    term = np.where(small, au, 0.0)
    for j in range(2, 9):
        term = term * np.where(small, u[:, None, :], 0.0) * (a - j + 1) / j
        series += term
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        # exp(power) - 1 - a u, for large powers as exp(power) (1 - (1 + a u) exp(-power))
        log_one_plus_au = np.where(np.isfinite(au), np.log1p(np.maximum(au, -1 + 1e-15)), np.log(a) + log_u[:, None, :])
        large = power + np.log(np.maximum(-np.expm1(np.minimum(log_one_plus_au - power, 0.0)), 1e-300))
        middle = np.log(np.maximum(np.expm1(np.minimum(power, 30.0)) - np.minimum(au, 1e30), 1e-300))
        log_value = np.where(small, np.log(np.maximum(series, 1e-300)), np.where(power > 1, large, middle))
    log_density = -0.5 * y**2 - 0.5 * np.log(2 * np.pi) + np.log(step)
    out: Array = np.logaddexp(0.0, _logsumexp(log_value + log_density[:, None, :]))
    return out


def _logsumexp(values: Array) -> Array:
    largest = np.max(values, axis=-1)
    total: Array = largest + np.log(np.sum(np.exp(values - largest[..., None]), axis=-1))
    return total


def curve(exposure: Exposure, orders: ArrayLike = ORDERS) -> Array:
    """Rényi divergence of a whole exposure at each order; infinite where no bound is known."""
    a = np.atleast_1d(np.asarray(orders, float))
    if isinstance(exposure, SampledGaussian):
        if exposure.steps == 0:
            return np.zeros(len(a))
        return np.asarray(exposure.steps * sampled_gaussian(exposure.rate, exposure.noise_multiplier, a)[0])
    if isinstance(exposure, Composition):
        counts = Counter(exposure.parts)  # rounds that are alike are many
        return np.asarray(np.sum([np.zeros(len(a)), *(count * _remembered(part, a) for part, count in counts.items())], axis=0))
    if isinstance(exposure, Included):
        return _included(exposure, a)
    if isinstance(exposure, SampledRecords):
        return curve(_as_one(exposure), a)
    if isinstance(exposure, Filtered):
        return _per_unit(exposure, sampled_gaussian(exposure.rate, exposure.noise_multiplier / np.array(exposure.rungs), a))
    raise TypeError(f"{type(exposure).__name__} is not an exposure that the Rényi accountant knows.")


def _remembered(exposure: Exposure, orders: Array) -> Array:
    """The curve of a part: at the usual orders it is computed once, as many compositions share their parts."""
    usual = isinstance(exposure, SampledGaussian) and np.array_equal(orders, ORDERS)
    return _usual_curve(exposure) if usual else curve(exposure, orders)


@lru_cache(maxsize=1 << 10)
def _usual_curve(exposure: Exposure) -> Array:
    return curve(exposure, ORDERS)


def knows(exposure: Exposure) -> bool:
    """Whether this room has a bound for an exposure: for all but several records of one holder that are drawn one by one."""
    if isinstance(exposure, Composition):
        return all(knows(part) for part in exposure.parts)
    if isinstance(exposure, Included):
        return knows(exposure.exposure)
    return isinstance(exposure, SampledGaussian | Filtered) or exposure.plain is not None


def _as_one(exposure: SampledRecords) -> SampledGaussian:
    plain = exposure.plain
    if plain is None:
        raise SartorError('several records of one holder, drawn one by one, have no Rényi bound here; ask the accountant "pld".')
    return plain


def _per_unit(exposure: Filtered, step: Array) -> Array:
    """What all units of a filter buy at most, from what a step at each rung costs (rungs, orders).

    Proof: at each order the divergences of the stretches add up, whoever chose them (Feldman and Zrnic 2021, with a budget that is fixed
    for each order beforehand), and a stretch adds at most its units times the most that any rung gives for one.
    """
    by_unit = exposure.stretch * step / np.array(exposure.costs, float)[:, None]
    return np.asarray(exposure.units * np.max(by_unit, axis=0))


_LARGEST_INCLUDED_ORDER = 256
_WITHIN = np.arange(2.0, _LARGEST_INCLUDED_ORDER + 1)


@lru_cache(maxsize=1 << 10)
def _inner(exposure: Exposure) -> Array:
    """What is behind a coin, at every whole order up to the largest: remembered, as solvers try one coin after another before it."""
    return curve(exposure, _WITHIN)


@lru_cache(maxsize=1)
def _binomials() -> tuple[Array, NDArray[np.bool_]]:
    """log C(a, l) for whole orders a and l from 2 on, and whether l is at most a."""
    a, k = _WITHIN[:, None], _WITHIN[None, :]
    return gammaln(a + 1) - gammaln(k + 1) - gammaln(np.maximum(a - k, 0.0) + 1), k <= a


def _included(exposure: Included, orders: Array) -> Array:
    """Rényi divergence of "with probability p the inner exposure, otherwise nothing"; orders beyond 256 gain nothing from the coin.

    Proof: with l = P/Q of the inner exposure, D(k) a bound on its divergence at order k in both directions, and R = 1 - p + p l:
    remove, at whole orders a: E_Q[R^a] is the binomial sum of C(a,k) p^k (1-p)^(a-k) e^((k-1) D(k)), exactly, as E_Q[l] = 1;
    add: E_Q[R^(1-a)] <= E_Q[l^(-p (a-1))] = e^((b-1) D(b)) with b = 1 + p (a-1), as R >= l^p (the weighted means of 1 and l); and it is
    at most 1 + ((1-p)^(1-a) - 1 - (a-1) p) (e^D(2) - 1), as with u = p (l - 1) >= -p, of mean 0, ((1+u)^(1-a) - 1 + (a-1) u) / u^2 falls
    in u, and E_Q[u^2] = p^2 (e^D(2) - 1).
    Logarithms of moments are convex in the order and 0 at order 1, so between whole orders they lie below their chords. It is never more
    than without the coin: the divergence is quasi-convex in its first argument and convex in its second (van Erven and Harremoes 2014,
    theorems 12 and 13), and nothing at all has none.
    """
    p = exposure.probability
    if p == 0:
        return np.zeros(len(orders))
    if p == 1:
        return curve(exposure.exposure, orders)
    out, near = _remembered(exposure.exposure, orders).copy(), orders <= _LARGEST_INCLUDED_ORDER
    if not near.any():
        return out
    inner = _inner(exposure.exposure)
    known = int(np.cumprod(np.isfinite(inner)).sum())  # a bound at an order needs those at all orders below
    if not known:
        return out
    moment = (_WITHIN[:known] - 1) * inner[:known]
    rows = np.unique(np.concatenate([np.floor(orders[near]), np.ceil(orders[near])]).astype(int)) - 2
    rows = rows[(rows >= 0) & (rows < known)]
    a, k = _WITHIN[rows][:, None], _WITHIN[None, :known]
    log_binomial, inside = _binomials()
    terms = np.where(inside[rows, :known], log_binomial[rows, :known] + k * np.log(p) + (a - k) * np.log1p(-p) + moment, -np.inf)
    first = (a - 1) * np.log1p(-p) + np.log1p((a - 1) * p)
    removed = _logsumexp(np.concatenate([terms, first], axis=1))
    added = np.minimum(_chord(1 + p * (a[:, 0] - 1), _WITHIN[:known], moment), _added_by_variance(p, a[:, 0], float(moment[0])))
    behind = _chord(orders[near], a[:, 0], np.maximum(np.maximum(removed, added), 0.0)) / (orders[near] - 1)
    out[near] = np.minimum(out[near], behind)
    return np.asarray(np.maximum(out, 0.0))


def _added_by_variance(p: float, orders: Array, second: float) -> Array:
    """The logarithm of 1 + ((1-p)^(1-a) - 1 - (a-1) p) (e^second - 1) at each order a."""
    exponent = -(orders - 1) * np.log1p(-p)
    with np.errstate(divide="ignore"):
        log_curvature = exponent + np.log(np.maximum(-np.expm1(-exponent) - (orders - 1) * p * np.exp(-exponent), 0.0))
        return np.asarray(np.logaddexp(0.0, log_curvature + second + np.log(-np.expm1(-second))))


def _chord(orders: Array, whole: Array, log_moment: Array) -> Array:
    """The logarithm of a moment between whole orders at which it is known: at most this; infinite beyond the last of them."""
    return np.asarray(np.interp(orders, np.append(1.0, whole), np.append(0.0, log_moment), right=np.inf))


def to_epsilon(divergence: ArrayLike, orders: ArrayLike, delta: ArrayLike, conversion: Conversion = "balle") -> Array:
    """The epsilon that Rényi divergences (..., orders) imply at delta.

    Proof: "balle" is Balle et al. 2020, theorem 21 (also Canonne, Kamath and Steinke 2020, proposition 12); "mironov" is Mironov 2017,
    proposition 3.
    """
    best: Array = np.maximum(np.min(_by_order(np.asarray(divergence, float), orders, delta, conversion), axis=-1), 0.0)
    return best


def _by_order(divergence: Array, orders: ArrayLike, delta: ArrayLike, conversion: Conversion = "balle") -> Array:
    gain, price = conversion_terms(orders, delta, conversion)
    return np.asarray(divergence + gain - price)


def conversion_terms(orders: ArrayLike, delta: ArrayLike, conversion: Conversion = "balle") -> tuple[Array, Array]:
    """What a divergence gains and what it pays on its way to an epsilon at delta: epsilon is divergence + gain - price, at each order."""
    a, log_delta = np.asarray(orders, float), np.log(np.asarray(delta, float))[..., None]
    if conversion == "mironov":
        return np.zeros_like(a), np.asarray(log_delta / (a - 1))
    return np.log1p(-1 / a), np.asarray((log_delta + np.log(a)) / (a - 1))


def to_delta(divergence: ArrayLike, orders: ArrayLike, epsilon: ArrayLike, conversion: Conversion = "balle") -> Array:
    """The delta that Rényi divergences (..., orders) imply at epsilon: the same bounds, solved for delta."""
    d, a = np.asarray(divergence, float), np.asarray(orders, float)
    eps = np.asarray(epsilon, float)[..., None]
    with np.errstate(invalid="ignore", over="ignore"):
        log_delta = (a - 1) * (d - eps)
        if conversion == "balle":
            log_delta = log_delta + (a - 1) * np.log1p(-1 / a) - np.log(a)
    best: Array = np.exp(np.minimum(np.min(np.where(np.isnan(log_delta), 0.0, log_delta), axis=-1), 0.0))
    return best


def epsilon_and_order(rate: Array, noise_multiplier: Array, steps: Array, delta: Array) -> tuple[Array, Array]:
    """Epsilon of many sampled Gaussians, each at its own delta, and the order that gave it.

    A coarse pass over the orders finds the neighbourhood of each optimum (the bound has one valley), a second pass searches it. Every
    order gives a valid bound, so a missed optimum would cost tightness, never soundness.
    """
    count = len(rate)
    eps, order = np.full(count, np.inf), np.full(count, ORDERS[0])
    if not count:
        return eps, order
    coarse = np.full((count, len(_COARSE)), np.inf)
    usual, large = ORDERS[_COARSE[: _USUAL + 1]], ORDERS[_COARSE[_USUAL + 1 :]]
    coarse[:, : _USUAL + 1] = steps[:, None] * sampled_gaussian(rate, noise_multiplier, usual)
    values = _by_order(coarse, ORDERS[_COARSE], delta)
    rows = np.flatnonzero(np.argmin(values, axis=1) == _USUAL)
    if len(rows):
        coarse[rows, _USUAL + 1 :] = steps[rows, None] * sampled_gaussian(rate[rows], noise_multiplier[rows], large)
        values[rows, _USUAL + 1 :] = _by_order(coarse[rows, _USUAL + 1 :], large, delta[rows])
    best = np.argmin(values, axis=1)
    for b in np.unique(best):
        rows = np.flatnonzero(best == b)
        window = ORDERS[_COARSE[max(b - 1, 0)] : _COARSE[min(b + 1, len(_COARSE) - 1)] + 1]
        fine = _by_order(steps[rows, None] * sampled_gaussian(rate[rows], noise_multiplier[rows], window), window, delta[rows])
        at = np.argmin(fine, axis=1)
        eps[rows], order[rows] = np.maximum(fine[np.arange(len(rows)), at], 0.0), window[at]
    _go_on(eps, order, rate, noise_multiplier, steps, delta)
    return eps, order


def _go_on(eps: Array, order: Array, rate: Array, noise_multiplier: Array, steps: Array, delta: Array) -> None:
    """Search on, in place, for mechanisms whose best order is the last of those searched first."""
    for i in np.flatnonzero(order == ORDERS[-1]):
        mechanism = SampledGaussian(float(rate[i]), float(noise_multiplier[i]), int(steps[i]))
        eps[i], order[i] = _beyond(mechanism, float(delta[i]), float(eps[i]))


def _beyond(exposure: Exposure, delta: float, epsilon: float, conversion: Conversion = "balle") -> tuple[float, float]:
    """The best bound from orders beyond the last, and its order, given the bound at the last; for epsilons of about log(1/delta) / 8,192.

    No order is the largest: stretches of orders are searched until the best is not the end of one, or nothing is spent.
    """
    order, values = float(ORDERS[-1]), np.array([epsilon])
    while np.argmin(values) == len(values) - 1 and values[-1] > 0:
        orders = order * _FURTHER
        found = _by_order(_smooth_curve(exposure, orders), orders, np.asarray(delta), conversion)
        values = np.append(values[-1], found)
        best = int(np.argmin(values))
        order = float(np.append(order, orders)[best])
        epsilon = min(epsilon, float(values[best]))
    return max(epsilon, 0.0), order


def orders_beyond(largest: float) -> Array:
    """The orders beyond the last that are searched, up to one."""
    stretches = [ORDERS[-1:]]
    while stretches[-1][-1] < largest:
        stretches.append(stretches[-1][-1] * _FURTHER)
    return np.concatenate(stretches[1:]) if len(stretches) > 1 else np.empty(0)


def _smooth_curve(exposure: Exposure, orders: Array) -> Array:
    """Rényi divergences of a whole exposure at large orders; infinite where `at_large_orders` has no bound, or inclusion is at stake."""
    if isinstance(exposure, Composition):
        return np.asarray(np.sum([np.zeros(len(orders)), *(_smooth_curve(part, orders) for part in exposure.parts)], axis=0))
    if isinstance(exposure, Included):
        return np.full(len(orders), np.inf)
    if isinstance(exposure, SampledRecords):
        return _smooth_curve(_as_one(exposure), orders)
    if isinstance(exposure, Filtered):
        noise = exposure.noise_multiplier / np.array(exposure.rungs)
        return _per_unit(exposure, at_large_orders(np.full(len(noise), exposure.rate), noise, orders))
    if exposure.steps == 0:
        return np.zeros(len(orders))
    return np.asarray(exposure.steps * at_large_orders(np.array([exposure.rate]), np.array([exposure.noise_multiplier]), orders)[0])


def at_large_orders(rate: Array, noise_multiplier: Array, orders: Array) -> Array:
    """Rényi divergence of one step, (mechanisms, orders): a bound at any order, exact where few nodes do; infinite with little noise."""
    out = np.full((len(rate), len(orders)), np.inf)
    closed = (rate == 0) | (rate == 1) | (noise_multiplier >= 1 / _NO_NOISE)
    if closed.any():
        out[closed] = sampled_gaussian(rate[closed], noise_multiplier[closed], orders)
    apart = (noise_multiplier >= 1) & (_nodes(noise_multiplier, orders)[1] > _NODES_BELOW)
    few = integrable(rate, noise_multiplier, orders) & ~closed & ~apart
    if few.any():
        out[few] = near_orders(rate[few], noise_multiplier[few], orders)
    for i in np.flatnonzero(apart & ~closed):
        out[i] = _moment_in_two(float(rate[i]), float(noise_multiplier[i]), orders) / (orders - 1)
    return out


def _moment_in_two(q: float, z: float, orders: Array) -> Array:
    """log E[(P/Q)^order] where the order over the noise is beyond what few nodes cover: an integral up to a point, a bound above it.

    Proof: above the point, the density falls and P/Q rises, so on a cell the integrand is at most the density at its lower end times the
    ratio's power at its upper end; beyond the last cell, at order / z + 40, the logarithm falls by 40 for each unit at least.
    """
    column, step = np.array([[q]]), np.array([[1 / 1.5]])
    inner = _integrate(column, np.array([[z]]), orders, step, _NODES_BELOW)[0]
    begin = -10 + (_NODES_BELOW - 2) / 1.5  # an overlap, for the end of the sum
    end = float(orders.max()) / z + 40
    edge = np.append(begin * 1.01 ** np.arange(np.ceil(np.log(end / begin) / np.log(1.01))), end)
    log_ratio = np.logaddexp(np.log1p(-q), np.log(q) + edge / z - 1 / (2 * z**2))
    above = orders[:, None] * log_ratio[1:] - edge[:-1] ** 2 / 2 + np.log(np.diff(edge))
    last = orders * log_ratio[-1] - end**2 / 2
    tail = np.logaddexp(_logsumexp(above), last) - 0.5 * np.log(2 * np.pi)
    return np.asarray(np.logaddexp(inner, tail))


def integrable(rate: Array, noise_multiplier: Array, orders: Array) -> NDArray[np.bool_]:
    """Which mechanisms have divergences at their own row of orders that take few nodes."""
    return np.asarray((rate > 0) & (rate < 1) & (noise_multiplier > 0) & (_nodes(noise_multiplier, orders)[1] <= _MOST_NODES))


def near_orders(rate: Array, noise_multiplier: Array, orders: Array) -> Array:
    """Rényi divergence of one step of each mechanism at its own row of orders, for `integrable` ones."""
    return np.asarray(_moment_by_quadrature(rate, noise_multiplier, orders) / (orders - 1))


_NEAR = np.array([-8, -3, -1, 0, 1, 3, 8])


def spend_near(rate: Array, noise_multiplier: Array, steps: Array, delta: Array, order: Array) -> tuple[Array, Array]:
    """Epsilon of many sampled Gaussians from orders around a guess, and the best of them: for solvers that move by small steps.

    An upper bound like `spend`, at a tenth of its price. The guess is moved downhill until a better order is not in sight.
    """
    eps, best = np.full(len(rate), np.inf), np.clip(np.searchsorted(ORDERS, order), 0, len(ORDERS) - 1)
    out, near = np.empty(len(rate)), np.ones(len(rate), np.bool_)
    active = np.arange(len(rate))
    for _ in range(len(ORDERS)):
        orders = ORDERS[np.clip(best[active][:, None] + _NEAR, 0, len(ORDERS) - 1)]
        q, z = rate[active], noise_multiplier[active]
        cheap = integrable(q, z, orders)
        rest = active[~cheap]
        if len(rest):
            eps[rest], out[rest] = epsilon_and_order(rate[rest], noise_multiplier[rest], steps[rest], delta[rest])
            near[rest] = False
        active, orders = active[cheap], orders[cheap]
        if not len(active):
            break
        divergence = steps[active, None] * near_orders(q[cheap], z[cheap], orders)
        values = _by_order(divergence, orders, delta[active])
        at = np.argmin(values, axis=1)
        eps[active] = np.maximum(values[np.arange(len(at)), at], 0.0)
        moved = np.clip(best[active] + _NEAR[at], 0, len(ORDERS) - 1)
        settled = moved == best[active]
        best[active] = moved
        active = active[~settled]
    out[near] = ORDERS[best[near]]
    _go_on(eps, out, rate, noise_multiplier, steps, delta)
    return eps, out


def epsilon_of(exposures: Sequence[Exposure], delta: Array, orders: ArrayLike, conversion: Conversion) -> Array:
    """Epsilon of each exposure at its delta; 0 where using the holder at all is as rare as delta."""
    curves = np.array([curve(e, orders) for e in exposures])
    ever = np.array([probability_of_use(e) for e in exposures])
    by_order = _by_order(curves, orders, delta, conversion)
    found = np.maximum(np.min(by_order, axis=-1), 0.0)
    if np.array_equal(np.asarray(orders, float), ORDERS):
        for i in np.flatnonzero(np.argmin(by_order, axis=-1) == len(ORDERS) - 1).tolist():
            found[i] = _beyond(exposures[i], float(delta[i]), float(found[i]), conversion)[0]
    return np.where(ever <= delta, 0.0, found)


def delta_of(exposures: Sequence[Exposure], epsilon: Array, orders: ArrayLike, conversion: Conversion) -> Array:
    """Delta of each exposure at its epsilon; at most the probability of using the holder at all."""
    curves = np.array([curve(e, orders) for e in exposures])
    ever = np.array([probability_of_use(e) for e in exposures])
    return np.asarray(np.minimum(to_delta(curves, orders, epsilon, conversion), ever))
