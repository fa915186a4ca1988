"""Mechanisms whose epsilon is known, as the scores of the best attack on them, and the formulas of an auditor to stand beside."""

import functools

import numpy as np
from scipy import stats

from sartor.accounting.gaussian import mu_for as _mu_for
from sartor.audit.scores import Scores

OUTRIGHT = 0.1
mu_for = functools.cache(_mu_for)


def randomised_response(epsilon, size, generator):
    """One bit, true with odds e^epsilon. (epsilon, 0)-DP, reached by both inequalities."""
    true = 1 / (1 + np.exp(-epsilon))
    return Scores((generator.random(size) < true) * 1.0, (generator.random(size) >= true) * 1.0)


def told_outright(epsilon, size, generator):
    """Randomised response that tells the truth at any rate with probability 0.1. (epsilon, 0.1)-DP, reached by both inequalities."""
    bits = randomised_response(epsilon, size, generator)
    inside, outside = (generator.random(size) < OUTRIGHT for _ in range(2))
    return Scores(np.where(inside, 1.0, bits.inside), np.where(outside, 0.0, bits.outside))


def laplace(epsilon, size, generator):
    """A count with Laplace noise. (epsilon, 0)-DP, reached by every threshold outside [0, epsilon]."""
    return Scores(generator.laplace(epsilon, 1, size), generator.laplace(0, 1, size))


def gaussian(epsilon, size, generator):
    """A count with Gaussian noise. (epsilon, 1e-5)-DP."""
    return Scores(generator.normal(mu_for(epsilon, 1e-5), 1, size), generator.normal(0, 1, size))


KNOWN = {randomised_response: 0.0, laplace: 0.0, gaussian: 1e-5, told_outright: OUTRIGHT}
"""Mechanisms and the delta of their epsilon."""


def by_coins(mechanism, epsilon, canaries, generator):
    """Scores of canaries that are each in by a fair coin."""
    drawn, count = mechanism(epsilon, canaries, generator), generator.binomial(canaries, 0.5)
    return Scores(drawn.inside[:count], drawn.outside[: canaries - count])


def share_is_plausible(excesses, repetitions, share):
    """Whether so many excesses or more are not too rare if each has at most this probability."""
    return stats.binomtest(int(excesses), repetitions, share, alternative="greater").pvalue > 1e-3


def auditor_bonferroni(scores, delta, significance, one_sided=True):
    """What jax_privacy's CanaryScoreAuditor computes from all corners of the concave ROC curve, with one part of the risk for each."""
    fnr, fpr, _ = _auditor_limits(scores, scores, None, lambda count: significance / count)
    return max(0.0, _logs(fnr, fpr, delta, one_sided).max())


def auditor_split(scores, delta, significance, generator, one_sided=True):
    """What it computes where the best threshold of one half is counted on the other."""
    halves = [np.split(generator.permutation(side), [side.size // 2]) for side in (scores.inside, scores.outside)]
    (inside, counted), (outside, others) = halves
    fnr, fpr, at = _auditor_limits(Scores(inside, outside), Scores(inside, outside), None, lambda _: significance)
    best = at[np.argmax(_logs(fnr, fpr, delta, one_sided))]
    fnr, fpr, _ = _auditor_limits(None, Scores(counted, others), np.array([best]), lambda _: significance)
    return max(0.0, _logs(fnr, fpr, delta, one_sided).max())


def _auditor_limits(of_curve, counted, at, risk):
    """Upper limits of FNR and FPR at the thresholds of a curve's corners, or at given ones."""
    if at is None:
        at = _corners(of_curve)
    missed = (counted.inside[:, None] < at).sum(0)
    taken = (counted.outside[:, None] >= at).sum(0)
    half = risk(at.size) / 2
    limits = []
    for found, among in ((missed, counted.inside.size), (taken, counted.outside.size)):
        full = found == among
        limits.append(np.where(full, 1.0, stats.beta.isf(half, found + 1, np.where(full, 1, among - found))))
    return *limits, at


def _corners(scores):
    """The thresholds at the corners of the concave hull of the ROC curve, by going along it from one end to the other."""
    at = np.append(np.unique(np.concatenate([scores.inside, scores.outside])), np.inf)
    points = np.stack([(scores.inside[:, None] < at).sum(0), (scores.outside[:, None] < at).sum(0)], axis=1).astype(int)
    hull = []
    for place in range(len(points)):
        while len(hull) > 1:
            (x0, y0), (x1, y1), (x2, y2) = points[hull[-2]], points[hull[-1]], points[place]
            if (y1 - y0) * (x2 - x1) > (y2 - y1) * (x1 - x0):
                break
            hull.pop()
        hull.append(place)
    return at[hull]


def _logs(fnr, fpr, delta, one_sided):
    with np.errstate(divide="ignore"):
        first = np.log(np.maximum(1 - fnr - delta, 0)) - np.log(fpr)
        second = np.log(np.maximum(1 - fpr - delta, 0)) - np.log(fnr)
    return first if one_sided else np.maximum(first, second)
