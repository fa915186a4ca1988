"""Draws as pieces that fit into memory: the records of whole holders, and a holder with more records than fit in several pieces.

Batches are counted in holders, memory in records. A holder is cut only if their records alone are more than a piece may have; their
gradient is then added up over pieces, and clipped when it is whole.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import Witness
from sartor.sgd.gradients import Owners
from sartor.sgd.stretches import Stretches

Places = NDArray[np.int64]

_LEAST = 1e-15  # squares of gradients much shorter than this are lost in float32, so they would pass unclipped


@dataclass(frozen=True, eq=False)
class Piece:
    """A batch, or as much of it as fits into memory: which records it holds, whose they are, and each holder's clip. Secret.

    Without `owners` every record is another holder's. `shares` is what the sum of each holder's gradients is multiplied by. A piece whose
    one holder does not `end` goes on in the next, which does not `begin` it. `pieces` is how many the step has.
    """

    step: int
    number: int
    indices: Sequence[int] = field(repr=False)
    clips: Tensor = field(repr=False)
    last: bool
    owners: Owners | None = field(default=None, repr=False)
    shares: Tensor | None = field(default=None, repr=False)
    begins: bool = True
    ends: bool = True
    pieces: int = 1

    @property
    def rows(self) -> int:
        """Records."""
        return len(self.indices)


@dataclass(frozen=True, eq=False, repr=False)
class Draws:
    """From a step to its pieces, of at most `size` records each; where norms are tracked, the stretch has its own clips."""

    plan: Plan
    sampler: PoissonSampler
    stream: Stream
    ownership: Ownership | None
    size: int | None
    stretches: Stretches | None = None
    witness: Witness | None = None
    """Who looked on when the run was made, in whatever thread it is run."""

    def __post_init__(self) -> None:
        if self.plan.parts.clip.min() < _LEAST:
            raise SartorError(f"gradients cannot be clipped at less than {_LEAST:g}: give a larger clip, and a smaller learning rate.")

    def pieces(self, step: int) -> Iterator[Piece]:
        """The pieces of a step; the same ones whenever it is asked under one key. An empty draw is one record with clip 0."""
        draw = self.sampler.draw(step)
        if self.stretches is not None:
            draw = self.stretches.within(draw)
        if self.witness is not None:
            draw = self.witness.drawn(draw)
        if not len(draw):
            yield Piece(step, 0, [0], torch.zeros(1), True)
            return
        yield from self._cut(step, *self._records(step, draw.indices), torch.tensor(draw.clips, dtype=torch.float32), self.size)

    def of_holders(self, holders: Places, size: int) -> Iterator[Piece]:
        """The records of holders, drawn or not, for whoever looks at everybody: always the same ones, where not all enter a step."""
        found = (holders, np.ones(len(holders), np.int64))
        if self.ownership is not None:
            found = self.ownership.records_of(holders, self.plan.records_per_holder)
        yield from self._cut(0, *found, torch.ones(len(holders)), size)

    def _cut(self, step: int, records: Places, counts: Places, clips: Tensor, size: int | None) -> Iterator[Piece]:
        """Holders' records, so many of each, as pieces of at most `size`."""
        ends = np.cumsum(counts)
        cuts = list(_cuts(ends, size or len(records)))
        for number, (first, until, begin, end) in enumerate(cuts):
            own = counts[first:until]
            several = bool(np.any(own > 1))
            mean = several and self.plan.combine == "mean"
            yield Piece(
                step,
                number,
                records[begin:end].tolist(),
                clips[first:until],
                number == len(cuts) - 1,
                Owners(torch.tensor(own if until - first > 1 else [end - begin])) if several else None,
                1.0 / torch.tensor(own, dtype=torch.float64) if mean else None,
                begins=begin == ends[first] - counts[first],
                ends=end == ends[until - 1],
                pieces=len(cuts),
            )

    def _records(self, step: int, holders: Places) -> tuple[Places, Places]:
        """The records that the drawn holders lend to a step, and how many of each."""
        if self.ownership is None:
            return holders, np.ones(len(holders), np.int64)
        most = self.plan.records_per_holder
        secret = 0 if most is None else int(self.stream.generator("records", step).integers(2**64, dtype=np.uint64))
        return self.ownership.records_of(holders, most, secret)


def _cuts(ends: Places, size: int) -> Iterator[tuple[int, int, int, int]]:
    """Holders `first` up to `until`, and their records from `begin` up to `end`, in pieces of at most `size` records."""
    first, begin = 0, 0
    while first < len(ends):
        until = int(np.searchsorted(ends, begin + size, side="right"))
        if until > first:
            yield first, until, begin, int(ends[until - 1])
        else:
            until, end = first + 1, int(ends[first])
            for start in range(begin, end, size):
                yield first, until, start, min(start + size, end)
        first, begin = until, int(ends[until - 1])
