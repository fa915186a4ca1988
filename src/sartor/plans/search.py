"""Search: the schedule that gives a run of rounds the most signal, found from the budgets alone, before any data is seen.

The *signal* of a plan is the sum over all its steps of (expected sum of clips)^2 / noise^2: by how much a common direction of everybody's
gradients stands out of the noise, squared. The search maximises it over

- `even` with one threshold for all rounds (they are alike), and as many steps in each, and
- `onion` with any ascending thresholds, and steps in proportion to what each round adds, which gives all rounds about the same noise,

both with thresholds among numbers of three digits between the strictest and the most open budget. Candidates are compared by Gaussians: the
steps of a round are close to one Gaussian of ratio mu with mu^2 = n q^2 (e^(1/noise^2) - 1), thresholds of an onion add up in mu^2, and so
what a stretch between two thresholds adds does not depend on the others: the best are found exactly by dynamic programming, with coins
priced by their variance. The best of either kind is then solved as any schedule is, under the true composition, and the one with more
signal is taken.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import rounds
from sartor.accounting.gaussian import mu_for
from sartor.budgets import exact_counts
from sartor.plans.problem import Problem
from sartor.plans.spreads import Levels, Round, finished, proposed
from sartor.plans.thresholds import rounded

Array = NDArray[np.float64]

_CANDIDATES = 48  # thresholds of an onion
_COMMON = 16  # thresholds that all rounds share
_COINS = np.array([0.02, 0.06, 0.12, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0])
_CELLS = 150


@dataclass(frozen=True)
class _Candidate:
    promise: float
    thresholds: tuple[float, ...]
    steps: tuple[int, ...]
    onion: bool


def searched(problem: Problem, count: int) -> tuple[Round, ...]:
    """The rounds with the most signal."""
    of = Levels.of(problem)
    found = [_even(problem, of, count)]
    onion = _onion(problem, of, count)
    if onion is not None:
        found.append(onion)
    ways = [proposed(problem, one.thresholds, one.steps, onion=one.onion) for one in found]  # Gaussians may rank the two kinds wrongly
    return finished(problem, max(ways, key=lambda way: way.signal))


def spread_steps(steps: int, shares: Array) -> tuple[int, ...]:
    """Whole numbers of steps in these proportions, at least one for each, that add up."""
    spare = exact_counts((shares / shares.sum()).tolist(), steps - len(shares)) if steps > len(shares) else np.zeros(len(shares), np.int64)
    return tuple(int(extra) + 1 for extra in spare)


def _promise(square: Array, size: Array, steps: Array, batch: float) -> float:
    """The signal of rounds that are Gaussians of these squared ratios."""
    rate = np.minimum(batch / np.maximum(size, 1e-300), 1.0)
    return float(np.sum(steps * (rate * size) ** 2 * np.log1p(square / (steps * rate**2))))


def _even(problem: Problem, of: Levels, count: int) -> _Candidate:
    delta, low, high = float(of.delta.min()), float(of.epsilon.min()), float(of.epsilon.max())
    steps = spread_steps(problem.steps, np.ones(count))
    best = _Candidate(-1.0, (), (), onion=False)
    for tau in sorted({rounded(value) for value in np.linspace(low, high, _COMMON)}):
        square = mu_for(tau, delta) ** 2 / count
        grid = rounds.Grid(low / _CELLS, delta)
        pair = rounds.gaussian(float(np.sqrt(square)), grid)
        cost = np.array([rounds.cost([(pair, float(chance), count)], delta, grid) for chance in _COINS])
        size = np.array([float(np.interp(of.epsilon, np.maximum.accumulate(cost), _COINS) @ of.weight)])
        promise = _promise(np.full(count, square), np.repeat(size, count), np.array(steps, float), problem.batch)
        if promise > best.promise:
            best = _Candidate(promise, (tau,) * count, steps, onion=False)
    return best


def _onion(problem: Problem, of: Levels, count: int) -> _Candidate | None:
    """By dynamic programming over the last threshold and how many there were; None where there are fewer candidates than rounds."""
    delta = float(of.delta.min())
    among = np.unique([rounded(value) for value in np.linspace(of.epsilon.min(), of.epsilon.max(), _CANDIDATES)])
    if len(among) < count:
        return None
    square = np.append(0.0, [mu_for(float(tau), delta) ** 2 for tau in among])
    own = np.array([mu_for(float(eps), delta) ** 2 for eps in of.epsilon])
    size = np.zeros((len(square), len(square)))
    for a in range(len(square)):
        for b in range(a + 1, len(square)):
            part = np.expm1(np.clip(own - square[a], 0.0, square[b] - square[a])) / np.expm1(square[b] - square[a])
            size[a, b] = float(np.sqrt(part) @ of.weight)
    gain = np.where(np.triu(np.ones_like(size), 1) > 0, (square[None, :] - square[:, None]) * size**2, -np.inf)
    value, came = np.full(len(square), -np.inf), []
    value[0] = 0.0
    for _ in range(count):
        total = value[:, None] + gain
        came.append(np.argmax(total, axis=0))
        value = total.max(axis=0)
    path = [int(np.argmax(value))]
    for before in reversed(came):
        path.append(int(before[path[-1]]))
    path = path[::-1]
    if not np.isfinite(value).any():
        return None
    ends = list(pairwise(path))
    added = np.array([gain[a, b] for a, b in ends])
    steps = spread_steps(problem.steps, np.maximum(added, 1e-300))
    promise = _promise(
        np.array([square[b] - square[a] for a, b in ends]), np.array([size[a, b] for a, b in ends]), np.array(steps, float), problem.batch
    )
    return _Candidate(promise, tuple(float(among[b - 1]) for _, b in ends), steps, onion=True)
