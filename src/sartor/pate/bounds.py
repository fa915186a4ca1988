"""What one vote costs in Rényi divergences: by the noise alone, or by how clearly the teachers agreed.

The bounds are for a holder whose teachers weigh `sensitivity` votes together. Removing or replacing the holder moves at most that many
votes from one class to another: two counts change by it, and the largest count changes by at most it.

Guarantee: `answer` and `comparison` bound the divergence of GNMax and of the noisy threshold between any neighbours, in both directions.
    With `log_q`, of these votes, they bound the divergence from this data set to each neighbour; the way back is bounded by the
    neighbour's own votes (Papernot et al. 2018, theorem 6, which is lemma 5 of individualized PATE).
Proof: noise of deviation s on two counts that change by d is a Gaussian mechanism of ratio sqrt(2) d / s, on one count of ratio d / s.
    Votes and noise over d are an ensemble with sensitivity 1 and the same winner (corollary 1), so lemma 5 holds with noise s / d.
Breaks if: a figure from `log_q` is shown to anyone: it is a function of the private votes.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.special import log_ndtr

Array = NDArray[np.float64]

PAPER_ORDERS: Array = np.arange(2.0, 51.0)
_LARGE = 300.0  # of a logarithm


def answer(orders: ArrayLike, noise: float, sensitivity: ArrayLike, log_q: ArrayLike | None = None) -> Array:
    """Divergences of an answer by GNMax: (..., orders) for each sensitivity, and for each `log_q` before that."""
    return _divergence(orders, noise, sensitivity, log_q)


def comparison(orders: ArrayLike, noise: float, sensitivity: ArrayLike, log_q: ArrayLike | None = None) -> Array:
    """Divergences of one noisy comparison of a count with a threshold."""
    return _divergence(orders, np.sqrt(2.0) * noise, sensitivity, log_q)


def _divergence(orders: ArrayLike, noise: float, sensitivity: ArrayLike, log_q: ArrayLike | None) -> Array:
    a = np.asarray(orders, float)
    votes = np.asarray(sensitivity, float)[..., None]
    ratio = votes / noise
    loose = np.asarray(a * votes**2 / noise**2)
    if log_q is None:
        return loose
    lifted = np.asarray(log_q, float).reshape(*np.shape(log_q), *[1] * ratio.ndim)
    return np.asarray(np.minimum(_tight(a, ratio, lifted), loose))


def _tight(orders: Array, ratio: Array, log_q: Array) -> Array:
    """Lemma 5 with its two orders mu and mu + 1 for mu = sqrt(log 1/q) / ratio; infinite where its conditions do not hold."""
    with np.errstate(all="ignore"):
        second = np.sqrt(-log_q) / ratio
        first = second + 1
        loose_first, loose_second = first * ratio**2, second * ratio**2
        largest = (second - 1) * loose_second - second * (np.log(first / (first - 1)) + np.log(second / (second - 1)))
        holds = (second > 1) & (orders <= first) & (log_q <= largest) & (log_q + loose_second < 0)
        # log(S) / (order - 1) for S = (1-q) A^(order-1) + q B^(order-1), with S - 1 as a sum of positive terms: that loses no digits
        log_stay = np.log1p(-np.exp(log_q))
        log_a = log_stay - np.log1p(-np.exp((log_q + loose_second) * (1 - 1 / second)))
        log_b = loose_first - log_q / (first - 1)
        usual, rare = (orders - 1) * log_a, log_q + (orders - 1) * log_b
        beyond = np.exp(log_stay) * np.expm1(usual) + np.exp(np.minimum(rare, _LARGE)) - np.exp(log_q)
        log_s = np.where(rare < _LARGE, np.log1p(np.maximum(beyond, 0.0)), np.logaddexp(log_stay + usual, rare))
        return np.where(np.isneginf(log_q), 0.0, np.where(holds, log_s / (orders - 1), np.inf))


def log_q_of_answers(counts: ArrayLike, noise: float) -> Array:
    """log of a bound on the probability that GNMax puts out another class than the one with most votes, for each row of counts."""
    votes = np.asarray(counts, float)
    winner = np.argmax(votes, axis=-1)[..., None]
    gaps = np.take_along_axis(votes, winner, -1) - votes
    each = log_ndtr(-gaps / (np.sqrt(2.0) * noise))
    np.put_along_axis(each, winner, -np.inf, -1)
    # the class with most votes wins with probability 1 / classes or more
    most = np.log1p(-1 / votes.shape[-1]) if votes.shape[-1] > 1 else -np.inf
    return np.asarray(np.minimum(np.logaddexp.reduce(each, axis=-1), most))


def log_q_of_tests(largest: ArrayLike, threshold: ArrayLike, noise: float) -> Array:
    """log of the probability of the less likely outcome of the test, for each largest count."""
    distance = np.abs(np.asarray(largest, float) - np.asarray(threshold, float)) / noise
    return np.asarray(log_ndtr(-distance))
