"""Readings: what each holder's gradients have cost so far, from their norms.

A plan charges everybody as if every gradient of theirs had the norm of their clip. A reading charges, for every step, drawn or not, the
Rényi divergence of a sampled Gaussian at the norm that the holder's gradient really has, as it was when norms were last looked at
(individual accounting, Yu et al. 2023, algorithm 2).

A reading is not a guarantee. It belongs to the run as it went: definition 4 of that paper fixes the models seen so far, an event of
probability zero, and a realised sum that is minimised over orders afterwards is no differential privacy. The guarantee is the plan's, and
stands beside every reading. Two kinds:

- "estimate": norms are rounded to the nearest level and kept until they are looked at again. It may be too high or too low.
- "strict": norms are rounded up, and whoever trains clips each gradient at its level times the planned clip (`thresholds`) for as long as
  the level is kept (algorithm 3). Then the sum is true of the run; that does not make it a guarantee.

Breaks if: who is charged depends on who was drawn; a reading decides when training ends, or what a ledger is charged; a reading is shown to
    anybody but the holder whom it is of, for it follows from their data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import rdp
from sartor.budgets import Budgets, spendable
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.individual.costs import Costs, Indices

Array = NDArray[np.float64]
Kind = Literal["estimate", "strict"]
KINDS: tuple[Kind, ...] = ("estimate", "strict")

_ARRAYS = ("strict", "steps", "orders", "divergence", "levels", "counts")
_BLOCK = 2048  # holders at once
_PENDING = 16  # charges that are kept before they are added up: an account is then read and written once for all of them


@dataclass(frozen=True, eq=False, repr=False)
class Reading:
    """What each holder's gradients have cost in the first `steps` steps, and the most that they may have. Secret: print or log neither.

    `accounts` are the smaller of the Rényi reading and the plan's own spend, since no norm exceeds the clip; `guarantee` is the plan's
    spend, which alone is differential privacy. Both have one entry for each holder, at the delta of their group less the reserve.
    """

    kind: Kind
    steps: int
    _epsilon: Array = field(repr=False)
    guarantee: Array = field(repr=False)

    def __post_init__(self) -> None:
        for name in ("_epsilon", "guarantee"):
            object.__setattr__(self, name, immutable(getattr(self, name)))

    def accounts(self, *, sensitive: bool) -> Array:
        """What each holder's gradients cost, as it is: of private data, without noise, and covered by no budget, which has to be said."""
        if sensitive is not True:
            raise SartorError(
                "accounts follow from people's records, and no budget covers showing them: say sensitive=True, or release statistics of "
                "them out of the reserve (sartor account RUN --release)."
            )
        return self._epsilon

    def __len__(self) -> int:
        return len(self._epsilon)

    def __repr__(self) -> str:
        return f"Reading({self.kind}, {len(self)} holders, {self.steps} steps; no guarantee)"


class Readings:
    """The accounts of all holders of a run by a plan, as one array of divergences, (holders, orders).

    Guarantee: the divergence of a holder is not below the sum, over the steps so far, of that of their sampled Gaussian at the level given
        for the step. It depends on nothing of the others.
    Proof: `costs`; divergences of steps add up at each order.

    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-5)
    >>> plan = sartor.plan(budgets, "sample", steps=100, batch=50)
    >>> readings = Readings(Costs(plan), budgets, "strict")
    >>> norms = np.linspace(0, 2, 1_000)
    >>> readings.add(readings.levels(norms), steps=10)
    >>> found = readings.reading()
    >>> found
    Reading(strict, 1000 holders, 10 steps; no guarantee)
    >>> bool(np.all(found.accounts(sensitive=True) <= found.guarantee))
    True
    """

    def __init__(self, costs: Costs, budgets: Budgets, kind: Kind) -> None:
        if kind not in KINDS:
            raise SartorError(f'a reading is an "estimate" or "strict", not "{kind}".')
        self.costs, self.kind = costs, kind
        self.groups: Indices = costs.plan.groups_of(budgets)
        self.steps = 0
        self._settled: Array = np.zeros((len(self.groups), len(costs.orders)))
        self._levels: list[NDArray[np.int32]] = []  # of charges that are not settled yet, all of one stage
        self._counts: list[int] = []  # their steps

    def __len__(self) -> int:
        return len(self.groups)

    @property
    def clips(self) -> Array:
        """The planned clip of each holder at the next step; that of the plan for those who have no part in its stage."""
        plan = self.costs.plan
        stage = plan.stages[self._stage(self.steps)]
        clips = np.full(len(plan), plan.clip)
        clips[stage.groups] = stage.clips
        return np.asarray(clips[self.groups])

    @property
    def stage_steps(self) -> int:
        """How many steps the stage of the next step has left: at its end norms must be looked at again, since clips may change."""
        return int(self._ends[self._stage(self.steps)]) - self.steps

    @cached_property
    def _ends(self) -> NDArray[np.int64]:
        return np.cumsum([stage.steps for stage in self.costs.plan.stages])

    def _stage(self, step: int) -> int:
        if step >= self._ends[-1]:
            raise SartorError(f"all {self._ends[-1]} steps of the plan are charged: there is no further one.")
        return int(np.searchsorted(self._ends, step, side="right"))

    def levels(self, norms: ArrayLike) -> Indices:
        """The level of each holder, from the norms of their gradients, rounded as the kind of reading asks."""
        found = np.asarray(norms, float)
        if found.shape != self.groups.shape:
            raise SartorError(f"there must be one norm for each of {len(self)} holders, drawn or not.")
        levels = self.costs.levels
        with np.errstate(invalid="ignore", over="ignore"):
            fractions = found / self.clips
        return levels.up(fractions) if self.kind == "strict" else levels.nearest(fractions)

    def thresholds(self, levels: Indices) -> Array:
        """At what a strict reading has each holder's gradients clipped from the next step on, until there are other levels."""
        return self.costs.levels.values[levels] * self.clips

    def add(self, levels: ArrayLike, steps: int) -> None:
        """Charge everybody, drawn or not, the next `steps` steps at their level; they must be steps of one stage."""
        stage, index = self._stage(self.steps), np.asarray(levels)
        if index.shape != self.groups.shape or index.dtype.kind not in "iu":
            raise SartorError(f"there must be one level for each of {len(self)} holders, drawn or not.")
        if not (index.min() >= 0 and index.max() <= self.costs.levels.nothing):
            raise SartorError(f"levels are places from 0 to {self.costs.levels.nothing}.")
        left = self.stage_steps
        if not 1 <= steps <= left:
            raise SartorError(f"{steps} steps cannot be charged: the stage has {left} left; look at norms again where a stage begins.")
        self._levels.append(index.astype(np.int32))
        self._counts.append(int(steps))
        self.steps += int(steps)
        if len(self._counts) >= _PENDING or steps == left:
            for part in self._blocks():
                self._settled[part] = self._divergence(part, stage)
            self._levels, self._counts = [], []

    def _blocks(self) -> list[slice]:
        return [slice(start, start + _BLOCK) for start in range(0, len(self), _BLOCK)]

    def _divergence(self, part: slice, stage: int) -> Array:
        """The accounts of some holders, with what is not settled yet, which is of that stage."""
        from scipy.sparse import csr_array  # here, so that importing the library stays quick

        settled = self._settled[part]
        if not self._counts:
            return settled
        rows, shares = self.costs.rows(stage, self.groups[part], np.stack([levels[part] for levels in self._levels]))
        places = rows.transpose(2, 1, 0).astype(np.int32)
        weights = (np.array(self._counts)[:, None] * shares).transpose(2, 1, 0)
        ends = np.arange(len(places) + 1, dtype=np.int32) * places[0].size
        sums = csr_array((weights.ravel(), places.ravel(), ends), shape=(len(places), len(self.costs.table))) @ self.costs.table
        return np.asarray(settled + sums)

    def epsilon(self, delta: ArrayLike | None = None) -> Array:
        """The Rényi reading of each holder, at their group's delta less the reserve or at another; infinite for public records in use.

        Every delta gives a valid bound; one above the plan's may miss the best order.
        """
        plan, orders = self.costs.plan, self.costs.orders
        own = spendable(plan.delta, plan.reserve)[self.groups] if delta is None else np.broadcast_to(np.asarray(delta, float), len(self))
        if not np.all((own > 0) & (own < 1)):
            raise SartorError("a delta must lie strictly between 0 and 1.")
        stage = self._stage(self.steps) if self._counts else 0
        out = np.empty(len(self))
        for part in self._blocks():
            divergence = self._divergence(part, stage)
            out[part] = np.where(divergence[:, -1] > 0, rdp.to_epsilon(divergence, orders, own[part]), 0.0)
        out[self.costs.endless(self.steps)[self.groups]] = np.inf
        return out

    def reading(self) -> Reading:
        """What each holder's gradients have cost so far, beside what the plan guarantees after as many steps."""
        guarantee = self.costs.plan.spent_after(self.steps)[self.groups]
        return Reading(self.kind, self.steps, np.minimum(self.epsilon(), guarantee), guarantee)

    def to_arrays(self) -> dict[str, NDArray[Any]]:
        """The accounts as arrays, for a checkpoint that its owner alone can read; charges that are not settled yet stay so."""
        return {
            "strict": np.array([self.kind == "strict"]),
            "steps": np.array([self.steps]),
            "orders": np.array(self.costs.orders),
            "divergence": self._settled.copy(),
            "levels": np.array(self._levels, np.int32).reshape(-1, len(self)),
            "counts": np.array(self._counts, np.int64),
        }

    @classmethod
    def from_arrays(cls, costs: Costs, budgets: Budgets, arrays: Mapping[str, NDArray[Any]]) -> Readings:
        """Accounts as they were stored, to the last bit; what is not of this plan and its holders is refused where that can be seen."""
        try:
            strict, steps, orders, settled, levels, counts = (np.asarray(arrays[name]) for name in _ARRAYS)
        except KeyError as missing:
            raise SartorError(f"these are not the accounts of a reading: {missing} is missing.") from None
        found = cls(costs, budgets, "strict" if strict.any() else "estimate")
        done, pending = int(steps.sum()), int(counts.sum())
        fits = (
            np.array_equal(orders, costs.orders)
            and settled.shape == found._settled.shape
            and settled.dtype == np.float64
            and bool(np.all(settled >= 0))
            and levels.shape == (len(counts), len(found))
            and bool(np.all((levels >= 0) & (levels <= costs.levels.nothing)))
            and bool(np.all(counts >= 1))
            and 0 <= done - pending <= done <= costs.plan.steps
            and (not pending or (done < costs.plan.steps and found._stage(done) == found._stage(done - pending)))
        )
        if not fits:
            raise SartorError("these are not accounts of this plan and its holders, as far as orders, steps and levels tell.")
        found._settled[:], found.steps = settled, done
        found._levels, found._counts = list(levels.astype(np.int32)), [int(count) for count in counts]
        return found

    def __repr__(self) -> str:
        return f"Readings({self.kind}, {len(self)} holders, {self.steps} of {self.costs.plan.steps} steps)"
