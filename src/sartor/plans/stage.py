"""A stage: steps of a run in which rates, clips and noise stay as they are. A plan is a sequence of stages.

Most schemes have one stage for everybody; `sequential` has one for each group, and schemes of rounds one for each round, with noise of its
own and a coin that decides who takes part.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.errors import SartorError
from sartor.exposure import MOST_STEPS
from sartor.immutable import immutable

Array = NDArray[np.float64]
Counts = NDArray[np.int64]


@dataclass(frozen=True, eq=False, init=False, repr=False)
class Stage:
    """`steps` steps with noise of `noise_multiplier` times the plan's clip.

    `rate`, `clips` and `inclusion` have one entry for each of `groups` (ascending places in the plan; all of them, if not given). Before
    the first step each member's own secret coin decides, with the probability of their group's `inclusion`, whether they take part in the
    stage; those who do are drawn at each step at their group's rate. Groups that are not named have no part in the stage.

    >>> Stage(100, 1.1, rate=[0.01, 0.02], clips=[1.0, 1.0])
    Stage(100 steps, noise multiplier 1.1, 2 groups)
    """

    steps: int
    noise_multiplier: float
    rate: Array
    clips: Array
    groups: Counts
    inclusion: Array

    def __init__(
        self,
        steps: int,
        noise_multiplier: float,
        rate: ArrayLike,
        clips: ArrayLike,
        groups: ArrayLike | None = None,
        inclusion: ArrayLike = 1.0,
    ) -> None:
        try:
            rates = immutable(np.atleast_1d(_numbers(rate)))
            places = np.arange(len(rates)) if groups is None else np.atleast_1d(_numbers(groups))
            if np.any(places != np.round(places)):
                raise ValueError
            values = {
                "steps": int(steps) if float(steps).is_integer() else 0,
                "noise_multiplier": float(noise_multiplier),
                "rate": rates,
                "clips": immutable(np.broadcast_to(_numbers(clips), rates.shape)),
                "groups": immutable(places, np.int64),
                "inclusion": immutable(np.broadcast_to(_numbers(inclusion), rates.shape)),
            }
        except (TypeError, ValueError, OverflowError):
            raise SartorError("this is not a stage of a plan: a number is missing or of the wrong type.") from None
        for name, value in values.items():
            object.__setattr__(self, name, value)
        self._check()

    def _check(self) -> None:
        wrong = {
            f"steps must be a whole number from 1 to {MOST_STEPS:g}": not 1 <= self.steps <= MOST_STEPS,
            "the noise must be 0 or more and finite": not 0 <= self.noise_multiplier < np.inf,
            "a rate, a clip and a probability are needed for each of its groups": self.groups.shape != self.rate.shape
            or self.rate.ndim != 1,
            "its groups must be named once, in ascending order": not (np.all(self.groups >= 0) and np.all(np.diff(self.groups) > 0)),
            "rates must lie in [0, 1]": not np.all((self.rate >= 0) & (self.rate <= 1)),
            "clips must be positive and finite": not np.all((self.clips > 0) & np.isfinite(self.clips)),
            "probabilities of inclusion must lie in [0, 1]": not np.all((self.inclusion >= 0) & (self.inclusion <= 1)),
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise SartorError(f"this is not a stage of a plan: {sentence}.")

    def __reduce__(self) -> tuple[Any, ...]:
        return Stage, (self.steps, self.noise_multiplier, self.rate, self.clips, self.groups, self.inclusion)

    def __deepcopy__(self, memo: Any) -> Stage:
        return self

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Stage):
            return NotImplemented
        return (self.steps, self.noise_multiplier) == (other.steps, other.noise_multiplier) and all(
            np.array_equal(getattr(self, name), getattr(other, name)) for name in ("rate", "clips", "groups", "inclusion")
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        groups = "1 group" if len(self.groups) == 1 else f"{len(self.groups)} groups"
        return f"Stage({self.steps} steps, noise multiplier {self.noise_multiplier:.5g}, {groups})"


def _numbers(values: ArrayLike) -> Array:
    """Numbers as an array; texts and truth values are none."""
    found = np.asarray(values)
    if found.size and found.dtype.kind not in "iuf":
        raise TypeError
    return found.astype(float)


class Parts(NamedTuple):
    """All that happens to groups in a run, as columns: one row for each stage and group in it, in the order of the stages."""

    stage: Counts
    group: Counts
    first: Counts  # step
    last: Counts  # step that is no longer part of it
    rate: Array
    clip: Array
    inclusion: Array
    noise_multiplier: Array  # noise over the group's clip

    @classmethod
    def of(cls, stages: tuple[Stage, ...], clip: float) -> Parts:
        """The rows of these stages, under a plan's clip."""
        sizes = [len(stage.groups) for stage in stages]
        ends = np.cumsum([stage.steps for stage in stages])
        clips = np.concatenate([stage.clips for stage in stages])
        noise = np.repeat([stage.noise_multiplier * clip for stage in stages], sizes)
        return cls(
            stage=np.repeat(np.arange(len(stages)), sizes),
            group=np.concatenate([stage.groups for stage in stages]),
            first=np.repeat(ends - [stage.steps for stage in stages], sizes),
            last=np.repeat(ends, sizes),
            rate=np.concatenate([stage.rate for stage in stages]),
            clip=clips,
            inclusion=np.concatenate([stage.inclusion for stage in stages]),
            noise_multiplier=noise / clips,
        )

    def taken(self, steps: int) -> Counts:
        """How many of the first `steps` steps each row has."""
        return np.clip(steps - self.first, 0, self.last - self.first)
