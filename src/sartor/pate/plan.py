"""How an ensemble treats people by their budgets: a public value, made from the budgets alone.

Guarantee: for each holder (epsilon, delta)-DP at their own budget, less the reserve, for all labels that a voting under this plan gives,
    under removing or replacing everything of theirs (the plan, the number of teachers among it, stays).
Proof: a holder reaches only the teachers that their hash and their group name (`partition`), so their *sensitivity*, the votes that
    those teachers weigh together, bounds how far any count moves: duplicates under upsampling (no teacher twice), the weight of their
    teacher under weighting, teachers over participants under vanishing in the queries that their teacher takes part in, and nothing in
    the others (`variants`). Costs follow from it (`bounds`), add up (`account`), and a query is asked only if everyone can pay (`voting`).
Breaks if: records of one holder lie under several names; teachers see other records than their own (also for scaling or
    stopping); votes are looked at before they are aggregated.

An aggregator is how votes become a label: the noisy maximum, with or without a noisy test before it. Its numbers are in votes of an
ensemble of `teachers`; a plan scales them with the ensemble that it makes.

>>> confident = Confident(noise=40, threshold=200, threshold_noise=150)
>>> confident.scaled(1.5).threshold
300.0
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from functools import cached_property
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.budgets import Budgets, spendable
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.numbers import from_json_number, to_json_number
from sartor.ownership import Ownership
from sartor.pate.variants import VARIANTS, find
from sartor.relation import REPLACE, Relation

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
NONE = -1
"""The label of a query that got none."""

_LEAST, _MOST = 1e-6, 1e12
_NOISES = ("noise", "threshold_noise")
_Any = TypeVar("_Any", bound="GNMax")


@dataclass(frozen=True)
class GNMax:
    """Every query is answered: the class with most votes after Gaussian noise on every count."""

    noise: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
                raise SartorError(f"{field.name} must be a number of 0 or more, not {value}.")
            object.__setattr__(self, field.name, float(value))
        if not all(_LEAST <= noise <= _MOST or noise == np.inf for noise in (self.noise, self.test_noise)):
            raise SartorError(f"an aggregator without noise protects nobody; its noise must lie between {_LEAST:g} and {_MOST:g} votes.")

    @property
    def tests(self) -> bool:
        """Whether a noisy test comes before the answer."""
        return bool(np.isfinite(self.test_noise))

    @property
    def test_noise(self) -> float:
        """Deviation of the noise of the test; infinite where there is none, as its cost is zero then."""
        return np.inf

    def scaled(self: _Any, factor: float) -> _Any:
        """The same for an ensemble with so many times the votes."""
        votes = {field.name: getattr(self, field.name) * factor for field in fields(self) if field.name != "confidence"}
        return replace(self, **votes)

    def louder(self: _Any, factor: float) -> _Any:
        """The same with so many times the noise."""
        noises = {field.name: getattr(self, field.name) * factor for field in fields(self) if field.name in _NOISES}
        return replace(self, **noises)

    def otherwise(self, student: Array | None, queries: int) -> Labels:
        """The labels of queries whose test failed."""
        return np.full(queries, NONE, np.int64)

    def check(self, queries: int, classes: int, student: Array | None) -> None:
        """Whether what it is given fits."""
        if student is not None:
            raise SartorError("only the interactive aggregator looks at a student's probabilities.")

    def to_json(self) -> dict[str, Any]:
        """Its kind and its numbers."""
        return {"kind": KINDS[type(self)], **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True)
class Confident(GNMax):
    """A query is answered if its largest count, with noise of its own, is above a threshold: most disagreements cost the test alone."""

    threshold: float
    threshold_noise: float

    @property
    def test_noise(self) -> float:
        """Deviation of the noise of the test."""
        return self.threshold_noise

    def tested(self, counts: Array, student: Array | None, share: Array) -> tuple[Array, Array]:
        """For each query the figure that the test compares, the largest count, and the threshold; `share` of the votes take part."""
        return counts.max(1), self.threshold * share


@dataclass(frozen=True)
class Interactive(Confident):
    """A query is answered where the teachers disagree with the student, by so many votes; where they do not, and the student's largest
    probability is above `confidence`, its own label stands, which costs the test alone.

    Breaks if: the student has seen anything but public data and released labels.
    """

    confidence: float = 0.9

    def tested(self, counts: Array, student: Array | None, share: Array) -> tuple[Array, Array]:
        """The largest lead of the teachers' votes over the votes that the student would cast."""
        assert student is not None
        total = counts.sum(1, keepdims=True)
        return (counts - total * student).max(1), self.threshold * share

    def otherwise(self, student: Array | None, queries: int) -> Labels:
        """The student's own, where it is sure."""
        assert student is not None
        return np.where(student.max(1) > self.confidence, student.argmax(1), NONE).astype(np.int64)

    def check(self, queries: int, classes: int, student: Array | None) -> None:
        """It needs the student's probabilities."""
        if student is None or student.shape != (queries, classes):
            raise SartorError(f"the interactive aggregator needs the student's probabilities, {queries:,} by {classes}.")
        if not np.all((student >= 0) & (student <= 1)):
            raise SartorError("the student's probabilities must lie between 0 and 1.")


KINDS: dict[type[GNMax], str] = {GNMax: "gnmax", Confident: "confident", Interactive: "interactive"}


def aggregator_from_json(document: dict[str, Any]) -> GNMax:
    """The aggregator of a JSON document."""
    kinds = {name: kind for kind, name in KINDS.items()}
    try:
        rest = dict(document)
        return kinds[rest.pop("kind")](**rest)
    except (KeyError, TypeError, AttributeError):
        raise SartorError("this is not an aggregator: its kind or a number is missing.") from None


Counts = NDArray[np.int64]

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
    """Per group the teachers that its members may reach and how much those weigh. Made by `sartor.pate.plan`.

    Arrays have one entry per group, strictest first. A member is taught to `duplicates` of the teachers from `begin` up to but not
    including `end`; each of these weighs `weight` votes, and `taking_part` of them vote in each query. `scale` is N'/N, by which noise and
    threshold of the aggregator grew with the ensemble. `records` is how many records the holders have in all, where an ownership said so:
    a public number, from which nothing else follows.
    """

    variant: str
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
    records: int | None = None

    def __post_init__(self) -> None:
        try:
            for name, kind in _ARRAYS.items():
                object.__setattr__(self, name, immutable(getattr(self, name), kind))
            object.__setattr__(self, "teachers", whole(self.teachers, "the number of teachers"))
            if self.records is not None:
                object.__setattr__(self, "records", whole(self.records, "the number of records"))
        except (TypeError, ValueError, OverflowError):
            raise SartorError("this is not a plan for PATE: a number is missing or of the wrong type.") from None
        if not len(self.epsilon) or any(getattr(self, name).shape != self.epsilon.shape for name in _ARRAYS):
            raise SartorError("this is not a plan for PATE: it needs every number once for each of its groups.")
        if self.variant not in VARIANTS:
            raise SartorError(f"this is not a plan for PATE: the variant is one of {', '.join(VARIANTS)}.")
        size, treats = self.end - self.begin, find(self.variant)
        wrong = {
            "an aggregator is missing": type(self.aggregator) not in KINDS,
            "budgets must be positive and finite": not np.all((self.epsilon > 0) & np.isfinite(self.epsilon)),
            "deltas must lie between 0 and 1": not np.all((self.delta > 0) & (self.delta < 1)),
            "the reserve must lie in [0, 1)": not 0 <= self.reserve < 1,
            "every holder has a record at least": self.records is not None and self.records < int(self.holders.sum()),
            "the scale must be 1 or more": not 1 <= self.scale < np.inf,
            "a group's teachers must lie within the ensemble": np.any(self.begin < 0) or np.any(self.end > self.teachers),
            "nobody can be taught to more teachers than their group has": np.any(self.duplicates > size),
            "everybody is taught to a teacher": np.any(self.duplicates < 1),
            "weights must be positive and finite": not np.all((self.weight > 0) & np.isfinite(self.weight)),
            "some teachers of each group must take part": np.any((self.taking_part < 1) | (self.taking_part > size)),
            "teachers rest under vanishing alone": not treats.rests and np.any(self.taking_part != size),
            "people are duplicated under upsampling alone": not treats.duplicates and np.any(self.duplicates != 1),
            "votes weigh one but for weighting and vanishing": not treats.apart and np.any(self.weight != 1),
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
        plain = ("variant", "teachers", "aggregator", "scale", "reserve", "records")
        return all(getattr(self, name) == getattr(other, name) for name in plain) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    @property
    def relation(self) -> Relation:
        """What may happen to one holder's data between two neighbours."""
        return REPLACE

    @property
    def apart(self) -> bool:
        """Whether groups have teachers of their own, without which voting may go on."""
        return find(self.variant).apart

    @property
    def rests(self) -> bool:
        """Whether teachers take turns, so that each of them has an account of its own."""
        return find(self.variant).rests

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

    @property
    def counted(self) -> dict[str, int]:
        """How many holders there are, and how many records where that is known, as documents say it."""
        return {"holders": int(self.holders.sum()), **({} if self.records is None else {"records": self.records})}

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
            **self.counted,
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
                aggregator_from_json(document["aggregator"]),
                float(document["scale"]),
                **arrays,  # type: ignore[arg-type]
                reserve=float(document["reserve"]),
                records=document.get("records"),
            )
        except SartorError:
            raise
        except (KeyError, TypeError, ValueError) as error:
            raise SartorError(f"this is not a plan for PATE: {error}.") from None

    def __repr__(self) -> str:
        lent = "" if self.records is None else f"{confidential.lent(int(self.holders.sum()), self.records)}: "
        return f"PatePlan({self.variant}, {self.teachers} teachers; {lent}{self.view!r})"


def records_of(budgets: Budgets, ownership: Ownership | None) -> int | None:
    """How many records there are, where an ownership says so; one of other holders is refused."""
    if ownership is None:
        return None
    ownership.check(budgets)
    return len(ownership)


def whole(value: Any, what: str, *, least: int = 1, most: int = 2**53) -> int:
    """A whole number within limits, or one clear error; none is so large that a float could not tell it from the next."""
    fits = isinstance(value, Real) and not isinstance(value, bool) and (isinstance(value, int) or float(value).is_integer())
    if not fits or not least <= value <= most:
        limits = f"from {least} to {most:,}" if most < 2**53 or (fits and value > most) else f"of {least} or more"
        raise SartorError(f"{what} must be a whole number {limits}, not {value}.")
    return int(value)
