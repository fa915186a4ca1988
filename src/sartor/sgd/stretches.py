"""Stretches of a run in which norms are tracked: who takes part in a stretch, up to which norm, and what that takes from their units.

Before the first coin of a stretch everybody's norms are looked at, rungs chosen, units taken and the readings charged, drawn or not; then
the state is on the disk, if the run has a place there; then the stretch's batches are drawn.

Guarantee, with a filter: that of the plan (`sartor.accounting.filtered`). Without one no guarantee changes: clips only become smaller.
Breaks if: a rung follows the coins of its stretch. A stretch that began is never chosen anew: whoever resumes finds its rungs. Whoever
    interrupts a choice half-way has taken units from some and not from others, so such a run does not go on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.individual.costs import Costs, Levels
from sartor.individual.ladder import climb, fractions
from sartor.individual.readings import Reading, Readings
from sartor.plans import Plan
from sartor.run.sampling import Draw

if TYPE_CHECKING:
    from torch import Tensor

Array = NDArray[np.float64]

_CLOSE = 1e-4  # of a rung: how other records are looked at with somebody's moves their norm by far less

_UNCERTAIN = "this run was interrupted while a stretch was charged, so what is left is not certain: resume from its checkpoint."


def _levels(plan: Plan) -> Levels:
    """The usual ones; with a filter no further down than its lowest rung and the differences of noise reach: nothing else is looked up."""
    usual = Levels()
    if plan.filter is None:
        return usual
    noise = plan.parts.noise_multiplier[np.isfinite(plan.parts.noise_multiplier) & (plan.parts.noise_multiplier > 0)]
    spread = float(noise.max() / noise.min()) if len(noise) else 1.0
    return Levels(octaves=int(min(usual.octaves, 1 + np.ceil(np.log2(spread / plan.filter.rungs.min())))))


class Stretches:
    """The stretch at hand, for each holder: the fraction of their clip up to which they take part; and the accounts so far.

    A stretch has `refresh` steps, or fewer where a stage of the plan or the run ends.
    """

    def __init__(self, plan: Plan, budgets: Budgets, kind: str, refresh: int, norms: Callable[[int, int], Array]) -> None:
        self.plan, self.kind, self.refresh = plan, kind, refresh
        self._budgets, self._norms, self._costs = budgets, norms, Costs(plan, _levels(plan))
        self._readings = Readings(self._costs, budgets, "estimate" if kind == "estimate" else "strict")
        self._group = self._readings.groups
        self._left = None if plan.filter is None else plan.filter.units[self._group].copy()
        self._fraction = np.ones(len(self._group))
        self._begins = 0
        self.is_halfway = False
        """Whether a choice was interrupted between its parts, so that nobody knows who has how many units left."""

    @property
    def _until(self) -> int:
        """The step that ends the stretch at hand: all up to it are charged."""
        return self._readings.steps

    @property
    def way(self) -> tuple[str, int]:
        """How norms are tracked, and how often."""
        return self.kind, self.refresh

    def unsure(self, norms: Array) -> NDArray[np.bool_]:
        """Whose tracked norm is so close to a rung that rounding could put it on either side."""
        if self.plan.filter is None:
            return np.zeros(len(norms), bool)
        with np.errstate(invalid="ignore"):
            fraction, rungs = norms / self._readings.clips, self.plan.filter.rungs[:, :-1]  # above the highest one nothing is decided
            close = np.abs(fraction[:, None] - rungs[self._group]) <= _CLOSE * rungs[self._group]
            return np.asarray(np.any(close, axis=1))

    def begin(self, step: int) -> int:
        """Make sure that the stretch of a step is chosen and charged; the step that ends it."""
        if self.is_halfway:
            raise SartorError(_UNCERTAIN)
        if step == self._until:
            self._choose(step)
        if not self._begins <= step < self._until:
            raise SartorError(
                "norms are tracked from the first step of a stretch: go on with such a run by loader.checkpoint(folder, resume=True)."
            )
        return self._until

    def _choose(self, step: int) -> None:
        norms, readings = self._norms(len(self._group), step), self._readings
        steps = min(self.refresh, readings.stage_steps)
        clips, left = self._fraction, self._left
        if self.plan.filter is not None:
            assert left is not None
            with np.errstate(invalid="ignore"):
                rung, left = climb(self.plan.filter, self._group, norms / readings.clips, left)
            clips = fractions(self.plan.filter, self._group, rung)
            level = self._costs.levels.up(clips)
        else:
            level = readings.levels(norms)
            if self.kind == "strict":
                clips = self._costs.levels.values[level]
        self.is_halfway = True
        readings.add(level, steps)
        self._fraction, self._left, self._begins = clips, left, step
        self.is_halfway = False

    def within(self, draw: Draw) -> Draw:
        """A draw with the clips of the stretch, without those who rest."""
        if not self._begins <= draw.step < self._until:
            raise SartorError("this draw is of another stretch than the one that was chosen.")
        own = self._fraction[draw.indices]
        there = own > 0
        return Draw(draw.step, draw.indices[there], draw.clips[there] * own[there])

    def reading(self) -> Reading:
        """What each holder's gradients have cost in the stretches begun so far. Sensitive."""
        return self._readings.reading()

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that a run needs to go on, as a document and tensors. Sensitive. Of a stretch that was charged by half there is none."""
        import torch

        if self.is_halfway:
            raise SartorError(_UNCERTAIN)

        arrays = {"fraction": self._fraction, **self._readings.to_arrays()}
        if self._left is not None:
            arrays["left"] = self._left
        tensors = {name: torch.from_numpy(np.ascontiguousarray(value).copy()) for name, value in arrays.items()}
        return {"kind": self.kind, "refresh": self.refresh, "begins": self._begins}, tensors

    def restore(self, document: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> None:
        """Go on from a state."""
        if (document["kind"], document["refresh"]) != self.way:
            raise SartorError("the run that is continued tracked norms in another way.")
        arrays = {name: value.numpy().copy() for name, value in tensors.items()}
        fraction, left = arrays.pop("fraction"), arrays.pop("left", None)
        if (self._left is None) != (left is None) or len(fraction) != len(self._group):
            raise SartorError("the run that is continued tracked other people's norms.")
        self._readings = Readings.from_arrays(self._costs, self._budgets, arrays)
        self._fraction, self._left, self._begins = fraction, left, int(document["begins"])
