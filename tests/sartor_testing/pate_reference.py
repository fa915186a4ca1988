"""Individualized PATE by the book: what the tests compare with, written from the papers, one holder and one query at a time.

Nothing here looks at how the library computes. A released transcript (which queries were asked and answered, what every teacher weighed in
them) and a partition (which holder is in which teachers) give each holder's spend: the votes of the holder's teachers can all go from one
class to another, so the counts change by sqrt(2) times their weight and the largest count by their weight; Gaussians compose by adding
squared ratios; Balle and Wang (2018, theorem 8) give the exact delta.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from dataclasses import dataclass
from functools import lru_cache

import mpmath
import numpy as np
from scipy import integrate
from scipy.stats import norm

mpmath.mp.dps = 40


def gaussian_delta(mu: float, epsilon: float):
    """The smallest delta of a Gaussian whose sensitivity over noise is mu, at this epsilon."""
    if mu == 0:
        return mpmath.mpf(0)
    m, e = mpmath.mpf(float(mu)), mpmath.mpf(float(epsilon))
    return mpmath.ncdf(m / 2 - e / m) - mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)


@lru_cache(maxsize=4096)
def allowance(epsilon: float, delta: float) -> float:
    """The largest sum of squared ratios that (epsilon, delta) allows."""
    low, high = 0.0, 1.0
    while gaussian_delta(np.sqrt(high), epsilon) <= delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if gaussian_delta(np.sqrt(middle), epsilon) <= delta else (low, middle)
    return low


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The smallest epsilon of a Gaussian at this delta."""
    low, high = 0.0, 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (low, middle) if gaussian_delta(mu, middle) <= delta else (middle, high)
    return high


def teachers_of(placed, holders: int) -> list[list[int]]:
    """For each holder the teachers that learn from them, one entry for each time."""
    found = defaultdict(list)
    for row, teacher in zip(placed.rows.tolist(), placed.of_row.tolist(), strict=True):
        found[row].append(teacher)
    return [sorted(found[row]) for row in range(holders)]


def cost_of(teachers, weights, answered, noise: float, test_noise: float | None) -> float:
    """The sum of squared ratios for somebody in these teachers, from the weights (asked queries, teachers) and which were answered."""
    cost = 0.0
    for row, answer in zip(np.asarray(weights), answered, strict=True):
        moved = sum(float(row[teacher]) for teacher in set(teachers))
        if test_noise is not None:
            cost += (moved / test_noise) ** 2
        if answer:
            cost += 2 * (moved / noise) ** 2
    return cost


def costs_of_holders(transcripts, placed, holders: int, noise: float, test_noise: float | None) -> np.ndarray:
    """Each holder's cost over all transcripts together."""
    known: dict[tuple[int, ...], float] = {}
    costs = np.zeros(holders)
    for holder, own in enumerate(teachers_of(placed, holders)):
        key = tuple(sorted(set(own)))
        if key not in known:
            known[key] = sum(cost_of(key, found.weights, found.answered[found.asked], noise, test_noise) for found in transcripts)
        costs[holder] = known[key]
    return costs


def most_votes_moved(votes, weights, teachers, classes: int) -> tuple[float, float]:
    """By trying every other vote of these teachers: the largest change of the counts (L2), and of the largest count."""

    def counts(of):
        found = np.zeros(classes)
        for vote, weight in zip(of, weights, strict=True):
            found[vote] += weight
        return found

    before, far, top = counts(votes), 0.0, 0.0
    for other in itertools.product(range(classes), repeat=len(teachers)):
        changed = list(votes)
        for teacher, vote in zip(teachers, other, strict=True):
            changed[teacher] = vote
        after = counts(changed)
        far = max(far, float(np.sqrt(np.sum((after - before) ** 2))))
        top = max(top, abs(float(after.max() - before.max())))
    return far, top


@dataclass
class Group:
    """Somebody's row of an account: their allowance, and the teachers that they are in."""

    allowance: float
    teachers: list[int]
    cost: float = 0.0


def one_at_a_time(groups, schedule, noise, test_noise, outcomes, labelled, *, enough=None, go_on=False):
    """Ask one query after the other: the weights of those that were asked.

    A query is asked if every group can pay for its test and its answer; then the test is charged, and the answer if `outcomes` says that
    the test passed. `schedule(i)` are the teachers' weights in query i, `labelled[i]` is whether query i gave a label.
    With `go_on`, the teachers of groups that cannot pay leave for good; a query in which nobody is left to vote is not asked.
    """
    gone: set[int] = set()
    asked: list[np.ndarray] = []
    found = 0
    for i in range(len(outcomes)):
        if enough is not None and found >= enough:
            break
        while True:
            weights = np.array([0.0 if teacher in gone else float(weight) for teacher, weight in enumerate(schedule(i))])
            moved = [sum(weights[teacher] for teacher in group.teachers) for group in groups]
            test = [0.0 if test_noise is None else (m / test_noise) ** 2 for m in moved]
            answer = [2 * (m / noise) ** 2 for m in moved]
            broke = [g for g, t, a in zip(groups, test, answer, strict=True) if g.cost + t + a > g.allowance]
            if not broke or not go_on:
                break
            for group in broke:
                gone.update(group.teachers)
            if len(gone) == len(weights):
                break
        if broke:
            break
        if not weights.any():
            continue
        for group, t, a in zip(groups, test, answer, strict=True):
            group.cost += t + (a if outcomes[i] else 0.0)
        asked.append(weights)
        found += bool(labelled[i])
    return asked


def probability_of_another_label(counts, noise: float):
    """Equation 18: a bound on the probability that GNMax does not put out the class with most votes."""
    votes = [mpmath.mpf(float(count)) for count in counts]
    winner = max(range(len(votes)), key=lambda j: votes[j])
    return sum(mpmath.erfc((votes[winner] - votes[j]) / (2 * mpmath.mpf(float(noise)))) for j in range(len(votes)) if j != winner) / 2


def lemma_5(order: float, loose, first, second, q):
    """Equations 15 to 17 for a mechanism with divergence `loose(order)`; None where the lemma says nothing."""
    a, a1, a2, q = (mpmath.mpf(value) for value in (order, first, second, q))
    if not (a2 > 1 and a1 > 1 and a <= a1 and 0 < q < 1):
        return None
    e1, e2 = loose(a1), loose(a2)
    if q > mpmath.exp((a2 - 1) * e2) / (a1 / (a1 - 1) * a2 / (a2 - 1)) ** a2 or q * mpmath.exp(e2) >= 1:
        return None
    big_a = ((1 - q) / (1 - (q * mpmath.exp(e2)) ** ((a2 - 1) / a2))) ** (a - 1)
    big_b = (mpmath.exp(e1) / q ** (1 / (a1 - 1))) ** (a - 1)
    return mpmath.log((1 - q) * big_a + q * big_b) / (a - 1)


def tight_or_loose(order: float, noise: float, q, factor: float = 1.0) -> float:
    """The better of the two bounds at sensitivity 1; `factor` is 1 for an answer (two counts move), 1/2 for a comparison (one does).

    The two orders are those of Papernot et al. (2018, proposition 10): sigma sqrt(log 1/q), and that plus 1. A comparison under noise s
    has the divergences of an answer under sqrt(2) s.
    """
    sigma = mpmath.mpf(float(noise)) / mpmath.sqrt(factor)

    def loose(a):
        return a / sigma**2

    best = loose(mpmath.mpf(float(order)))
    if 0 < q < 1:
        second = sigma * mpmath.sqrt(-mpmath.log(q))
        found = lemma_5(order, loose, second + 1, second, q)
        best = best if found is None else min(best, found)
    return float(best)


def label_probabilities(counts, noise: float) -> np.ndarray:
    """The distribution of GNMax's label, by integrating over the winner's noisy count."""
    return _label_probabilities(tuple(float(count) for count in counts), float(noise))


@lru_cache(maxsize=4096)
def _label_probabilities(counts: tuple[float, ...], noise: float) -> np.ndarray:
    votes = np.array(counts)
    found = []
    for j in range(len(votes)):

        def density(x, j=j):
            return norm.pdf(x, votes[j], noise) * np.prod([norm.cdf(x, votes[k], noise) for k in range(len(votes)) if k != j], axis=0)

        edges = np.linspace(votes[j] - 12 * noise, max(votes.max(), votes[j]) + 12 * noise, 4001)
        found.append(integrate.simpson(density(edges), x=edges))
    return np.array(found) / sum(found)


def renyi(p, q, order: float) -> float:
    """Rényi divergence of one finite distribution from another."""
    p, q = np.asarray(p, float), np.asarray(q, float)
    return float(np.log(np.sum(np.exp(order * np.log(p) + (1 - order) * np.log(q)))) / (order - 1))


def hockey_stick(p, q, epsilon: float) -> float:
    """The smallest delta between two finite distributions at this epsilon, one way."""
    return float(np.sum(np.maximum(np.asarray(p) - np.exp(epsilon) * np.asarray(q), 0)))


def moves(counts, votes_moved: float):
    """All counts after a holder's votes went from one class to another, as far as the class has them."""
    counts = np.asarray(counts, float)
    for a, b in itertools.permutations(range(len(counts)), 2):
        if counts[a] >= votes_moved:
            other = counts.copy()
            other[a] -= votes_moved
            other[b] += votes_moved
            yield other
