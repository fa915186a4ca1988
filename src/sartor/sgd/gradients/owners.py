"""Whose each row of a batch is: the gradients of one holder's rows are added up before they are clipped.

A layer's rule need not form a gradient for each row to know the norm of a holder's sum: rows of one holder are to it what positions of one
example are. Where they must stand beside each other for that, holders with about equally many rows are taken together, as `each` rows for
every one of them, the missing ones filled with zeros; sizes are few, so that little is filled and little is done one after the other.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Bucket:
    """Holders that are given `each` rows: `holders` are their places among the batch's holders, `rows` the rows, holder after holder (None:
    all, as they are), and `missing` says which of these stand for none."""

    each: int
    holders: Tensor
    rows: Tensor | None = None
    missing: Tensor | None = None

    def take(self, values: Tensor) -> Tensor:
        """What these holders have of one value for each row and position: (holders, rows x positions, width)."""
        if self.rows is not None:
            values = values.index_select(0, self.rows)
            if self.missing is not None:
                values[self.missing] = 0
        return values.reshape(len(self.holders), -1, values.shape[-1])


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
            return (Bucket(int(distinct[0]), torch.arange(len(self))),)
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

    def summed(self, gradients: Tensor) -> Tensor:
        """Gradients of each row, added up for each holder."""
        return gradients.new_zeros((len(self), *gradients.shape[1:])).index_add_(0, self.of_row, gradients)

    def only(self, holders: Tensor) -> tuple[Owners, Tensor]:
        """The same for some holders, and the rows that are theirs."""
        kept = torch.zeros(len(self), dtype=torch.bool)
        kept[holders] = True
        return Owners(self.counts[holders]), kept[self.of_row].nonzero()[:, 0]


def rows_of(owners: Owners | None, holders: Tensor, factors: Tensor) -> tuple[Tensor, Tensor]:
    """The rows of some holders, and for each the factor of its holder; without owners every row is another holder's."""
    if owners is None:
        return holders, factors
    some, rows = owners.only(holders)
    return rows, factors[some.of_row]


def _rounded(count: int) -> int:
    """The next of 1, 2, 3, 4, 6, 8, 12, 16, 24 and so on: few sizes, and at most half as much again."""
    power = 1 << (count - 1).bit_length()
    return 3 * power // 4 if power >= 4 and count <= 3 * power // 4 else power
