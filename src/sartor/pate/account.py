"""What votings over an ensemble have spent: for each group, by the noise alone or by the votes themselves.

The costs of many votes add up to an epsilon, and a budget allows so much: under the bound that looks at the noise alone every vote is a
Gaussian mechanism, and the squares of their ratios (sensitivity over noise) add up: that sum is the *cost*. A budget is an allowance of
cost, fixed before the first vote, so that a voting which stops by its own earlier answers keeps it: a Gaussian composition whose total
ratio stays below mu whatever happens is mu-GDP (Koskela, Tobaben and Honkela 2023), and in Rényi terms every order is bounded by the same
number, so none is chosen afterwards.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import gaussian, rdp
from sartor.accounting.rdp import Conversion
from sartor.confidential import to_json
from sartor.errors import SartorError
from sartor.exposure import Composition, SampledGaussian
from sartor.pate.bounds import PAPER_ORDERS
from sartor.pate.plan import PatePlan
from sartor.pate.rows import rows_of, sensitivities
from sartor.relation import Relation

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


Counts = NDArray[np.int64]
Bound = Literal["independent", "dependent"]


@dataclass(frozen=True, eq=False)
class PateAccount:
    """What each group has spent. Under the data-dependent bound it is sensitive.

    Arrays have one entry for each row (`rows`): `cost` as it adds up, `asked` the queries that its people took part in, `answered`
    those of them that got an answer.
    """

    plan: PatePlan
    accountant: Accountant
    bound: Bound
    cost: Array = field(repr=False)
    asked: Counts = field(repr=False)
    answered: Counts = field(repr=False)
    divergence: Array | None = field(default=None, repr=False)
    queries: int = 0
    seeded: bool = False

    @property
    def relation(self) -> Relation:
        """That of the plan."""
        return self.plan.relation

    @property
    def private(self) -> bool:
        """Whether it protects anyone: by a bound that tells nothing of the votes, and by noise that cannot be repeated."""
        return not self.seeded and not self.sensitive

    @property
    def sensitive(self) -> bool:
        """Whether this account says something about the private votes."""
        return self.bound == "dependent"

    @property
    def spent(self) -> Array:
        """Epsilon that each group has spent at its delta: that of its worst teacher."""
        delta = self.plan.spendable[1]
        if self.divergence is None:
            return self.accountant.epsilon(np.array([self.cost[rows].max() for rows in rows_of(self.plan)]), delta)
        return np.array([self._by_votes(self.divergence[rows], float(own)) for rows, own in zip(rows_of(self.plan), delta, strict=True)])

    def _by_votes(self, divergence: Array, delta: float) -> float:
        assert self.accountant.orders is not None
        spent = rdp.to_epsilon(divergence, self.accountant.orders, delta, self.accountant.conversion)
        return float(np.where(np.any(divergence > 0, axis=-1), spent, 0.0).max())

    def __add__(self, other: PateAccount) -> PateAccount:
        """Both votings together: by the votes, and so sensitive, if either was."""
        if self.plan != other.plan:
            raise SartorError("accounts of two plans do not add up to one: whose teachers count how much differs.")
        by_votes = next((account.accountant for account in (other, self) if account.sensitive), None)
        divergence = None if by_votes is None else self.divergence_at(by_votes) + other.divergence_at(by_votes)
        return PateAccount(
            self.plan,
            by_votes or other.accountant,
            "independent" if by_votes is None else "dependent",
            self.cost + other.cost,
            self.asked + other.asked,
            self.answered + other.answered,
            divergence,
            self.queries + other.queries,
            self.seeded or other.seeded,
        )

    def divergence_at(self, accountant: Accountant) -> Array:
        """Rényi divergences at another accountant's orders: by the votes where this was accounted so, else by the noise."""
        assert accountant.orders is not None
        if self.divergence is None:
            return np.asarray(self.cost[:, None] / 2 * accountant.orders)
        if self.accountant.orders is None or not np.array_equal(self.accountant.orders, accountant.orders):
            raise SartorError("an earlier voting was accounted at other orders: use the same.")
        return self.divergence

    def exposure(self, group: int) -> Composition:
        """What a member of a group underwent in the queries so far: a Gaussian for each noisy test, and one for each answer.

        Of the rows of a group it is the one that cost most. `exposure(group).to_dp_event()` is for dp_accounting.

        Guarantee: composed, these bound what everything released by the voting tells of a member, under removing or replacing them.
        Proof: `bounds`: a test moves one count by the sensitivity, an answer two, so their ratios are s / noise and sqrt(2) s / noise.
        Breaks if: it is taken for a limit that was fixed beforehand: how many were answered followed from earlier answers.
        """
        if self.sensitive:
            raise SartorError("by the data-dependent bound costs follow the private votes and are no exposure: use bound='independent'.")
        rows, kind = rows_of(self.plan)[group], self.plan.aggregator
        row = rows.start + int(np.argmax(self.cost[rows]))
        votes = float(sensitivities(self.plan)[row])
        return Composition(
            (
                SampledGaussian(1.0, kind.test_noise / votes, int(self.asked[row]), self.plan.relation),
                SampledGaussian(1.0, kind.noise / (np.sqrt(2.0) * votes), int(self.answered[row]), self.plan.relation),
            )
        )

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document; groups of fewer than ten holders are merged, and show the most that they allow as spend.

        Where some are, the other groups show their sensitivity with one digit and their spend as a range. It counts holders, and in all,
        where the plan knows it, records; how many one holder, group or teacher has is not shown.
        """
        plan, view, spent = self.plan, self.plan.view, self.spent
        groups = [
            {
                "epsilon": to_json(view.value(plan.epsilon, row)),
                "delta": to_json(view.value(plan.delta, row)),
                "holders": view.people(row),
                "sensitivity": to_json(view.value(view.coarse(plan.sensitivity), row)),
                "spent": to_json(view.spent(spent, row)),
            }
            for row in view.rows()
        ]
        return {
            "bound": self.bound,
            "sensitive": self.sensitive,
            "private": self.private,
            "relation": plan.relation.name,
            **plan.counted,
            "groups": groups,
        }

    def __repr__(self) -> str:
        return f"PateAccount({self.bound}{', sensitive' if self.sensitive else ''}, {self.queries:,} queries)"
