"""Lower confidence bounds on epsilon at a delta, from the membership scores of a group.

If a mechanism is (epsilon, delta)-DP for a holder, every test of whether the holder took part obeys two inequalities (Kairouz, Oh and
Viswanath 2015): TPR <= e^epsilon FPR + delta, and 1 - FPR <= e^epsilon FNR + delta. The bounds here are the largest epsilon that the scores
refute. `threshold_bound` and `bound_at` hold for scores of any distribution and can refute a claim. `gaussian_bound` assumes the shape of
the scores: it says how much an attack would show if they were normal, and is never a refutation by itself.

All of them are one-sided: high scores say "took part", and scores that say the opposite give 0. A confidence is that of one statement;
whoever makes several (groups, attacks) divides 1 - confidence among them first.

Breaks if: scores of different members are dependent, as those of records of one holder are; the attack was chosen on the same scores.

Other bounds are from one run with many canaries, each included by its own fair coin. The auditor looks at the outcome and says of some
canaries that they were in and of others that they were not, as surely as it can, and of the rest nothing. `one_run_bound` refutes (epsilon,
delta)-DP whatever the mechanism is. `f_dp_bound` refutes the trade-off curves of Gaussian mechanisms, and so a claim that was made for one:
of another mechanism it says nothing about (epsilon, delta)-DP.

Breaks if: canaries were in by anything but independent fair coins, such as exactly half of them; the number of guesses was chosen by how
many were right. Guesses that are wrong more often than right give 0.
"""

from __future__ import annotations

import math
import secrets
from collections.abc import Callable
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.gaussian import epsilon_of
from sartor.accounting.special import ndtr
from sartor.audit.scores import Scores, lots
from sartor.errors import SartorError

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

RANKS = ((1, 0.05), (16, 0.1))
SHARES = ((1 / 64, 0.45), (1 / 10, 0.2), (1 / 4, 0.2))
"""Where thresholds stand, at ranks of a side or where a share of it is beyond them, and which part of the side's risk each has."""

SUREST = 1e-15
"""What is left to chance at least."""
_BISECTIONS = 40


def check_statement(delta: float, confidence: float) -> None:
    """Refuse a delta or a confidence with which nothing can be stated."""
    if not (isinstance(delta, Real) and 0 <= delta < 1):
        raise SartorError(f"a delta lies between 0 and 1, not at {delta}.")
    if not (isinstance(confidence, Real) and 0 < confidence < 1 - SUREST):
        raise SartorError(f"a confidence lies between 0 and 1 - {SUREST:g}, not at {confidence}.")


def highest_rate(found: ArrayLike, among: int, risk: float) -> Array:
    """The upper end of the interval of Clopper and Pearson (1934): the largest rate at which so few are found with probability `risk`.

    >>> float(highest_rate(0, 100, 0.05).round(5))  # 1 - 0.05^(1/100)
    0.02951
    """
    from scipy import special

    count = np.asarray(found, float)
    return np.where(count < among, special.betainccinv(count + 1, np.maximum(among - count, 0.5), risk), 1.0)


def bound_at(scores: Scores, thresholds: ArrayLike, delta: float, confidence: float) -> float:
    """A bound from thresholds that were fixed before the scores were seen; a score at or above a threshold says "took part".

    Guarantee: exceeds the true epsilon with probability at most 1 - confidence.
    Proof: at each threshold FPR and FNR are each below their upper limit of Clopper and Pearson but for a probability of
        (1 - confidence) / (2 thresholds), by Bonferroni's inequality all at once but for 1 - confidence. TPR and 1 - FPR are one
        minus these rates, so the same events bound epsilon by both inequalities.
    Breaks if: a threshold was chosen on these scores.
    """
    check_statement(delta, confidence)
    at = np.unique(np.asarray(thresholds, float))
    if not (at.size and scores.inside.size and scores.outside.size):
        return 0.0
    risk = (1 - confidence) / (2 * at.size)
    missed = np.searchsorted(np.sort(scores.inside), at, side="left")
    taken = scores.outside.size - np.searchsorted(np.sort(scores.outside), at, side="left")
    fnr, fpr = highest_rate(missed, scores.inside.size, risk), highest_rate(taken, scores.outside.size, risk)
    with np.errstate(divide="ignore"):
        found = np.maximum(np.log(np.maximum(1 - fnr - delta, 0.0) / fpr), np.log(np.maximum(1 - fpr - delta, 0.0) / fnr))
    return max(0.0, float(found.max()))


def threshold_bound(scores: Scores, delta: float, confidence: float, *, seed: int | None = None) -> float:
    """A bound from few thresholds that stand at fixed ranks of one side and are counted on the other; no score is set aside.

    Guarantee: exceeds the true epsilon with probability at most 1 - confidence, whatever the distributions of the scores are.
    Proof: ties are broken at random, so that the scores are those of a test without atoms. Let the threshold be the k-th highest score
        outside. Its FPR q is the k-th smallest of as many uniform numbers, which is Beta(k, outside - k + 1) whatever the distribution (the
        fact behind the limits of Clopper and Pearson), and given the scores outside the number of scores inside above it is binomial with
        a rate of at most min(1, e^epsilon q + delta). So the probability of so many or more is at most the mean of a binomial tail over
        q, and an epsilon is refuted if that is at most the threshold's part of 1 - confidence, parts that add up to 1 over the thresholds
        of both ends (Bonferroni). The second inequality is the first with the sides exchanged and the scores negated. The mean is a sum
        over intervals of q's quantiles of the tail at their upper ends, which is not below it as the tail rises with q.
    Breaks if: scores take few values, and always the same ones in the same order, under one `seed`: then ties take the side of members or
        of others, always the same (`lots`). Without a seed they are broken otherwise each time, and the bound is not the same twice.

    What to expect: of randomised response at epsilon 4, 1,000 scores on each side show some 3.4; if their one threshold is known
    beforehand, `bound_at` shows 3.5. Of a Gaussian at epsilon 4 and delta 1e-5 they show about a third, and no test by thresholds shows
    much more: sensitivity over noise is 0.92, and TPR reaches e^4 FPR + delta only at a false positive rate of 1e-6. Where 1,000 scores can
    tell a rate from 0, above 1/1,000, even the true TPR is at most 15 times the FPR, which is an epsilon of 2.7, and at the rates of some
    per cent that they tell within a fifth it is 4 to 6 times.
    """
    check_statement(delta, confidence)
    inside, outside = _places(scores, lots(scores, seed))
    if not (inside.size and outside.size):
        return 0.0
    above, below = _thresholds(outside.size), _thresholds(inside.size)
    half = (1 - confidence) / 2
    found = [_refuted(inside, outside, rank, delta, half * part) for rank, part in above.items()]
    found += [_refuted(-outside, -inside, rank, delta, half * part) for rank, part in below.items()]
    return max(found)


def _places(scores: Scores, lots: Array) -> tuple[Counts, Counts]:
    """The places of the scores among all of them, equal scores in the order of their lots."""
    pooled = np.concatenate([scores.inside, scores.outside])
    places = np.empty(pooled.size, np.int64)
    places[np.lexsort((lots, pooled))] = np.arange(pooled.size)
    return places[: scores.inside.size], places[scores.inside.size :]


def _thresholds(size: int) -> dict[int, float]:
    """The ranks of the thresholds on a side of this size, and which part of the side's risk each has."""
    found: dict[int, float] = {}
    for rank, part in (*RANKS, *((round(share * size), part) for share, part in SHARES)):
        own = min(max(1, rank), size)
        found[own] = found.get(own, 0.0) + part
    return found


def _refuted(found: Counts, others: Counts, rank: int, delta: float, risk: float) -> float:
    """The largest epsilon refuted by how many places in `found` lie above the place of this rank, from above, in `others`."""
    from scipy import special

    above = found.size - int(np.searchsorted(np.sort(found), np.sort(others)[-rank]))
    if not above:
        return 0.0
    ends = _ends(risk)
    rates = special.betaincinv(rank, others.size - rank + 1, ends)
    weights = np.diff(ends, prepend=0.0)

    def refuted(epsilon: float) -> bool:
        reached = np.minimum(math.exp(epsilon) * rates + delta, 1.0)
        return bool(special.betainc(above, found.size - above + 1, reached) @ weights <= risk)

    low, high = 0.0, -float(np.log(rates[0]))  # where every rate has reached 1, nothing is refuted
    if not refuted(low):
        return 0.0
    for _ in range(_BISECTIONS):
        middle = (low + high) / 2
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low


def _ends(risk: float) -> Array:
    """Upper ends of intervals of probability, fine towards 1, where rates are high and few."""
    return np.unique(np.concatenate([np.linspace(0, 1, 65)[1:], 1 - np.geomspace(1 / 64, risk / 1000, 40)]))


def gaussian_bound(scores: Scores, delta: float, confidence: float, *, deviation: float | None) -> float:
    """A bound from the difference of means, if scores are normal with one deviation on both sides: it never refutes a claim by itself.

    `deviation` is that of the scores, where it is known, as for a canary's product with noise; None estimates it.

    Guarantee: if scores are normal with the same deviation on both sides, exceeds with probability at most 1 - confidence the epsilon at
        delta of the Gaussian mechanism whose sensitivity over noise, mu, is the difference of means over the deviation.
    Proof: with a known deviation the difference of means is normal. With an unknown one, half of the risk is Student's, for the difference
        over the pooled deviation, and half is that of chi squared, for the deviation above the pooled one; the larger deviation of the two
        sides stands for the pooled one, which lowers the bound. Epsilon follows from mu by theorem 8 of Balle and Wang (2018).
    Breaks if: scores have another shape; then the bound may say anything.
    """
    check_statement(delta, confidence)
    if delta == 0:
        raise SartorError("normal scores refute every epsilon at delta 0: give the delta of the claim.")
    if deviation is not None and not (deviation > 0 and math.isfinite(deviation)):
        raise SartorError(f"a deviation must be positive and finite, not {deviation}: give None where it is not known.")
    few = 1 if deviation is not None else 2
    if min(scores.inside.size, scores.outside.size) < few:
        return 0.0
    mu = _known(scores, 1 - confidence, deviation) if deviation is not None else _studentised(scores, 1 - confidence)
    return float(epsilon_of(max(mu, 0.0), np.array(float(delta))))


def _known(scores: Scores, risk: float, deviation: float) -> float:
    """The least difference of means over a known deviation."""
    from scipy import special

    return float(_difference(scores) / deviation + special.ndtri(risk) * _spread(scores))


def _studentised(scores: Scores, risk: float) -> float:
    """The least difference of means over a deviation that the scores tell; 0 if they do not differ among themselves."""
    from scipy import special

    freedom = scores.inside.size + scores.outside.size - 2
    deviation = max(float(scores.inside.std(ddof=1)), float(scores.outside.std(ddof=1)))
    if deviation == 0:
        return 0.0
    least = _difference(scores) / deviation + special.stdtrit(freedom, risk / 2) * _spread(scores)
    return float(least * math.sqrt(special.chdtri(freedom, 1 - risk / 2) / freedom))


def _difference(scores: Scores) -> float:
    return float(scores.inside.mean() - scores.outside.mean())


def _spread(scores: Scores) -> float:
    """The deviation of the difference of means over that of a score."""
    return math.sqrt(1 / scores.inside.size + 1 / scores.outside.size)


Bound = Callable[[int, int, int, float, float], float]

GUESSED = (1 / 32, 1 / 8, 1 / 3, 2 / 3)
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
    numbers = sorted({guesses for share in GUESSED if (guesses := round(share * canaries))})
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
