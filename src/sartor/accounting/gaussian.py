"""Gaussian mechanisms in closed form: any number of full-batch steps, or one sampled step.

Full-batch Gaussian steps are one Gaussian step with their squared ratios added up, and one sampled step needs no composition, so nothing
is discretised here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting.special import log_ndtr, ndtr

Array = NDArray[np.float64]


def log_ratio_at(loss: NDArray[Any], rate: float) -> Array:
    """log R where a loss log(1 - rate + rate R) is reached; -inf at or below the smallest loss, log(1 - rate)."""
    if rate == 1:
        return np.asarray(loss, float)
    floor = np.log1p(-rate)
    with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
        positive = loss - np.log(rate) + np.log1p(-(1 - rate) * np.exp(-np.maximum(loss, 0.0)))
        other = floor + np.log(np.maximum(np.expm1(np.minimum(loss, 0.0) - floor), 0.0)) - np.log(rate)
    return np.asarray(np.where(loss > 0, positive, other), float)


def delta_of(mu: float | Array, epsilon: Array) -> Array:
    """delta(epsilon) of the Gaussian mechanism whose sensitivity over noise is `mu`, or of many of them.

    Guarantee: exact in both directions, which are alike (Balle and Wang 2018, theorem 8).
    """
    ratio, eps = np.broadcast_arrays(np.asarray(mu, float), epsilon)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        log_second = eps + log_ndtr(-eps / ratio - ratio / 2)
        log_first = log_ndtr(-eps / ratio + ratio / 2)
        # Phi(a) - e^eps Phi(b) as Phi(a) (1 - exp(log_second - log_first)), which keeps the digits of small deltas
        found = ndtr(-eps / ratio + ratio / 2) * -np.expm1(np.minimum(log_second - log_first, 0.0))
    # an epsilon beyond the range of floats over the ratio is out of everybody's reach
    return np.where((ratio == 0) | np.isneginf(log_first), 0.0, np.where(np.isinf(ratio), 1.0, found))


def epsilon_of(mu: float | Array, delta: Array) -> Array:
    """The smallest epsilon at which the Gaussian mechanism, or each of many, has divergence at most delta."""
    ratio, at = np.broadcast_arrays(np.asarray(mu, float), delta)
    out, inner = np.where(ratio == 0, 0.0, np.inf), (ratio > 0) & np.isfinite(ratio)
    if inner.any():
        own = ratio[inner]
        out[inner] = _smallest(lambda epsilon: delta_of(own, epsilon), at[inner], own)
    return out


def mu_for(epsilon: float, delta: float) -> float:
    """The largest sensitivity over noise at which the Gaussian mechanism has divergence at most delta at epsilon, rounded down.

    Guarantee: `delta_of(mu_for(epsilon, delta), epsilon) <= delta`.
    """
    low, high, at = 0.0, 1.0, np.array(float(epsilon))
    while delta_of(high, at) <= delta:
        low, high = high, 2 * high
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if delta_of(middle, at) <= delta else (low, middle)
    return low


def sampled_delta_of(rate: float, mu: float, epsilon: Array) -> Array:
    """delta(epsilon) of one step that includes the holder with probability `rate`, in the worse direction.

    Guarantee: exact: the divergence of (1-q) N(0,1) + q N(mu,1) from N(0,1), and the other way round, whose loss is monotone.
    """
    above = log_ratio_at(epsilon, rate) / mu + mu / 2  # where the loss of removing exceeds epsilon
    below = log_ratio_at(-epsilon, rate) / mu + mu / 2  # below which the loss of adding does
    with np.errstate(over="ignore", under="ignore"):
        remove = rate * ndtr(mu - above) - np.exp(np.minimum(np.log(np.expm1(np.minimum(epsilon, 700.0)) + rate) + log_ndtr(-above), 0.0))
        log_mixture = np.logaddexp(np.log1p(-rate) + log_ndtr(below), np.log(rate) + log_ndtr(below - mu))
        add = ndtr(below) - np.exp(np.minimum(epsilon + log_mixture, 0.0))
    out: Array = np.where(np.isfinite(epsilon), np.maximum(np.maximum(remove, np.where(np.isfinite(below), add, 0.0)), 0.0), 0.0)
    return out


def sampled_epsilon_of(rate: float, mu: float, delta: Array) -> Array:
    """The smallest epsilon at which one sampled step has divergence at most delta."""
    return _smallest(lambda epsilon: sampled_delta_of(rate, mu, epsilon), delta, mu)


def _smallest(divergence: Callable[[Array], Array], delta: Array, mu: float | Array) -> Array:
    """Bisection, rounded up; sampling only lowers epsilon, so the full-batch Chernoff bound is an upper end."""
    low = np.zeros_like(delta)
    high = mu**2 / 2 + mu * np.sqrt(2 * np.log(1 / delta))
    for _ in range(100):
        middle = (low + high) / 2
        fits = divergence(middle) <= delta
        low, high = np.where(fits, low, middle), np.where(fits, middle, high)
    out: Array = np.where(divergence(np.zeros_like(delta)) <= delta, 0.0, high)
    return out
