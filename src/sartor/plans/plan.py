"""The plan: budgets turned into parameters, as one frozen and public value.

A plan knows groups, not members. Sampler, clipper, noise and account are made from it, so they cannot disagree.

Guarantee: for each holder, (epsilon, delta)-DP at their own budget, less the reserve, under zeroing everything of theirs, for the run in
    which, at each step, each holder of a group is drawn by an independent coin at the group's rate, contributes a vector of norm at
    most the group's clip to a sum, and Gaussian noise of deviation `noise` is added.
Proof: to one holder that run is a sampled Gaussian with the group's rate and noise multiplier (noise over the group's clip), whatever the
    others do (IDP-SGD, theorems G.1 and G.2); the plan's accountant bounds its cost, and the constructor compares it with the budget.
Breaks if: batches are not Poisson, sums are divided by the observed batch, or a holder is given another group's parameters.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor import accounting, confidential
from sartor.accounting import Accountant, SampledGaussian, spend
from sartor.accounting.spending import check_accountant
from sartor.budgets import Budgets, spendable
from sartor.documents import read_json
from sartor.errors import Overspent, SartorError
from sartor.exposure import MOST_STEPS
from sartor.immutable import immutable
from sartor.numbers import from_json_number, to_json_number
from sartor.plans import excess as excess_of
from sartor.plans import table
from sartor.run.files import write_private, write_public

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_SCALARS = ("scheme", "accountant", "steps", "batch", "clip", "noise_multiplier", "reserve")
_ARRAYS: dict[str, type] = {
    "epsilon": np.float64,
    "delta": np.float64,
    "holders": np.int64,
    "rate": np.float64,
    "clips": np.float64,
    "first": np.int64,
    "last": np.int64,
}
_COLUMNS = ("epsilon", "delta", "holders", "rate", "clip", "noise_multiplier", "expected_uses", "spent", "excess")
_STORED = 5  # of them: the others follow from these


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """Per group a rate, a clip and the exposure that follows; one noise level; the steps. Made by `sartor.plan`.

    Arrays have one entry per group, in the order of the budgets' groups. `clips` are the groups' clip norms, `clip` is the one asked for;
    a group takes part in the steps from `first` up to but not including `last`.
    """

    scheme: str
    accountant: Accountant
    steps: int
    batch: float
    clip: float
    noise_multiplier: float
    epsilon: Array
    delta: Array
    holders: Counts
    rate: Array
    clips: Array
    first: Counts
    last: Counts
    reserve: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_accountant(self.accountant)
        try:
            for name in ("batch", "clip", "noise_multiplier", "reserve"):
                object.__setattr__(self, name, float(getattr(self, name)))
            object.__setattr__(self, "steps", int(self.steps) if float(self.steps).is_integer() else 0)
            for name, kind in _ARRAYS.items():
                object.__setattr__(self, name, immutable(getattr(self, name), kind))
        except (TypeError, ValueError, OverflowError):
            raise SartorError("this is not a plan: a number is missing or of the wrong type.") from None
        object.__setattr__(self, "options", MappingProxyType(dict(self.options)))
        self._check_numbers()
        allowed = spendable(self.epsilon, self.reserve)
        kept = self.spent <= allowed
        if not kept.all():
            i = int(np.flatnonzero(~kept)[0])
            who = confidential.name_group(float(self.epsilon[i]), int(self.holders[i]))
            by = "more than" if confidential.are_few(self.holders[i]) else f"{float(self.spent[i] / allowed[i]):.3g} times"
            raise Overspent(
                f"this plan would overspend {int((~kept).sum())} of {len(kept)} groups: {who} would spend {by} its budget; "
                "use more noise, lower rates, smaller clips or fewer steps."
            )

    def __reduce__(self) -> tuple[Any, ...]:
        values = {name: getattr(self, name) for name in (*_SCALARS, *_ARRAYS)}
        return _rebuilt, ({**values, "options": dict(self.options)},)

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def _check_numbers(self) -> None:
        count = self.epsilon.size
        for name in _ARRAYS:
            if getattr(self, name).shape != (count,):
                raise SartorError(f"a plan needs one {name} for each of its {count} groups.")
        wrong = {
            f"steps must be a whole number from 1 to {MOST_STEPS:g}": not 1 <= self.steps <= MOST_STEPS or self.steps != int(self.steps),
            "the batch must be positive and finite": not 0 < self.batch < np.inf,
            "the clip must be positive and finite": not (0 < self.clip < np.inf),
            "the noise must be 0 or more and finite": not (self.noise_multiplier >= 0 and 0 <= self.noise_multiplier * self.clip < np.inf),
            "rates must lie in [0, 1]": not np.all((self.rate >= 0) & (self.rate <= 1)),
            "clips must be positive and finite": not np.all((self.clips > 0) & np.isfinite(self.clips)),
            "every group needs a positive epsilon": not np.all(self.epsilon > 0),
            "every group needs a delta strictly between 0 and 1": not np.all((self.delta > 0) & (self.delta < 1)),
            "every group needs at least one holder": not (count and np.all(self.holders >= 1)),
            "a group takes part from a step of the run up to a later one": not np.all(
                (self.first >= 0) & (self.last >= self.first) & (self.last <= self.steps)
            ),
            "the reserve must lie in [0, 1)": not 0 <= self.reserve < 1,
            "two groups have the same budget": len(set(zip(self.epsilon.tolist(), self.delta.tolist(), strict=True))) < count,
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise SartorError(f"this is not a plan: {sentence}.")

    def __len__(self) -> int:
        return len(self.epsilon)

    @property
    def noise(self) -> float:
        """Standard deviation of the Gaussian noise that is added to each sum."""
        return self.noise_multiplier * self.clip

    @cached_property
    def noise_multipliers(self) -> Array:
        """Of each group: the noise over the group's clip."""
        return immutable(self.noise / self.clips)

    @cached_property
    def expected_uses(self) -> Array:
        """How often a member of each group is expected to be drawn in the whole run."""
        return immutable(self.rate * (self.last - self.first))

    @cached_property
    def spent(self) -> Array:
        """Epsilon that each group has spent at the end, at its delta less the reserve, by the plan's accountant."""
        return immutable(self.spent_after(self.steps))

    def spent_after(self, steps: int) -> Array:
        """Epsilon that each group has spent after the first `steps` steps; 0 where those did not touch it."""
        if not 0 <= steps <= self.steps:
            raise SartorError(f"the plan has {self.steps} steps: what is spent after {steps} is not defined.")
        taken = np.clip(steps - self.first, 0, self.last - self.first)
        out = np.zeros(len(self))
        finite = np.isfinite(self.epsilon)
        out[~finite] = np.where((taken > 0) & (self.rate > 0), np.inf, 0.0)[~finite]
        if finite.any():
            delta = spendable(self.delta, self.reserve)[finite]
            noise = self.noise_multipliers[finite]
            out[finite] = spend(self.rate[finite], noise, taken[finite], delta, self.accountant)
        return out

    @cached_property
    def capped(self) -> NDArray[np.bool_]:
        """Groups that are drawn at every step and still cannot spend their budget."""
        room = self.spent < (1 - accounting.solve.MOST_WASTE) * spendable(self.epsilon, self.reserve)
        return immutable((self.rate >= 1) & room & np.isfinite(self.epsilon), np.bool_)

    def exposure(self, group: int, steps: int | None = None) -> SampledGaussian:
        """What a member of a group undergoes, in the whole run or in its first `steps` steps."""
        end = self.steps if steps is None else steps
        taken = int(np.clip(end - self.first[group], 0, self.last[group] - self.first[group]))
        return SampledGaussian(float(self.rate[group]), float(self.noise_multipliers[group]), taken)

    def profile(self, group: int, epsilon: ArrayLike) -> Array:
        """The privacy profile of a group: delta at each epsilon."""
        return accounting.profile(self.exposure(group), epsilon)

    @cached_property
    def excess(self) -> Array:
        """How much further from uniform treatment each group's risk may lie, within the letter of its guarantee (see `plans.excess`)."""
        return immutable(excess_of.of_plan(self))

    def groups_of(self, budgets: Budgets) -> NDArray[np.intp]:
        """For each holder the index of their group in this plan, found by their budget; refuses budgets that the plan was not made for."""
        groups = budgets.groups
        if budgets.reserve != self.reserve:
            raise SartorError("these budgets keep another share in reserve than the plan was made for.")
        place = {key: i for i, key in enumerate(zip(self.epsilon.tolist(), self.delta.tolist(), strict=True))}
        found = [place.get(key, -1) for key in zip(groups.epsilon.tolist(), groups.delta.tolist(), strict=True)]
        index = np.array(found, np.intp)
        if np.any(index < 0) or len(index) != len(self) or np.any(self.holders[index] != groups.holders):
            raise SartorError("these are not the budgets that the plan was made for: groups or their sizes differ.")
        return np.asarray(index[groups.of_holder])

    def record(self) -> dict[str, Any]:
        """What is stored of this plan, for its owner alone: every group, and nothing that follows from the rest; `from_json` reads it."""
        return self._document(self._every(_COLUMNS[:_STORED]), merged=False)

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """This plan as a JSON document that shows what it means.

        By default it shows groups of fewer than ten holders only merged, as ranges; with `sensitive` it shows every group, so that it
        can be read back.
        """
        if sensitive:
            return self._document(self._every(_COLUMNS), merged=False)
        view = self.view
        rows = view.rows()
        groups = [{name: self._shown(name, self._column(name), row) for name in _COLUMNS} for row in rows]
        for group, row in zip(groups, rows, strict=True):
            if not view.hides(row):
                group.update(self._turn(row.start))
        return self._document(groups, merged=view.merged)

    def _every(self, names: tuple[str, ...]) -> list[dict[str, Any]]:
        columns = {name: self._column(name) for name in names}
        return [{name: _number(values[i]) for name, values in columns.items()} | self._turn(i) for i in range(len(self))]

    def _turn(self, group: int) -> dict[str, Any]:
        """The steps that a group takes part in, if not in all."""
        first, last = int(self.first[group]), int(self.last[group])
        return {"first": first, "last": last} if first > 0 or last < self.steps else {}

    def _document(self, groups: list[dict[str, Any]], *, merged: bool) -> dict[str, Any]:
        return {
            "scheme": self.scheme,
            "accountant": self.accountant,
            "steps": self.steps,
            "batch": _number(self.batch),
            "clip": self.clip,
            "noise_multiplier": self.noise_multiplier,
            "reserve": self.reserve,
            "options": {key: _number(value) if isinstance(value, float) else value for key, value in self.options.items()},
            "merged": merged,
            "groups": groups,
        }

    def _column(self, name: str) -> Array:
        found: Array = getattr(self, {"clip": "clips", "noise_multiplier": "noise_multipliers"}.get(name, name))
        return found.astype(float)

    @cached_property
    def view(self) -> confidential.View:
        """The groups of this plan as they may be shown: the only way from a plan to a table, a document or a page."""
        return confidential.View(self.epsilon, self.delta, self.holders, ~self._shared())

    def _shared(self) -> NDArray[np.bool_]:
        """Groups with the exposure of a group of fewer than ten holders: what they spend would tell what it allows."""
        small, found = confidential.are_few(self.holders), np.zeros(len(self), bool)
        with np.errstate(divide="ignore"):
            place = np.log(self.noise_multipliers) * 1e6
        for shift in (0.0, 0.5):  # of two grids one at least has figures in one cell that differ by rounding alone
            cell = np.floor(np.where(np.isfinite(place), place, 0.0) + shift)
            keys = list(zip(self.rate.tolist(), cell.tolist(), (self.last - self.first).tolist(), strict=True))
            known = {key for key, is_small in zip(keys, small, strict=True) if is_small}
            found |= np.array([key in known for key in keys], bool)
        return found

    def _shown(self, name: str, values: Array, row: slice) -> Any:
        if name == "holders":
            return self.view.people(row)
        return confidential.to_json(self.view.spent(values, row) if name == "spent" else self.view.value(values, row))

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Plan:
        """The plan in a JSON document; what it promises is computed and checked again, not believed."""
        if not isinstance(document, Mapping) or "groups" not in document:
            raise SartorError("this is not a plan: it has no groups.")
        if document.get("merged"):
            raise SartorError(
                "this document shows groups of fewer than 10 holders merged, so no plan can be read from it; write it with every group "
                "(sensitive=True, or --all-groups on the command line)."
            )
        try:
            groups = document["groups"]
            column = {name: [from_json_number(group[name]) for group in groups] for name in _COLUMNS[:_STORED]}
            steps = _whole(document["steps"], "steps")
            return cls(
                scheme=str(document["scheme"]),
                accountant=check_accountant(document["accountant"]),
                steps=steps,
                batch=from_json_number(document["batch"]),
                clip=from_json_number(document["clip"]),
                noise_multiplier=from_json_number(document["noise_multiplier"]),
                epsilon=np.array(column["epsilon"]),
                delta=np.array(column["delta"]),
                holders=np.array([_whole(size, "holders") for size in column["holders"]], np.int64),
                rate=np.array(column["rate"]),
                clips=np.array(column["clip"]),
                first=np.array([_whole(group.get("first", 0), "first") for group in groups]),
                last=np.array([_whole(group.get("last", steps), "last") for group in groups]),
                reserve=from_json_number(document.get("reserve", 0.0)),
                options=dict(document.get("options", {})),
            )
        except KeyError as error:
            raise SartorError(f"this is not a plan: {error} is missing.") from None
        except (TypeError, AttributeError, OverflowError):
            raise SartorError("this is not a plan: a number is missing or of the wrong type.") from None

    def save(self, path: str | os.PathLike[str], *, sensitive: bool = False) -> None:
        """Write the plan as JSON, readable by its owner alone where it is sensitive."""
        content = json.dumps(self.to_json(sensitive=sensitive), indent=2) + "\n"
        if sensitive:
            write_private(path, content.encode())
        else:
            write_public(path, content)

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Plan:
        """Read a plan that was saved with every group."""
        return cls.from_json(read_document(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in (*_SCALARS, "options")) and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Plan({self.scheme}, {self.accountant}, {self.steps} steps, noise multiplier {self.noise_multiplier:.5g}; {self.view!r})"

    def __str__(self) -> str:
        return table.plain(self)

    def __rich__(self) -> Any:
        return table.rich(self)


def _rebuilt(fields: dict[str, Any]) -> Plan:
    """A plan from its fields, checked like any other: copies and pickles come back through here."""
    return Plan(**fields)


def _whole(value: Any, name: str) -> int:
    number = from_json_number(value)
    if not number.is_integer() or abs(number) > 2**53:
        raise SartorError(f"this is not a plan: {name} must be a whole number.")
    return int(number)


def _number(value: float) -> Any:
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else to_json_number(number)


def read_document(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON document from a file, or one clear error."""
    document = read_json(path, "the plan")
    if not isinstance(document, dict):
        raise SartorError(f"{os.fspath(path)} is not a plan.")
    return document
