"""Lower confidence bounds on epsilon from one run with many canaries, each included by its own fair coin.

The auditor looks at the outcome and says of some canaries that they were in and of others that they were not, as surely as it can, and of
the rest nothing. `one_run_bound` refutes (epsilon, delta)-DP whatever the mechanism is. `f_dp_bound` refutes the trade-off curves of
Gaussian mechanisms, and so a claim that was made for one: of another mechanism it says nothing about (epsilon, delta)-DP.

Breaks if: canaries were in by anything but independent fair coins, such as exactly half of them; the number of guesses was chosen by how
many were right. Guesses that are wrong more often than right give 0.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from sartor.accounting.gaussian import epsilon_of
from sartor.accounting.special import ndtr
from sartor.audit.bounds import check_statement
from sartor.audit.scores import Scores, lots
from sartor.errors import SartorError

Array = NDArray[np.float64]
Bound = Callable[[int, int, int, float, float], float]

SHARES = (1 / 32, 1 / 8, 1 / 3, 2 / 3)
"""The shares of the canaries that are guessed, among which a bound from scores takes the best, at a quarter of the risk each."""

_CANDIDATES = 33


def one_run_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The largest epsilon that so many correct guesses refute.

    Guarantee: exceeds the epsilon of an (epsilon, delta)-DP mechanism with probability at most 1 - confidence.
    Proof: with B binomial of `guesses` trials of probability e^epsilon / (1 + e^epsilon), v or more guesses are correct with probability at
        most P[B >= v] + 2 canaries delta max_i P[v - i <= B < v] / i (Steinke, Nasr and Jagielski 2023, the theorem for approximate
        differential privacy). An epsilon is refuted where this is at most 1 - confidence. A bound above the true epsilon means that some
        larger epsilon, which holds as well, is refuted; the least number of correct guesses with which one is has at most that probability.
    """
    _check_guesses(correct, guesses, canaries)
    check_statement(delta, confidence)
    return _largest(lambda epsilon: _chance(correct, guesses, canaries, delta, epsilon) <= 1 - confidence)


def _chance(correct: int, guesses: int, canaries: int, delta: float, epsilon: Array) -> Array:
    """At most how probable so many correct guesses are, at each epsilon."""
    from scipy import special

    fewer = np.arange(correct, -1, -1)  # correct - i for i = 0, 1, ...
    right = special.expit(epsilon)[:, None]
    tail = np.where(fewer > 0, special.betainc(np.maximum(fewer, 1), guesses - fewer + 1, right), 1.0)  # P[B >= correct - i]
    near = ((tail[:, 1:] - tail[:, :1]) / np.arange(1, correct + 1)).max(axis=1, initial=0.0)
    return np.asarray(tail[:, 0] + 2 * canaries * delta * near, float)


def f_dp_bound(correct: int, guesses: int, canaries: int, delta: float, confidence: float) -> float:
    """The epsilon at delta of the largest Gaussian trade-off curve that so many correct guesses refute.

    Guarantee: exceeds the epsilon at delta of a mechanism that is Gaussian with sensitivity over noise mu, or as private as such a one
        (mu-GDP), with probability at most 1 - confidence.
    Proof: let p_i be the probability of i correct guesses among g of m canaries, r_i = sum_{j >= i} j p_j / m and
        h_i = sum_{j >= i} (g - j) p_j / m. Turning one canary's coin turns a correct guess into a wrong one, so
        r_i <= 1 - f(h_{i-1}) for the trade-off curve f (Mahloujifar, Melis and Chaudhuri 2024), for a Gaussian
        h_{i-1} >= F(r_i) = Phi(Phi^-1(r_i) - mu). With T_k = P[correct >= k] one has m r_i = i T_i + sum_{k > i} T_k and
        m h_{i-1} = (g - i + 1) T_{i-1} - sum_{k >= i} T_k, so that (g - i + 1) T_{i-1} >= m F(r_i) + sum_{k >= i} T_k. The right side
        rises in every T_k. So if T_v were t or more, T_v, T_{v-1}, ... would by induction be at least those that begin with t, all at v,
        and keep to equality, which the recursion computes. If these pass 1, that is r_0 + h_0 > g / m, the curve is refuted with
        t = 1 - confidence.
    """
    _check_guesses(correct, guesses, canaries)
    check_statement(delta, confidence)
    if delta == 0:
        raise SartorError("a Gaussian has no epsilon at delta 0: give the delta of the claim.")
    mu = _largest(lambda ratio: _too_much(correct, guesses, canaries, 1 - confidence, ratio))
    return float(epsilon_of(mu, np.array(float(delta))))


def _too_much(correct: int, guesses: int, canaries: int, risk: float, mu: Array) -> NDArray[np.bool_]:
    """Whether, for each mu, so many correct guesses with at least this probability would need probabilities that sum to more than 1."""
    from scipy import special

    whole = guesses / canaries
    right = np.full(mu.shape, risk * correct / canaries)
    wrong = np.full(mu.shape, risk * (guesses - correct) / canaries)
    open_ = np.ones(mu.shape, bool)
    for count in range(correct - 1, -1, -1):
        least = ndtr(special.ndtri(np.minimum(right[open_], 1.0)) - mu[open_])
        more = np.maximum(least - wrong[open_], 0.0)
        right[open_] += more * (count / (guesses - count))
        wrong[open_] += more
        open_[open_] = (more > 0) & ((right + wrong)[open_] <= whole)  # what moves no more never will
        if not open_.any():
            break
    return np.asarray(right + wrong > whole)


def one_run_bound_of(scores: Scores, delta: float, confidence: float, *, seed: int | None = None) -> float:
    """`one_run_bound` from the scores of canaries that were in and of those that were not, the best over few numbers of guesses."""
    return _best(one_run_bound, scores, delta, confidence, seed)


def f_dp_bound_of(scores: Scores, delta: float, confidence: float, *, seed: int | None = None) -> float:
    """`f_dp_bound` from the scores of canaries that were in and of those that were not, the best over few numbers of guesses."""
    return _best(f_dp_bound, scores, delta, confidence, seed)


def correct_guesses(scores: Scores, guesses: int, *, seed: int | None = None) -> int:
    """How many guesses are right, of which half say "in" of the highest scores and the other half "out" of the lowest.

    Ties are broken at random (`lots`): an order that follows from who was in would be a leak of the auditor's own. Without a seed it is
    another each time.
    """
    pooled = np.concatenate([scores.inside, scores.outside])
    _check_guesses(0, guesses, pooled.size)
    order = np.lexsort((lots(scores, seed), pooled))
    inside = order < scores.inside.size
    lowest = guesses // 2
    return int((~inside[:lowest]).sum() + inside[pooled.size - (guesses - lowest) :].sum())


def _best(bound: Bound, scores: Scores, delta: float, confidence: float, seed: int | None) -> float:
    """The largest bound over the shares of canaries to guess, each at its part of the risk."""
    check_statement(delta, confidence)
    canaries = scores.inside.size + scores.outside.size
    numbers = sorted({guesses for share in SHARES if (guesses := round(share * canaries))})
    each = 1 - (1 - confidence) / max(len(numbers), 1)
    own = secrets.randbits(62) if seed is None else seed  # one order for all numbers of guesses
    found = (bound(correct_guesses(scores, guesses, seed=own), guesses, canaries, delta, each) for guesses in numbers)
    return max(found, default=0.0)


def _largest(refuted: Callable[[Array], NDArray[np.bool_]]) -> float:
    """The largest value found refuted, 0 if none is: many candidates at once between one that is and one that is not."""
    if not refuted(np.zeros(1))[0]:
        return 0.0
    low, high = 0.0, 1.0
    while refuted(np.array([high]))[0]:
        low, high = high, 2 * high
    while high - low > 1e-9 * high:
        candidates = np.linspace(low, high, _CANDIDATES)
        last = int(np.argmin(np.append(refuted(candidates[:-1]), False)))
        if last == 0:
            break
        low, high = float(candidates[last - 1]), float(candidates[last])
    return low


def _check_guesses(correct: int, guesses: int, canaries: int) -> None:
    """Refuse counts that cannot be."""
    if not 0 <= correct <= guesses <= canaries:
        raise SartorError(f"{correct} correct of {guesses} guesses about {canaries} canaries cannot be: each number is at most the next.")
