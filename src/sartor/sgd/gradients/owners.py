"""Whose each row of a batch is: the gradients of one holder's rows are added up before they are clipped.

A layer's rule need not form a gradient for each row to know the norm of a holder's sum: rows of one holder are to it what positions of one
example are. So holders with about equally many rows are taken together, as `each` rows for every one of them, the missing ones filled with
rows whose gradient is zero; sizes are few, so that little is filled and little is done one after the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from sartor.sgd.gradients.parts import Formed, Part


@dataclass(frozen=True, eq=False)
class Bucket:
    """Holders that are given `each` rows.

    `holders` are their places among the batch's holders (None: all, in their order), `rows` the rows, holder after holder (None: all, as
    they are), and `missing` says which of these stand for none.
    """

    each: int
    holders: Tensor | None = None
    rows: Tensor | None = None
    missing: Tensor | None = None

    def of(self, values: Tensor) -> Tensor:
        """What these holders have of one value for each holder."""
        return values if self.holders is None else values[self.holders]

    def take(self, values: Tensor) -> Tensor:
        """The rows of these holders; zeros for those that are missing."""
        if self.rows is None:
            return values
        found = values.index_select(0, self.rows)
        if self.missing is not None:
            found[self.missing] = 0
        return found

    def only(self, kept: Tensor, count: int) -> Bucket:
        """The same for some of its holders, by their places in it; `count` is how many it has."""
        rows = torch.arange(count * self.each) if self.rows is None else self.rows
        missing = None if self.missing is None else self.missing.view(-1, self.each)[kept].reshape(-1)
        return Bucket(self.each, kept, rows.view(-1, self.each)[kept].reshape(-1), missing)


class Owners:
    """How many rows each holder of a batch has; the rows of a holder stand together, in the order of the holders.

    >>> Owners(torch.tensor([1, 3, 1])).of_row.tolist()
    [0, 1, 1, 1, 2]
    """

    def __init__(self, counts: Tensor) -> None:
        self.counts = counts
        self.rows = int(counts.sum())

    def __len__(self) -> int:
        """Holders."""
        return len(self.counts)

    @cached_property
    def of_row(self) -> Tensor:
        """The holder of each row."""
        return torch.arange(len(self.counts)).repeat_interleave(self.counts)

    @cached_property
    def buckets(self) -> tuple[Bucket, ...]:
        """All holders, in buckets of equal size."""
        distinct = self.counts.unique().tolist()
        if len(distinct) == 1:
            return (Bucket(int(distinct[0])),)
        begins = self.counts.cumsum(0) - self.counts
        sizes = torch.tensor([_rounded(int(count)) for count in distinct])
        size = sizes[torch.searchsorted(torch.tensor(distinct), self.counts)]
        return tuple(self._bucket(begins, size, int(each)) for each in sizes.unique().tolist())

    def _bucket(self, begins: Tensor, size: Tensor, each: int) -> Bucket:
        holders = (size == each).nonzero()[:, 0]
        place = torch.arange(each).expand(len(holders), each)
        missing = place >= self.counts[holders, None]
        rows = (begins[holders, None] + place).masked_fill(missing, 0)
        return Bucket(each, holders, rows.reshape(-1), missing.reshape(-1) if bool(missing.any()) else None)

    def summed(self, part: Part) -> Formed:
        """Gradients that were formed for each row, added up for each holder."""
        assert isinstance(part, Formed)
        gradients = part.gradients
        return Formed(gradients.new_zeros((len(self), *gradients.shape[1:])).index_add_(0, self.of_row, gradients))


def _rounded(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on: few sizes, and at most half as much again."""
    power = 1 << (count - 1).bit_length()
    return 3 * power // 4 if power >= 4 and count <= 3 * power // 4 else power


@dataclass(eq=False)
class Bucketed:
    """Gradients of holders, bucket by bucket."""

    parts: Sequence[tuple[Bucket, Part]]
    holders: int

    @cached_property
    def squared_norms(self) -> Tensor:
        """One squared norm per holder."""
        found = torch.zeros(self.holders, dtype=torch.float64)
        for bucket, part in self.parts:
            if bucket.holders is None:
                return part.squared_norms
            found[bucket.holders] = part.squared_norms
        return found

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over holders of factor times gradient."""
        return torch.stack([part.weighted(bucket.of(factors)) for bucket, part in self.parts]).sum(0)
