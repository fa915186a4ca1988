"""The plan: budgets turned into parameters, as one frozen and public value.

A plan knows groups, not members. Sampler, clipper, noise and account are made from it, so they cannot disagree.

Guarantee: for each holder, (epsilon, delta)-DP at their own budget, less the reserve, under zeroing everything of theirs, for the run in
    which, stage after stage, each holder of a group takes part with the group's probability of inclusion by one coin of their own, and at
    each step of the stage each who takes part is drawn by an independent coin at the group's rate and contributes a vector of norm at most
    the group's clip to a sum, to which Gaussian noise of the stage's deviation is added. With a filter, of norm at most a rung of the
    group's clip, chosen before each stretch and paid for in units (`filters`).
Proof: to one holder a stage is a sampled Gaussian with the group's rate and noise multiplier (noise over the group's clip), behind the coin
    of inclusion, whatever the others do (IDP-SGD, theorems G.1 and G.2), and the run is the composition of its stages; the plan's
    accountant bounds its cost, and the constructor compares it with the budget.
Breaks if: batches are not Poisson, sums are divided by the observed batch, a coin of inclusion is tossed twice or seen, or a holder is
    given another group's parameters.
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
from sartor.accounting import Composition, Exposure, Included, SampledGaussian, accountants, spend, spend_on
from sartor.budgets import Budgets, spendable
from sartor.errors import Overspent, SartorError
from sartor.exposure import MOST_STEPS
from sartor.immutable import immutable
from sartor.plans import document, table
from sartor.plans import excess as excess_of
from sartor.plans.filters import Filter
from sartor.plans.stage import Parts, Stage
from sartor.relation import ZERO_OUT, Relation
from sartor.run.files import write_private, write_public

Array = NDArray[np.float64]
Counts = NDArray[np.int64]

_SCALARS = ("scheme", "accountant", "batch", "clip", "reserve")
_OF_RECORDS = ("records", "records_per_holder", "combine")
COMBINED = ("mean", "sum")
"""How the gradients of a holder's records become one, which is clipped."""
_ARRAYS: dict[str, type] = {"epsilon": np.float64, "delta": np.float64, "holders": np.int64}


@dataclass(frozen=True, repr=False, eq=False)
class Plan:
    """Stages with a rate, a clip and a noise for each group, and the exposure that follows. Made by `sartor.plan`.

    Arrays have one entry per group, in the order of the budgets' groups. `batch` is the expected size of a batch, by which sums are
    divided; `clip` is the clip norm that was asked for, and the unit of the stages' noise multipliers.

    Holders with several records: `records` is how many there are in all, if that is known, `records_per_holder` how many of a holder's
    enter a step at most (None: all), and `combine` says whether their mean or their sum is clipped. No guarantee depends on these.

    `filter` lets holders pay for the norms that their gradients have, instead of for full norm in every step.
    """

    scheme: str
    accountant: str
    batch: float
    clip: float
    epsilon: Array
    delta: Array
    holders: Counts
    stages: tuple[Stage, ...]
    reserve: float = 0.0
    options: Mapping[str, Any] = field(default_factory=dict)
    records: int | None = None
    records_per_holder: int | None = None
    combine: str = "mean"
    filter: Filter | None = None

    def __post_init__(self) -> None:
        accountants.find(self.accountant)
        try:
            for name in ("batch", "clip", "reserve"):
                object.__setattr__(self, name, float(getattr(self, name)))
            for name, kind in _ARRAYS.items():
                object.__setattr__(self, name, immutable(getattr(self, name), kind))
            object.__setattr__(self, "stages", tuple(self.stages))
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
        values = {name: getattr(self, name) for name in (*_SCALARS, *_ARRAYS, "stages", *_OF_RECORDS, "filter")}
        return _rebuilt, ({**values, "options": dict(self.options)},)

    def __deepcopy__(self, memo: Any) -> Plan:
        return self

    def _check_numbers(self) -> None:
        count = self.epsilon.size
        for name in _ARRAYS:
            if getattr(self, name).shape != (count,):
                raise SartorError(f"a plan needs one {name} for each of its {count} groups.")
        if not self.stages or not all(isinstance(stage, Stage) for stage in self.stages):
            raise SartorError("this is not a plan: it has no stages.")
        noise = max(stage.noise_multiplier for stage in self.stages) * self.clip
        wrong = {
            f"its steps must add up to {MOST_STEPS:g} at most": not self.steps <= MOST_STEPS,
            "the batch must be positive and finite": not 0 < self.batch < np.inf,
            "the clip must be positive and finite": not (0 < self.clip < np.inf),
            "the noise must be 0 or more and finite": not 0 <= noise < np.inf,
            "a stage names a group that there is not": any(stage.groups.size and stage.groups[-1] >= count for stage in self.stages),
            "every group needs a positive epsilon": not np.all(self.epsilon > 0),
            "every group needs a delta strictly between 0 and 1": not np.all((self.delta > 0) & (self.delta < 1)),
            "every group needs at least one holder": not (count and np.all(self.holders >= 1)),
            "the reserve must lie in [0, 1)": not 0 <= self.reserve < 1,
            "every holder has a record at least": not _is_whole(self.records, int(self.holders.sum()) if count else 1),
            "the records of a holder that enter a step are a whole number of 1 or more": not _is_whole(self.records_per_holder, 1),
            "the gradients of a holder's records are combined by their mean or their sum": self.combine not in COMBINED,
            "a filter is of plans with one stage, without coins of inclusion, and has a row for each group": self.filter is not None
            and not (isinstance(self.filter, Filter) and len(self.filter) == count and self._is_plain),
            "two groups have the same budget": len(set(zip(self.epsilon.tolist(), self.delta.tolist(), strict=True))) < count,
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise SartorError(f"this is not a plan: {sentence}.")

    def __len__(self) -> int:
        return len(self.epsilon)

    @property
    def by_holder(self) -> bool:
        """Whether it was made for holders with several records."""
        return self.records_per_holder is not None or (self.records is not None and self.records > int(self.holders.sum()))

    @property
    def _is_plain(self) -> bool:
        return len(self.stages) == 1 and len(self.stages[0].groups) == len(self) and bool(np.all(self.stages[0].inclusion == 1))

    @property
    def relation(self) -> Relation:
        """Between which data sets the plan's guarantee holds."""
        return ZERO_OUT

    @cached_property
    def steps(self) -> int:
        """Steps of all stages together."""
        return sum(stage.steps for stage in self.stages)

    @cached_property
    def parts(self) -> Parts:
        """The stages as columns: one row for each stage and group in it."""
        return Parts(*(immutable(column, column.dtype.type) for column in Parts.of(self.stages, self.clip)))

    @cached_property
    def _ends(self) -> Counts:
        return np.cumsum([stage.steps for stage in self.stages])

    def stage_at(self, step: int) -> Stage:
        """The stage that a step belongs to."""
        if not 0 <= step < self.steps:
            raise SartorError(f"the plan has the steps 0 to {self.steps - 1}: there is no step {step}.")
        return self.stages[int(np.searchsorted(self._ends, step, side="right"))]

    def noise_at(self, step: int) -> float:
        """Standard deviation of the Gaussian noise that is added to the sum of a step."""
        return self.stage_at(step).noise_multiplier * self.clip

    @property
    def noise_multiplier(self) -> float:
        """The noise of every stage over the clip; refused where stages differ: see `stages`."""
        found = {stage.noise_multiplier for stage in self.stages}
        if len(found) > 1:
            raise SartorError("the noise of this plan differs from stage to stage: ask each of plan.stages, or plan.noise_at(step).")
        return found.pop()

    @property
    def noise(self) -> float:
        """Standard deviation of the Gaussian noise that is added to each sum; refused where stages differ."""
        return self.noise_multiplier * self.clip

    @cached_property
    def protects(self) -> bool:
        """Whether every sum has noise."""
        return all(stage.noise_multiplier > 0 for stage in self.stages)

    @cached_property
    def rate(self) -> Array:
        """Of each group: the highest rate of any stage; 0 for groups that no stage names."""
        out = np.zeros(len(self))
        np.maximum.at(out, self.parts.group, self.parts.rate)
        return immutable(out)

    @cached_property
    def clips(self) -> Array:
        """Of each group: the largest clip of any stage; that of the plan for groups that no stage names."""
        out = np.zeros(len(self))
        np.maximum.at(out, self.parts.group, self.parts.clip)
        return immutable(np.where(out > 0, out, self.clip))

    @cached_property
    def noise_multipliers(self) -> Array:
        """Of each group: the noise over the group's clip, in the stage where it is least; infinite for groups that no stage names."""
        out = np.full(len(self), np.inf)
        np.minimum.at(out, self.parts.group, self.parts.noise_multiplier)
        return immutable(out)

    @cached_property
    def first(self) -> Counts:
        """Of each group: the first step that it takes part in."""
        out = np.full(len(self), self.steps)
        np.minimum.at(out, self.parts.group, self.parts.first)
        return immutable(np.where(self.last > 0, out, 0), np.int64)

    @cached_property
    def last(self) -> Counts:
        """Of each group: the step from which on it takes no part; 0 for groups that no stage names."""
        out = np.zeros(len(self), np.int64)
        np.maximum.at(out, self.parts.group, self.parts.last)
        return immutable(out, np.int64)

    @cached_property
    def expected_uses(self) -> Array:
        """How often a member of each group is expected to be drawn in the whole run."""
        parts = self.parts
        uses = parts.inclusion * parts.rate * (parts.last - parts.first)
        return immutable(np.bincount(parts.group, weights=uses, minlength=len(self)))

    @cached_property
    def spent(self) -> Array:
        """Epsilon that each group has spent at the end, at its delta less the reserve, by the plan's accountant."""
        return immutable(self.spent_after(self.steps))

    def spent_after(self, steps: int, accountant: str | None = None) -> Array:
        """Epsilon that each group has spent after the first `steps` steps, by the plan's accountant or another; 0 where those did not
        touch it."""
        if not 0 <= steps <= self.steps:
            raise SartorError(f"the plan has {self.steps} steps: what is spent after {steps} is not defined.")
        judge, parts, delta = accountant or self.accountant, self.parts, spendable(self.delta, self.reserve)
        taken = parts.taken(steps)
        touched = np.bincount(parts.group[(taken > 0) & (parts.rate > 0) & (parts.inclusion > 0)], minlength=len(self)) > 0
        finite = np.isfinite(self.epsilon)
        out = np.where(touched & ~finite, np.inf, 0.0)
        rows = np.flatnonzero(self._alone & finite[parts.group])
        if len(rows):
            groups = parts.group[rows]
            out[groups] = spend(parts.rate[rows], parts.noise_multiplier[rows], taken[rows], delta[groups], judge)
        composed = touched & finite
        composed[parts.group[self._alone]] = False
        if composed.any():
            out[composed] = self._composed(np.flatnonzero(composed), steps, delta, judge)
        return out

    @cached_property
    def _alone(self) -> NDArray[np.bool_]:
        """Of each part: whether it is all that happens to its group, without a coin before it or a filter."""
        counts = np.bincount(self.parts.group, minlength=len(self))
        return np.asarray((counts[self.parts.group] == 1) & (self.parts.inclusion == 1) & (self.filter is None))

    def _composed(self, groups: NDArray[np.intp], steps: int, delta: Array, judge: str) -> list[float]:
        """What several stages, or coins before them, cost; equal exposures are judged once."""
        wanted = [(self.exposure(int(group), steps), float(delta[group])) for group in groups]
        known: dict[tuple[Exposure, float], float] = {}
        for one, at in dict.fromkeys(wanted):
            if isinstance(one, SampledGaussian):  # which are remembered
                found = spend(one.rate, one.noise_multiplier, one.steps, at, judge)
            else:
                found = spend_on([one], [at], judge)
            known[one, at] = float(found[0])
        return [known[key] for key in wanted]

    @cached_property
    def rests_at(self) -> Counts:
        """Of each group: the step from which on a member whose gradients are of full norm rests; the last, where there is no filter."""
        found = np.full(len(self), self.steps) if self.filter is None else self.filter.rests_at(self.steps)
        return immutable(np.where(np.isfinite(self.epsilon), found, self.steps), np.int64)

    @cached_property
    def capped(self) -> NDArray[np.bool_]:
        """Groups that are drawn at every step and still cannot spend their budget."""
        room = self.spent < (1 - accounting.solve.MOST_WASTE) * spendable(self.epsilon, self.reserve)
        return immutable((self.rate >= 1) & room & np.isfinite(self.epsilon), np.bool_)

    @cached_property
    def _rows(self) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """The parts by group, in the order of the stages, and where each group's begin."""
        order = np.argsort(self.parts.group, kind="stable")
        return order, np.searchsorted(self.parts.group[order], np.arange(len(self) + 1))

    def exposure(self, group: int, steps: int | None = None) -> Exposure:
        """What a member of a group undergoes, in the whole run or in its first `steps` steps."""
        parts, (order, begin) = self.parts, self._rows
        if self.filter is not None:
            mechanism = float(parts.rate[group]), float(parts.noise_multiplier[group])
            return self.filter.exposure(group, *mechanism, self.steps if steps is None else steps, self.relation)
        rows = order[begin[group] : begin[group + 1]]
        first, last = parts.first[rows], parts.last[rows]
        taken = np.clip((self.steps if steps is None else steps) - first, 0, last - first).tolist()
        found: list[Exposure] = []
        for row, count in zip(rows.tolist(), taken, strict=True):
            if count or len(rows) == 1:
                one = SampledGaussian(float(parts.rate[row]), float(parts.noise_multiplier[row]), count, self.relation)
                found.append(one if parts.inclusion[row] == 1 else Included(float(parts.inclusion[row]), one))
        if not found:
            return SampledGaussian(0.0, np.inf, 0, self.relation)
        return found[0] if len(found) == 1 else Composition(tuple(found))

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
        return document.record(self)

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """This plan as a JSON document that shows what it means.

        By default it shows groups of fewer than ten holders only merged, as ranges; with `sensitive` it shows every group, so that it
        can be read back.
        """
        return document.shown(self, sensitive=sensitive)

    @classmethod
    def from_json(cls, found: Mapping[str, Any]) -> Plan:
        """The plan in a JSON document; what it promises is computed and checked again, not believed."""
        return cls(**document.fields(found))

    @cached_property
    def view(self) -> confidential.View:
        """The groups of this plan as they may be shown: the only way from a plan to a table, a document or a page."""
        return confidential.View(self.epsilon, self.delta, self.holders, ~self._shared())

    def _shared(self) -> NDArray[np.bool_]:
        """Groups that are treated as one of fewer than ten holders is; their spend, at any time, could tell what it allows."""
        small, found = confidential.are_few(self.holders), np.zeros(len(self), bool)
        parts = self.parts
        with np.errstate(divide="ignore"):
            place = np.log(parts.noise_multiplier) * 1e6
        for shift in (0.0, 0.5):  # of two grids one at least has figures in one cell that differ by rounding alone
            cell = np.floor(np.where(np.isfinite(place), place, 0.0) + shift)
            keys = list(zip(parts.rate.tolist(), cell.tolist(), parts.inclusion.tolist(), strict=True))
            known = {key for key, is_small in zip(keys, small[parts.group], strict=True) if is_small}
            found[parts.group[np.array([key in known for key in keys], bool)]] = True
        return found

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
        return cls.from_json(document.read(path))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Plan):
            return NotImplemented
        return all(getattr(self, n) == getattr(other, n) for n in (*_SCALARS, *_OF_RECORDS, "options", "stages", "filter")) and all(
            np.array_equal(getattr(self, n), getattr(other, n)) for n in _ARRAYS
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return f"Plan({self.scheme}, {self.accountant}, {self.steps} steps, {table.noise(self)}; {self.view!r})"

    def __str__(self) -> str:
        return str(table.table(self))

    def __rich__(self) -> Any:
        return table.table(self)


def _is_whole(value: Any, least: int) -> bool:
    return value is None or (isinstance(value, int | np.integer) and not isinstance(value, bool) and int(value) >= least)


def _rebuilt(fields: dict[str, Any]) -> Plan:
    """A plan from its fields, checked like any other: copies and pickles come back through here."""
    return Plan(**fields)
