"""Lower confidence bounds on epsilon at a delta, from the membership scores of a group.

If a mechanism is (epsilon, delta)-DP for a holder, every test of whether the holder took part obeys two inequalities (Kairouz, Oh and
Viswanath 2015): TPR <= e^epsilon FPR + delta, and 1 - FPR <= e^epsilon FNR + delta. The bounds here are the largest epsilon that the scores
refute. `threshold_bound` and `bound_at` hold for scores of any distribution and can refute a claim. `gaussian_bound` assumes the shape of
the scores: it says how much an attack would show if they were normal, and is never a refutation by itself.

All of them are one-sided: high scores say "took part", and scores that say the opposite give 0. A confidence is that of one statement;
whoever makes several (groups, attacks) divides 1 - confidence among them first.

Breaks if: scores of different members are dependent, as those of records of one holder are; the attack was chosen on the same scores.
"""

from __future__ import annotations

import math
from numbers import Real

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.gaussian import epsilon_of
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
