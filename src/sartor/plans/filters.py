"""Filters in a plan: a public ladder of norms, what each rung costs, and how many units each group has.

Without a filter everybody pays for vectors of full norm in every step, whatever their gradients are. With one, steps come in stretches.
Before a stretch a holder gets the lowest rung that covers their tracked norm, or the highest that their units still pay for, or rests; the
rung is their clip for that stretch, and its cost is taken from their units whether they are drawn or not. So a plan may have more steps
than everybody at full norm could pay for, and those who cost little take part in more of them.

What units are worth is decided before anything is trained: the worst adaptive choice of rungs (`sartor.accounting.filtered`) fits every
budget, or there is no plan. A run only ever compares whole numbers.

Prices: a rung of norm r costs, of the G units of a full one, G expm1(r^2/z^2) / expm1(1/z^2), which is how the variance of a step's
likelihood ratio grows with r at noise multiplier z; or G r^2, which is more, where the worst choice at the first price costs over half a
percent more than full norm does. Prices are whole, so rungs are what whole prices buy.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import Filtered, SampledGaussian, rdp, spend_on
from sartor.errors import SartorError
from sartor.exposure import MOST_UNITS
from sartor.immutable import immutable
from sartor.plans.problem import Problem
from sartor.relation import ZERO_OUT, Relation

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

KINDS = ("ladder", "renyi")
LADDER = (1, 2, 4, 8, 16)
"""What the rungs of a ladder cost, unless others are asked for; the last is full norm."""
_RENYI_UNITS = 4096  # of full norm: prices are so fine that rounding them up costs nothing
_RENYI_RUNGS = 24  # each a factor of sqrt(1.25) in norm


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Filter:
    """Rungs, their costs and everybody's units; one row for each group of a plan. Made by `sartor.plan(..., filter=...)`.

    `refresh` is the length of a stretch in steps, `full_steps` how many steps a member at full norm can pay for. `rungs` (groups, rungs)
    are norms over the group's clip, ascending to 1, `costs` what a stretch at each costs, and `units` what each member begins with.
    """

    kind: str
    refresh: int
    full_steps: int
    rungs: Array
    costs: Counts
    units: Counts

    def __init__(self, kind: str, refresh: int, full_steps: int, rungs: ArrayLike, costs: ArrayLike, units: ArrayLike) -> None:
        if kind not in KINDS:
            raise SartorError(f'a filter is {" or ".join(KINDS)}, not "{kind}".')
        try:
            values = {
                "kind": kind,
                "refresh": _whole(refresh),
                "full_steps": _whole(full_steps),
                "rungs": immutable(np.atleast_2d(np.asarray(rungs, float))),
                "costs": immutable(np.atleast_2d(_wholes(costs)), np.int64),
                "units": immutable(np.atleast_1d(_wholes(units)), np.int64),
            }
        except (TypeError, ValueError, OverflowError):
            raise SartorError("this is not a filter: a number is missing or of the wrong type.") from None
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        rungs, costs, units = self.rungs, self.costs, self.units
        wrong = {
            "a stretch has a step at least": self.refresh < 1,
            "full norm is paid for a stretch at least": self.full_steps < 1,
            "it needs a cost for each rung, and units for each group": rungs.shape != costs.shape or len(rungs) != len(units),
            "rungs ascend to 1, which is full norm": not (
                np.all(rungs > 0) and np.all(np.diff(rungs, axis=1) > 0) and np.all(rungs[:, -1:] == 1)
            ),
            "costs are 1 or more, and no rung costs less than a lower one": not (
                np.all(costs >= 1) and np.all(np.diff(costs, axis=1) >= 0)
            ),
            f"units lie between 0 and {MOST_UNITS:g}": not np.all((units >= 0) & (units <= MOST_UNITS)),
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise SartorError(f"this is not a filter: {sentence}.")

    def __len__(self) -> int:
        return len(self.units)

    def stretches(self, steps: int) -> int:
        """How many stretches so many steps begin."""
        return -(-steps // self.refresh)

    def exposure(self, group: int, rate: float, noise_multiplier: float, steps: int, relation: Relation) -> Filtered | SampledGaussian:
        """What a member of a group undergoes in the first `steps` steps.

        As long as units pay for full norm throughout, no choice of rungs is worse than full norm: the plain exposure.
        """
        units, costs = int(self.units[group]), tuple(self.costs[group].tolist())
        if units >= costs[-1] * self.stretches(steps):
            return SampledGaussian(rate, noise_multiplier, steps, relation)
        return Filtered(rate, noise_multiplier, self.refresh, tuple(self.rungs[group].tolist()), costs, units, relation)

    def rests_at(self, steps: int) -> Counts:
        """Of each group: the step at which a member of full norm has no unit left that pays for a rung; `steps` if that never comes."""
        out = np.empty(len(self), np.int64)
        for i, (costs, units) in enumerate(zip(self.costs, self.units.tolist(), strict=True)):
            taken = 0
            for cost in costs[::-1].tolist():
                taken, units = taken + units // cost, units % cost
            out[i] = min(taken * self.refresh, steps)
        return out

    def to_json(self) -> dict[str, Any]:
        """What is the same for every group."""
        return {"kind": self.kind, "refresh": self.refresh, "full_steps": self.full_steps}

    def rows(self) -> list[dict[str, Any]]:
        """What is each group's own."""
        return [
            {"units": units, "rungs": rungs, "costs": costs}
            for units, rungs, costs in zip(self.units.tolist(), self.rungs.tolist(), self.costs.tolist(), strict=True)
        ]

    @classmethod
    def from_json(cls, document: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Filter:
        """The filter in a plan's document."""
        columns = ([group[name] for group in groups] for name in ("rungs", "costs", "units"))
        return cls(document["kind"], document["refresh"], document["full_steps"], *columns)

    def __reduce__(self) -> tuple[Any, ...]:
        return Filter, (self.kind, self.refresh, self.full_steps, self.rungs, self.costs, self.units)

    def __deepcopy__(self, memo: Any) -> Filter:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Filter):
            return NotImplemented
        return (self.kind, self.refresh, self.full_steps) == (other.kind, other.refresh, other.full_steps) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("rungs", "costs", "units")
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Filter({self.kind}, {self.rungs.shape[1]} rungs, refreshed every {self.refresh} steps, {len(self)} groups)"


def _whole(value: Any) -> int:
    if isinstance(value, bool) or float(value) != int(value):
        raise ValueError
    return int(value)


def _wholes(values: ArrayLike) -> Counts:
    found = np.asarray(values)
    if found.dtype.kind not in "iuf" or np.any(found != np.round(found)):
        raise TypeError
    return found.astype(np.int64)


def by_square(costs: Sequence[int]) -> Array:
    """The rungs that whole costs buy at the price of their squares."""
    return np.sqrt(np.asarray(costs, float) / costs[-1])


def by_variance(costs: Sequence[int], noise_multiplier: float) -> Array:
    """The rungs that whole costs buy at the price of the likelihood ratio's variance, under a noise multiplier."""
    share = np.asarray(costs, float) / costs[-1]
    with np.errstate(over="ignore"):
        top = np.expm1(1 / noise_multiplier**2) if noise_multiplier > 0 else np.inf
    if not np.isfinite(top):
        return by_square(costs)
    return np.asarray(np.append(noise_multiplier * np.sqrt(np.log1p(share[:-1] * top)), 1.0))


def by_renyi(rate: float, noise_multiplier: float, steps: int, delta: float) -> tuple[Array, Counts]:
    """Rungs close to each other, and what each costs by the Rényi divergence at the order that is best for full norm."""
    plain = SampledGaussian(rate, noise_multiplier, steps, ZERO_OUT)
    values = rdp.curve(plain) + np.subtract(*rdp.conversion_terms(rdp.ORDERS, delta))
    order = rdp.ORDERS[int(np.argmin(values))]
    rungs: Array = 1.25 ** (-0.5 * np.arange(float(_RENYI_RUNGS))[::-1])
    cost = rdp.sampled_gaussian(rate, noise_multiplier / rungs, [order])[:, 0]
    units = np.ceil(_RENYI_UNITS * cost / cost[-1] * (1 - 1e-12))
    return rungs, np.maximum(units, 1.0).astype(np.int64)


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
