"""How an ensemble treats people by their budgets: a public value, made from the budgets alone.

Guarantee: for each holder (epsilon, delta)-DP at their own budget, less the reserve, for all labels that a voting under this plan gives,
    under removing or replacing everything of theirs (the plan, the number of teachers among it, stays).
Proof: a holder reaches only the teachers that their hash and their group name (`partition`), so their *sensitivity*, the votes that
    those teachers weigh together, bounds how far any count moves: duplicates under upsampling (no teacher twice), the weight of their
    teacher under weighting, teachers over participants under vanishing in the queries that their teacher takes part in, and nothing in
    the others. Costs follow from it (`bounds`), add up (`costs`), and a query is asked only if everyone can pay (`voting`).
Breaks if: records of one holder lie under several names; teachers see other records than their own (also for scaling or
    stopping); votes are looked at before they are aggregated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.budgets import Budgets, spendable
from sartor.errors import Infeasible, SartorError
from sartor.immutable import immutable
from sartor.numbers import from_json_number, to_json_number
from sartor.pate import aggregators
from sartor.pate.aggregators import Confident, GNMax
from sartor.pate.costs import Accountant

Array = NDArray[np.float64]
Counts = NDArray[np.int64]
Variant = Literal["standard", "upsample", "weight", "vanish"]

VARIANTS: tuple[Variant, ...] = ("standard", "upsample", "weight", "vanish")
_POWERS = np.linspace(0.25, 4.0, 76)
_ARRAYS: dict[str, type] = {
    "epsilon": np.float64,
    "delta": np.float64,
    "holders": np.int64,
    "duplicates": np.int64,
    "begin": np.int64,
    "end": np.int64,
    "weight": np.float64,
    "taking_part": np.int64,
}
_OF_ALL = ("duplicates", "weight", "taking_part")  # follow from everybody's budgets


@dataclass(frozen=True, repr=False, eq=False)
class PatePlan:
    """Per group the teachers that its members may reach and how much those weigh. Made by `plan`.

    Arrays have one entry per group, strictest first. A member is taught to `duplicates` of the teachers from `begin` up to but not
    including `end`; each of these weighs `weight` votes, and `taking_part` of them vote in each query. `scale` is N'/N, by which noise and
    threshold of the aggregator grew with the ensemble.
    """

    variant: Variant
    teachers: int
    aggregator: GNMax
    scale: float
    epsilon: Array
    delta: Array
    holders: Counts
    duplicates: Counts
    begin: Counts
    end: Counts
    weight: Array
    taking_part: Counts
    reserve: float = 0.0

    def __post_init__(self) -> None:
        try:
            for name, kind in _ARRAYS.items():
                object.__setattr__(self, name, immutable(getattr(self, name), kind))
            object.__setattr__(self, "teachers", whole(self.teachers, "the number of teachers"))
        except (TypeError, ValueError, OverflowError):
            raise SartorError("this is not a plan for PATE: a number is missing or of the wrong type.") from None
        if not len(self.epsilon) or any(getattr(self, name).shape != self.epsilon.shape for name in _ARRAYS):
            raise SartorError("this is not a plan for PATE: it needs every number once for each of its groups.")
        size = self.end - self.begin
        wrong = {
            f"the variant is one of {', '.join(VARIANTS)}": self.variant not in VARIANTS,
            "an aggregator is missing": type(self.aggregator) not in aggregators.KINDS,
            "budgets must be positive and finite": not np.all((self.epsilon > 0) & np.isfinite(self.epsilon)),
            "deltas must lie between 0 and 1": not np.all((self.delta > 0) & (self.delta < 1)),
            "the reserve must lie in [0, 1)": not 0 <= self.reserve < 1,
            "the scale must be 1 or more": not 1 <= self.scale < np.inf,
            "a group's teachers must lie within the ensemble": np.any(self.begin < 0) or np.any(self.end > self.teachers),
            "nobody can be taught to more teachers than their group has": np.any(self.duplicates > size),
            "everybody is taught to a teacher": np.any(self.duplicates < 1),
            "weights must be positive and finite": not np.all((self.weight > 0) & np.isfinite(self.weight)),
            "some teachers of each group must take part": np.any((self.taking_part < 1) | (self.taking_part > size)),
            "teachers rest under vanishing alone": self.variant != "vanish" and np.any(self.taking_part != size),
            "people are duplicated under upsampling alone": self.variant != "upsample" and np.any(self.duplicates != 1),
            "votes weigh one but for weighting and vanishing": self.variant in ("standard", "upsample") and np.any(self.weight != 1),
        }
        for what, broken in wrong.items():
            if broken:
                raise SartorError(f"this is not a plan for PATE: {what}.")
        self._check_pools()

    def _check_pools(self) -> None:
        """Groups share all teachers or none, and those that share them share their weight: then a weight binds to a teacher."""
        for other in range(1, len(self)):
            same = self.begin[other] == self.begin[other - 1] and self.end[other] == self.end[other - 1]
            apart = self.begin[other] >= self.end[other - 1]
            alike = self.weight[other] == self.weight[other - 1] and self.taking_part[other] == self.taking_part[other - 1]
            if not (apart or (same and alike)):
                raise SartorError("this is not a plan for PATE: groups that share a teacher must share its weight.")

    def __len__(self) -> int:
        return len(self.epsilon)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, PatePlan):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in ("variant", "teachers", "aggregator", "scale", "reserve")) and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def sensitivity(self) -> Array:
        """For each group how many votes one member moves at most, in a query that their teachers take part in."""
        return np.asarray(self.duplicates * self.weight)

    @property
    def weights(self) -> Array:
        """The weight of each teacher."""
        found = np.zeros(self.teachers)
        for group in range(len(self)):
            found[self.begin[group] : self.end[group]] = self.weight[group]
        return found

    @property
    def spendable(self) -> tuple[Array, Array]:
        """Epsilon and delta of each group without the reserve; a release from the reserve has the rest of both."""
        return spendable(self.epsilon, self.reserve), spendable(self.delta, self.reserve)

    def groups_of(self, budgets: Budgets) -> NDArray[np.intp]:
        """For each holder their group, found by their budget; budgets that hold others than the plan knows are refused."""
        if budgets.reserve != self.reserve:
            raise SartorError("these budgets keep another share in reserve than the plan was made for.")
        place = {key: i for i, key in enumerate(zip(self.epsilon.tolist(), self.delta.tolist(), strict=True))}
        groups = budgets.groups
        found = np.array([place.get(key, -1) for key in zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True)], np.intp)
        if np.any(found < 0):
            raise SartorError("these are not budgets that the plan was made for: it knows no such group.")
        return np.asarray(found[groups.of_holder])

    def schedule(self, first: int, queries: int) -> NDArray[np.bool_]:
        """Which teachers take part in the queries from `first` on: (queries, teachers). It follows from the plan alone.

        Each group's teachers stand in a circle in a random order, and a window of `taking_part` moves on by its own length with each query;
        after a round they stand in another order. So as many vote in each query, and nobody much more often than planned.
        """
        found = np.zeros((queries, self.teachers), bool)
        for begin, end, active in sorted(
            {(int(b), int(e), int(t)) for b, e, t in zip(self.begin, self.end, self.taking_part, strict=True)}
        ):
            size = end - begin
            if active == size:
                found[:, begin:end] = True
                continue
            slots = np.arange(first * active, (first + queries) * active).reshape(queries, active)
            rounds, seats = np.divmod(slots, size)
            for number in np.unique(rounds):
                order = begin + np.random.default_rng([begin, size, active, int(number)]).permutation(size)
                row, column = np.nonzero(rounds == number)
                found[row, order[seats[row, column]]] = True
            self._fill(found, first, begin, size, active)
        return found

    def _fill(self, found: NDArray[np.bool_], first: int, begin: int, size: int, active: int) -> None:
        """Where a window crosses from one round into the next a teacher may stand in both: another one votes in its place."""
        part = found[:, begin : begin + size]
        for row in np.flatnonzero(part.sum(1) < active):
            resting = np.flatnonzero(~part[row])
            chosen = np.random.default_rng([begin, size, active, first + int(row), 1]).permutation(resting)[: active - int(part[row].sum())]
            part[row, chosen] = True

    @cached_property
    def view(self) -> confidential.View:
        """The groups of this plan as they may be shown. No spend is a group's own: its digits tell everybody's weights."""
        return confidential.View(self.epsilon, self.delta, self.holders)

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """This plan as a JSON document.

        By default it shows groups of fewer than ten holders only merged, as ranges, and of the others what follows from everybody's
        budgets with one digit; with `sensitive` it shows every group, so that it can be read back.
        """
        view = self.view
        if sensitive:
            groups = [{name: to_json_number(float(getattr(self, name)[i])) for name in _ARRAYS} for i in range(len(self))]
        else:
            columns = {name: view.coarse(getattr(self, name)) if name in _OF_ALL else getattr(self, name) for name in _ARRAYS}
            groups = [
                {name: confidential.to_json(view.value(values, row)) for name, values in columns.items()} | {"holders": view.people(row)}
                for row in view.rows()
            ]
        return {
            "variant": self.variant,
            "teachers": self.teachers,
            "aggregator": self.aggregator.to_json(),
            "scale": self.scale,
            "reserve": self.reserve,
            "merged": view.merged and not sensitive,
            "groups": groups,
        }

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> PatePlan:
        """The plan of a JSON document, checked like any other."""
        if isinstance(document, Mapping) and document.get("merged"):
            raise SartorError(
                "this document shows groups of fewer than 10 holders merged, so no plan can be read from it; write it with every group "
                "(sensitive=True)."
            )
        try:
            arrays = {name: [from_json_number(group[name]) for group in document["groups"]] for name in _ARRAYS}
            return cls(
                document["variant"],
                document["teachers"],
                aggregators.from_json(document["aggregator"]),
                float(document["scale"]),
                **arrays,  # type: ignore[arg-type]
                reserve=float(document["reserve"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise SartorError(f"this is not a plan for PATE: {error}.") from None

    def __repr__(self) -> str:
        return f"PatePlan({self.variant}, {self.teachers} teachers; {self.view!r})"


def plan(
    budgets: Budgets,
    variant: Variant = "weight",
    *,
    teachers: int = 250,
    aggregator: GNMax | None = None,
    tune: bool = False,
    precision: float = 0.05,
    power: float = 2.0,
    most_teachers: int | None = None,
) -> PatePlan:
    """Treat people in an ensemble of `teachers` by their budgets.

    Sensitivities follow the epsilons, as in the paper; with `tune` they follow what a budget really allows, so that all groups run out
    together, and upsampling looks for the duplicates under which voting lasts longest. `precision` is how far a ratio of duplicates
    may be from the ratio of budgets; `power` is that of vanishing's participation (ignored with `tune`). Upsampling keeps the number
    of records per teacher, so it makes more teachers than asked; `most_teachers` (default: eight times as many) is its limit.

    >>> import sartor
    >>> people = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
    >>> plan(people, "weight").sensitivity.round(3)
    array([0.53 , 1.059, 1.589])
    >>> plan(people, "upsample").sensitivity
    array([1., 2., 3.])
    """
    if variant not in VARIANTS:
        raise SartorError(f'a variant is one of {", ".join(VARIANTS)}, not "{variant}".')
    teachers = whole(teachers, "the number of teachers", most=len(budgets))
    limit = 8 * teachers if most_teachers is None else whole(most_teachers, "most_teachers")
    if aggregator is not None and type(aggregator) not in aggregators.KINDS:
        raise SartorError("an aggregator is GNMax, Confident or Interactive.")
    if not (isinstance(precision, Real) and 0 <= precision < np.inf and isinstance(power, Real) and 0 <= power < np.inf):
        raise SartorError("precision and power must be numbers of 0 or more.")
    groups = budgets.groups
    if np.any(np.isinf(groups.epsilon)):
        raise SartorError("public records (infinite epsilon) need no teacher: leave them out here, and give them to the student.")
    asked = Confident(noise=40.0, threshold=200.0, threshold_noise=150.0).scaled(teachers / 250) if aggregator is None else aggregator
    value = groups.epsilon
    if tune:
        eps, own = spendable(groups.epsilon, budgets.reserve), spendable(groups.delta, budgets.reserve)
        value = np.sqrt(Accountant().allowance(eps, own))
    make = {"standard": _standard, "upsample": _upsampled, "weight": _weighted, "vanish": _vanishing}[variant]
    price = 1 / asked.test_noise**2 + 2 / asked.noise**2
    options = {"tune": tune, "precision": precision, "power": power, "most": limit, "price": price}
    rows, count, scale = make(groups.holders, np.asarray(value), teachers, options)
    return PatePlan(
        variant, count, asked.scaled(scale), scale, groups.epsilon, groups.delta, groups.holders, reserve=budgets.reserve, **rows
    )


def whole(value: Any, what: str, *, least: int = 1, most: float = np.inf) -> int:
    """A whole number within limits, or one clear error."""
    fits = isinstance(value, Real) and not isinstance(value, bool) and float(value).is_integer()
    if not fits or not least <= value <= most:
        limits = f"from {least} to {int(most):,}" if np.isfinite(most) else f"of {least} or more"
        raise SartorError(f"{what} must be a whole number {limits}, not {value}.")
    return int(value)


_Made = tuple[dict[str, Any], int, float]


def _rows(duplicates: Any, begin: Any, end: Any, weight: Any, taking_part: Any, count: int) -> dict[str, Any]:
    values = {"duplicates": duplicates, "begin": begin, "end": end, "weight": weight, "taking_part": taking_part}
    return {name: np.broadcast_to(np.asarray(value), (count,)) for name, value in values.items()}


def _standard(holders: Counts, value: Array, teachers: int, options: Mapping[str, Any]) -> _Made:
    return _rows(1, 0, teachers, 1.0, teachers, len(holders)), teachers, 1.0


def _upsampled(holders: Counts, value: Array, teachers: int, options: Mapping[str, Any]) -> _Made:
    ratio = value / value.min()
    best: tuple[float, NDArray[np.int64]] | None = None
    for times in range(1, 1 + int(options["most"] / teachers)):
        found = np.maximum(np.round(ratio * times), 1).astype(np.int64)
        scale = float(np.average(found, weights=holders))
        if round(teachers * scale) > options["most"] or found.max() > round(teachers * scale):
            continue
        error = float(np.max(np.abs(found / times / ratio - 1)))
        # how long voting lasts: until the first group has spent (duplicates over scale) squared times the queries
        lasts = float(np.min((value * scale / found) ** 2))
        if options["tune"]:
            best = (lasts, found) if best is None or lasts > best[0] * (1 + 1e-9) else best
            if best[0] >= (1 - options["precision"]) * float(np.average(value, weights=holders)) ** 2:  # of what fractions would reach
                break
        elif error <= options["precision"]:
            best = (lasts, found)
            break
    if best is None:
        raise Infeasible(
            f"no whole numbers of duplicates meet the ratios of these budgets within {options['precision']:g} and {options['most']:,} "
            "teachers: allow less precision or more teachers, or take the variant weight."
        )
    found = best[1] // np.gcd.reduce(best[1])
    scale = float(np.average(found, weights=holders))
    count = round(teachers * scale)
    return _rows(found, 0, count, 1.0, count, len(holders)), count, scale


def _weighted(holders: Counts, value: Array, teachers: int, options: Mapping[str, Any]) -> _Made:
    of_group, counts = _pools(holders, teachers)
    strictest = np.array([value[of_group == pool].min() for pool in range(len(counts))])
    weight = strictest / np.average(strictest, weights=counts)
    end = np.cumsum(counts)
    return _rows(1, (end - counts)[of_group], end[of_group], weight[of_group], counts[of_group], len(holders)), teachers, 1.0


def _vanishing(holders: Counts, value: Array, teachers: int, options: Mapping[str, Any]) -> _Made:
    of_group, counts = _pools(holders, teachers)
    strictest = np.array([value[of_group == pool].min() for pool in range(len(counts))])
    best: tuple[float, Counts] | None = None
    for power in _POWERS if options["tune"] else (options["power"],):
        active = np.clip(np.round((strictest / strictest.max()) ** power * counts), 1, counts).astype(np.int64)
        # until the first teacher is out: each takes part in about active / counts of the queries, rounded up, at teachers / participants
        lasts = _longest(strictest**2, active / counts, teachers / int(active.sum()), options["price"])
        best = (lasts, active) if best is None or lasts > best[0] else best
    assert best is not None
    active = best[1]
    # votes are scaled to the size of the ensemble, so each participant weighs teachers over participants
    weight = teachers / int(active.sum())
    end = np.cumsum(counts)
    return _rows(1, (end - counts)[of_group], end[of_group], weight, active[of_group], len(holders)), teachers, 1.0


def _longest(allowance: Array, frequency: Array, weight: float, price: float) -> float:
    """How many answered queries a schedule lasts: a teacher that can pay for n of them takes part in one more at worst."""
    payable = np.floor(allowance / (weight**2 * price))
    return float(np.min(np.where(frequency == 1, payable, (payable - 1) / frequency)))


def _pools(holders: Counts, teachers: int) -> tuple[NDArray[np.intp], Counts]:
    """Which pool of teachers each group has, and how many teachers each pool: by size.

    Groups too small for a teacher of their own share one with neighbours as small; where there are too few teachers even for that, with
    any neighbours.
    """
    share = holders / holders.sum() * teachers
    for apart in (True, False):
        of_group = np.zeros(len(holders), np.intp)
        pool, filled = 0, 0.0
        for group in range(1, len(holders)):
            filled += float(share[group - 1])
            enough = filled >= 1 - 1e-9 and float(share[group:].sum()) >= 1 - 1e-9
            if enough or (apart and max(share[group - 1], share[group]) >= 1):
                pool, filled = pool + 1, 0.0
            of_group[group] = pool
        if pool < teachers:
            break
    exact = np.bincount(of_group, share)
    counts = np.maximum(np.floor(exact + 1e-9), 1).astype(np.int64)
    while (missing := teachers - int(counts.sum())) != 0:
        # one by one to whom most is missing, or from whom has most beyond their share
        away = exact - counts
        change = int(np.argmax(away)) if missing > 0 else int(np.argmin(np.where(counts > 1, away, np.inf)))
        counts[change] += np.sign(missing)
    return of_group, counts
