"""What a filter's rungs cost, and how many units a budget buys."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import SampledGaussian, spend_on
from sartor.plans.filters import Filter, by_renyi, by_square, by_variance
from sartor.plans.problem import Problem
from sartor.relation import ZERO_OUT

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

MOST_LEVELS = 128
"""Budgets that a filter's tables are made for: more of them are rounded down to as many levels."""
_MOST_EXTRA = 0.005  # of epsilon: what the worst choice of rungs may cost more than full norm before the dearer prices are tried


@dataclass(frozen=True)
class Asked:
    """What was asked of a filter."""

    kind: str
    refresh: int
    full_steps: int
    ladder: tuple[int, ...]


def levels(problem: Problem) -> tuple[Array, Array]:
    """The budgets that tables are made for: those asked for, or, where there are many, at most so many levels at or below them."""
    if len(problem.epsilon) <= MOST_LEVELS:
        return problem.epsilon, problem.delta
    low, high = np.log(problem.epsilon.min()), np.log(problem.epsilon.max())
    step = max((high - low) / (MOST_LEVELS - 1), 1e-12)
    place = np.floor((np.log(problem.epsilon) - low) / step + 1e-9)
    return np.minimum(np.exp(low + place * step), problem.epsilon), np.full(len(problem.delta), problem.delta.min())


def priced(
    asked: Asked, rate: Array, noise: Array, epsilon: Array, delta: Array, accountant: str, steps: int, *, by_budget: bool
) -> tuple[Filter, Array]:
    """A filter for these rates and noise multipliers, and what its worst choice costs each group; equal groups are priced once."""
    keys = list(zip(rate.tolist(), noise.tolist(), epsilon.tolist(), delta.tolist(), strict=True))
    known: dict[tuple[float, ...], tuple[Array, Counts, int, float]] = {}
    for key in dict.fromkeys(keys):
        known[key] = _price(asked, by_budget, *key, accountant, steps)
    rows = [known[key] for key in keys]
    rungs, costs, units, spent = zip(*rows, strict=True)
    return Filter(asked.kind, asked.refresh, asked.full_steps, np.stack(rungs), np.stack(costs), units), np.array(spent)


def _price(
    asked: Asked, by_budget: bool, rate: float, noise: float, epsilon: float, delta: float, accountant: str, steps: int
) -> tuple[Array, Counts, int, float]:
    """Rungs, costs and units of one group, and what they cost at worst.

    Under scheme `equal` units are as many as the budget pays for; otherwise as many as full norm needs for `full_steps`.
    """
    if asked.kind == "renyi":
        rungs, costs = by_renyi(rate, noise, asked.full_steps, delta)
        ways = [rungs]
    else:
        costs = np.asarray(asked.ladder, np.int64)
        ways = [by_variance(asked.ladder, noise), by_square(asked.ladder)]
    full = int(costs[-1]) * asked.full_steps // asked.refresh

    def cost(rungs: Array, units: int) -> float:
        made = Filter(asked.kind, asked.refresh, asked.full_steps, rungs, costs, units)
        return float(spend_on([made.exposure(0, rate, noise, steps, ZERO_OUT)], delta, accountant)[0])

    plain = float(spend_on([SampledGaussian(rate, noise, full * asked.refresh // int(costs[-1]))], delta, accountant)[0])
    found = [(cost(rungs, full), rungs) for rungs in ways[:1]]
    if len(ways) > 1 and found[0][0] > (1 + _MOST_EXTRA) * plain:
        found.append((cost(ways[1], full), ways[1]))
    spent, rungs = min(found, key=lambda pair: pair[0])
    units = full
    if by_budget:
        units = int(costs[-1]) * -(-steps // asked.refresh)  # enough for everything
        if cost(rungs, units) > epsilon:
            low, high = 0, units
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if cost(rungs, middle) <= epsilon else (low, middle)
            units = low
        spent = cost(rungs, units)
    return rungs, costs, units, spent


def with_public(chosen: Filter, finite: NDArray[np.bool_], steps: int) -> Filter:
    """The filter with rows for public records, who are never short of units."""
    if finite.all():
        return chosen
    place = np.zeros(len(finite), np.intp)
    place[finite] = np.arange(len(chosen))
    enough = chosen.costs[0, -1] * chosen.stretches(steps)
    units = np.where(finite, chosen.units[place], enough)
    return Filter(chosen.kind, chosen.refresh, chosen.full_steps, chosen.rungs[place], chosen.costs[place], units)
