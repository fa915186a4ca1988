"""What `fit` does besides training: how a run is checked, what is kept of it, and how its steps are carried out.

Nothing here changes what anybody spends.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Any

from torch.utils.data import Dataset

from sartor.errors import SartorError

KINDS = ("estimate", "strict")
"""Of readings."""


@dataclass(frozen=True, eq=False)
class Evaluation:
    """How a model is checked: on `public` records every `every` steps and at the end.

    `public` is a data set that needs no protection; the training data are refused there. `patience` evaluations without a better accuracy
    end the run early, never by private data. `sensitive` adds per-group loss and accuracy on the training data, which no guarantee covers.
    """

    public: Dataset[Any] | None = None
    every: int | None = None
    patience: int | None = None
    sensitive: bool = False

    def __post_init__(self) -> None:
        _check_positive(every=self.every, patience=self.patience)
        if self.patience is not None and (self.public is None or self.every is None):
            raise SartorError("stopping early needs public data and a number of steps between evaluations (public=, every=).")

    def is_due(self, step: int) -> bool:
        """Whether the model is evaluated after this step, though it is not the last."""
        return self.public is not None and self.every is not None and step % self.every == 0


@dataclass(frozen=True)
class Checkpoints:
    """Where a run is charged ahead and kept, to go on after a stop.

    Before a block of steps is drawn, `folder` says on the disk that everybody has paid for it, beside the model that it goes on from. A
    crash costs the rest of a block. Blocks take about `seconds`, or have `every` steps; the first after any start has 10 at most.
    `resume` takes up the run in the folder, and gives the end again of one that is over. A run may be taken up `restarts` times after it
    did not end in order: a crash that follows from people's records tells about one bit.

    >>> Checkpoints("run/checkpoint", seconds=60, resume=True).restarts
    20
    """

    folder: str | os.PathLike[str]
    seconds: float = 30.0
    every: int | None = None
    resume: bool = False
    restarts: int = 20

    def __post_init__(self) -> None:
        if not isinstance(self.folder, str | os.PathLike) or not os.fspath(self.folder):
            raise SartorError(f"checkpoints go into a folder, not {self.folder!r}: give its path.")
        _check_positive(every=self.every)
        if not isinstance(self.seconds, Real) or not 0 < self.seconds < math.inf:
            raise SartorError(f"seconds must be a number above 0 and finite, not {self.seconds!r}.")
        if not isinstance(self.restarts, Integral) or isinstance(self.restarts, bool) or self.restarts < 0:
            raise SartorError(f"restarts must be a whole number of 0 or more, not {self.restarts!r}.")


@dataclass(frozen=True)
class Tracking:
    """Readings: what each holder's gradients really cost, from norms that are tracked every `refresh` steps.

    "estimate" leaves the clips as planned and rounds norms to the nearest level; "strict" clips each holder at their tracked norm, rounded
    up, so the reading is true of the run. Neither is a guarantee: that is the plan's. A plan with a filter tracks norms by itself.

    >>> Tracking("strict", refresh=117)
    Tracking(kind='strict', refresh=117)
    """

    kind: str
    refresh: int

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise SartorError(f'a reading is "estimate" or "strict", not "{self.kind}"; filters are part of a plan (sartor.plan, filter=).')
        if not isinstance(self.refresh, Integral) or isinstance(self.refresh, bool) or self.refresh < 1:
            raise SartorError(f"refresh must be a whole number of steps, 1 or more, not {self.refresh!r}.")


@dataclass(frozen=True)
class Execution:
    """How steps are carried out: `workers` load records, and batches are cut to `max_physical_batch` examples ("auto" finds what fits).

    `noise_draws` of 4, say, sums as many draws into every noise, which defends against attacks on its low bits.
    """

    workers: int = 0
    max_physical_batch: int | str | None = None
    noise_draws: int = 1

    def __post_init__(self) -> None:
        size = self.max_physical_batch
        if size is not None and size != "auto" and (not isinstance(size, int) or isinstance(size, bool) or size < 1):
            raise SartorError(f'the largest physical batch is a whole number of 1 or more, or "auto", not {size!r}.')
        _check_positive(noise_draws=self.noise_draws)
        if self.workers < 0:
            raise SartorError(f"workers must be 0 or more, not {self.workers}.")


def _check_positive(**values: int | None) -> None:
    for name, value in values.items():
        if value is not None and (not isinstance(value, Integral) or isinstance(value, bool) or value < 1):
            raise SartorError(f"{name} must be a whole number of 1 or more, not {value!r}.")
