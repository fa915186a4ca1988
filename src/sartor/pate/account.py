"""What votings over an ensemble have spent: for each group, by the noise alone or by the votes themselves."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import rdp
from sartor.confidential import to_json
from sartor.errors import SartorError
from sartor.pate.costs import Accountant
from sartor.pate.plan import PatePlan
from sartor.pate.rows import rows_of

Array = NDArray[np.float64]
Bound = Literal["independent", "dependent"]


@dataclass(frozen=True, eq=False)
class PateAccount:
    """What each group has spent. Under the data-dependent bound it is sensitive."""

    plan: PatePlan
    accountant: Accountant
    bound: Bound
    cost: Array = field(repr=False)
    divergence: Array | None = field(default=None, repr=False)
    queries: int = 0
    seeded: bool = False

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
        by_votes = next((account.accountant for account in (other, self) if account.sensitive), None)
        divergence = None if by_votes is None else self.divergence_at(by_votes) + other.divergence_at(by_votes)
        return PateAccount(
            self.plan,
            by_votes or other.accountant,
            "independent" if by_votes is None else "dependent",
            self.cost + other.cost,
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

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document; groups of fewer than ten holders are merged, and show the most that they allow as spend.

        Where some are, the other groups show their sensitivity with one digit and their spend as a range.
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
        return {"bound": self.bound, "sensitive": self.sensitive, "private": not self.seeded and not self.sensitive, "groups": groups}

    def __repr__(self) -> str:
        return f"PateAccount({self.bound}{', sensitive' if self.sensitive else ''}, {self.queries:,} queries)"
