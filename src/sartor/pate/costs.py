"""How the costs of many votes add up to an epsilon, and how much a budget allows.

Under the bound that looks at the noise alone every vote is a Gaussian mechanism, and the squares of their ratios (sensitivity over noise)
add up: that sum is the *cost*. A budget is an allowance of cost, fixed before the first vote, so that a voting which stops by its own
earlier answers keeps it: a Gaussian composition whose total ratio stays below mu whatever happens is mu-GDP (Koskela, Tobaben and Honkela
2023), and in Rényi terms every order is bounded by the same number, so none is chosen afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import gaussian, rdp
from sartor.accounting.rdp import Conversion
from sartor.errors import SartorError
from sartor.pate.bounds import PAPER_ORDERS

Array = NDArray[np.float64]

_SEARCH = 200  # halvings: to the last digit


@dataclass(frozen=True, eq=False)
class Accountant:
    """Exact for Gaussian mechanisms where `orders` is None; else by Rényi divergences at these orders and this conversion.

    >>> exact, paper = Accountant(), Accountant.paper()
    >>> bool(exact.allowance([1.0], [1e-5])[0] > paper.allowance([1.0], [1e-5])[0])
    True
    """

    orders: Array | None = None
    conversion: Conversion = "balle"

    def __post_init__(self) -> None:
        if self.orders is not None and (not len(self.orders) or not np.all(np.asarray(self.orders) > 1)):
            raise SartorError("Rényi orders must be above 1, and there must be one.")

        if self.conversion not in ("balle", "mironov"):
            raise SartorError(f'a conversion is "balle" or "mironov", not "{self.conversion}".')

    @classmethod
    def paper(cls) -> Accountant:
        """Orders 2 to 50 and Mironov's conversion."""
        return cls(PAPER_ORDERS, "mironov")

    @classmethod
    def fine(cls) -> Accountant:
        """Many more orders, and the tighter conversion."""
        return cls(rdp.ORDERS, "balle")

    def epsilon(self, cost: ArrayLike, delta: ArrayLike) -> Array:
        """The epsilon of this much cost at delta."""
        squares, deltas = np.broadcast_arrays(np.asarray(cost, float), np.asarray(delta, float))
        if self.orders is not None:
            spent = rdp.to_epsilon(squares[..., None] / 2 * self.orders, self.orders, deltas, self.conversion)
            return np.where(squares > 0, spent, 0.0)
        return gaussian.epsilon_of(np.sqrt(squares), deltas)

    def allowance(self, epsilon: ArrayLike, delta: ArrayLike) -> Array:
        """The largest cost whose epsilon stays within a budget, from below."""
        eps, own = np.broadcast_arrays(np.asarray(epsilon, float), np.asarray(delta, float))
        low, high = np.zeros(eps.shape), np.full(eps.shape, 1.0)
        while np.any(inside := self._within(high, eps, own)):
            high = np.where(inside, 2 * high, high)
        for _ in range(_SEARCH):
            middle = (low + high) / 2
            inside = self._within(middle, eps, own)
            low, high = np.where(inside, middle, low), np.where(inside, high, middle)
        return np.asarray(low * (1 - 1e-12))  # so that rounding in a spend read back never shows above the budget

    def _within(self, cost: Array, epsilon: Array, delta: Array) -> NDArray[np.bool_]:
        if self.orders is not None:
            return np.asarray(self.epsilon(cost, delta) <= epsilon)
        return np.asarray(gaussian.delta_of(np.sqrt(cost), epsilon) <= delta)


def payable(each: Array, spent: Array, allowance: Array, most: int) -> NDArray[np.int64]:
    """For each row how many times it can pay the same price after what it has spent, up to `most`; whose price is nothing always can.

    >>> payable(np.array([0.1, 0.0]), np.array([0.5, 0.5]), np.array([1.0, 0.1]), most=100).tolist()
    [5, 100]
    """
    left = np.divide(allowance - spent, each, out=np.full(np.shape(each), np.inf), where=each > 0)
    found: NDArray[np.int64] = np.clip(np.floor(left), 0, most).astype(np.int64)
    while np.any(over := (found > 0) & (each > 0) & (spent + found * each > allowance)):
        found -= over
    return found
