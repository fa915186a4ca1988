"""What a rule knows of one parameter's per-example gradients: their norms, and their sum at given weights, formed or not.

A part never needs more than this: `squared_norms` first, to find how far each example is scaled down, then `weighted`, the sum of the
gradients times those factors. `Formed` holds the gradients of all examples; `Product` and `Implicit` never form them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol

import torch
from torch import Tensor

BLOCK = 1024
_SLACK = 2.0  # beyond the root of the number of terms, before they count as cancelling
_SHORT = 1e-10  # norms below this, or above its inverse, are not left to float32


class Part(Protocol):
    """Per-example gradients of one parameter."""

    @property
    def squared_norms(self) -> Tensor:
        """One squared norm per example."""
        ...

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over examples of factor times gradient."""
        ...


@dataclass(eq=False)
class Formed:
    """Gradients as one tensor, the examples first; with their norms, where whoever formed them has them at hand."""

    gradients: Tensor
    norms: Tensor | None = None

    @cached_property
    def squared_norms(self) -> Tensor:
        """One squared norm per example."""
        norms: Tensor = lengths(self.gradients) if self.norms is None else self.norms
        return norms.double().square()

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over examples of factor times gradient."""
        flat = self.gradients.reshape(len(self.gradients), -1)
        return (factors @ flat.to(factors.dtype)).reshape(self.gradients.shape[1:])


@dataclass(eq=False)
class Blocks:
    """Gradients formed some examples at a time, left where they were formed, with their norms."""

    gradients: Sequence[Tensor]
    norms: Tensor

    @cached_property
    def squared_norms(self) -> Tensor:
        """One squared norm per example."""
        return self.norms.double().square()

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over examples of factor times gradient."""
        parts = factors.split([len(block) for block in self.gradients])
        found = [part @ block.reshape(len(block), -1).to(factors.dtype) for part, block in zip(parts, self.gradients, strict=True)]
        return torch.stack(found).sum(0).reshape(self.gradients[0].shape[1:])


@dataclass(eq=False)
class Product:
    """Gradients that are outer products of two vectors per example, as those of a linear layer on one vector are."""

    left: Tensor
    right: Tensor

    @cached_property
    def squared_norms(self) -> Tensor:
        """One squared norm per example."""
        return (safe_lengths(self.left) * safe_lengths(self.right)).square()

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over examples of factor times gradient."""
        return (self.left * factors[:, None]).T @ self.right


@dataclass(eq=False)
class Implicit:
    """Gradients known by their norms and by a function that forms their weighted sum.

    Where terms cancel, a sum of them in float32 may be longer than what they add up to, and a clip that is small beside the terms would be
    passed by rounding alone. So those of whom that is to be feared (`apart`) are added up by a function of their own, `weigh_exactly`, from
    their places and factors, in float64.
    """

    squared_norms: Tensor
    weigh: Callable[[Tensor], Tensor]
    apart: Tensor | None = None
    weigh_exactly: Callable[[Tensor, Tensor], Tensor] | None = None

    def weighted(self, factors: Tensor) -> Tensor:
        """The sum over examples of factor times gradient."""
        if self.apart is None or self.weigh_exactly is None or not len(self.apart):
            return self.weigh(factors)
        others = factors.clone()
        others[self.apart] = 0
        return self.weigh(others) + self.weigh_exactly(self.apart, factors[self.apart].double()).to(factors.dtype)


def lengths(rows: Tensor) -> Tensor:
    """The norm of each row, whatever its shape. Long float32 sums lose digits, so they are taken over short pieces first."""
    flat = rows.reshape(len(rows), -1)
    if flat.shape[1] <= BLOCK:
        short: Tensor = torch.linalg.vector_norm(flat, dim=1)
        return short.double()
    return lengths_of_pieces(norms_of_pieces(flat))


def safe_lengths(rows: Tensor) -> Tensor:
    """The same where a row too short for float32 may meet one that is long: squares below 1e-38 come out as 0, above 1e38 as infinity.

    What underflow takes from a squared norm is at most 1e-38 for each number, which is nothing beside a norm above `_SHORT`; other rows are
    taken in float64.
    """
    found = lengths(rows)
    unsure = ~((found > _SHORT) & (found < 1 / _SHORT))
    if unsure.any():
        found[unsure] = torch.linalg.vector_norm(rows[unsure].flatten(1), dim=1, dtype=torch.float64)
    return found


def norms_of_pieces(rows: Tensor, into: Tensor | None = None) -> Tensor:
    """The norms of short pieces of each row, as many columns as `pieces` says."""
    flat = rows.reshape(len(rows), -1)
    whole = flat.shape[1] // BLOCK
    found = flat.new_empty(len(flat), pieces(flat.shape[1])) if into is None else into
    torch.linalg.vector_norm(flat[:, : whole * BLOCK].view(len(flat), whole, BLOCK), dim=2, out=found[:, :whole])
    if whole < found.shape[1]:
        torch.linalg.vector_norm(flat[:, whole * BLOCK :], dim=1, out=found[:, whole])
    return found


def pieces(width: int) -> int:
    """In how many pieces a row of this many numbers is taken."""
    return -(-width // BLOCK)


def lengths_of_pieces(norms: Tensor) -> Tensor:
    """The norms of rows from those of their pieces."""
    return norms.double().square().sum(1).sqrt()


def norms_from_products(left: Tensor, right: Tensor) -> Tensor:
    """Squared norms of the sums over t of left[t] right[t]^T, per example, without forming them ("ghost" norms); and beside each the sum of
    its terms' norms: (examples, 2).

    Both are (examples, positions, width). The terms may cancel, so that products in float32 could come out too small; they are taken in
    float64, and what even those may lose is added.
    """
    left, right = left.double(), right.double()
    products = torch.bmm(left, left.transpose(1, 2)) * torch.bmm(right, right.transpose(1, 2))
    most = (torch.linalg.vector_norm(left, dim=2) * torch.linalg.vector_norm(right, dim=2)).sum(1)
    return torch.stack([products.sum((1, 2)).clamp_min(0) + most.square() * 2.0**-40, most], dim=1)


def cancelling(norms: Tensor, terms: Tensor | int) -> Tensor:
    """The places of those whose terms cancel, from what `norms_from_products` says of them and how many terms each has.

    Terms that have nothing to do with each other add up to a norm that is at least the sum of theirs over the root of their number; only
    where it is less do they pull against each other. Rounding of a sum in float32 is then no longer small beside the sum itself.
    """
    root = torch.as_tensor(terms, dtype=torch.float64).sqrt()
    return (norms[:, 1] > (root + _SLACK) * norms[:, 0].sqrt()).nonzero()[:, 0]
