"""What one holder may be told about themselves: what they are guaranteed, and what their data really cost.

Guarantee: to hand a holder their statement costs nobody else anything.
Proof: it follows from the released models, the holder's own records and their own budget; for everybody else that is post-processing of
    what the plan accounts for. What the plan spent is not in it: under uniform treatment that is what the strictest allow.
Breaks if: somebody else sees it, for the reading follows from the holder's records; readings were made of other holders' records.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from sartor.budgets import Budgets, is_public, spendable
from sartor.errors import SartorError
from sartor.numbers import to_json_number
from sartor.plans import Plan
from sartor.relation import Relation

_EX_POST = (
    "This is a reading and not a guarantee: it was taken afterwards, from your own records, and is of the models that this run happened to "
    "release. Other models might have cost you more, up to your guarantee. Keep it to yourself: it follows from your data."
)
_ESTIMATE = "It may be too low, as your gradients were not held to the norms that it was computed from."


@dataclass(frozen=True, repr=False)
class Statement:
    """For one holder alone. `reading` is the epsilon that their gradients really cost, at `reading_delta`; NaN if it could not be read.

    `kind` is that of the reading: an "estimate" may be too low, a "strict" one is true of the run.
    """

    epsilon: float
    delta: float
    reading: float
    reading_delta: float
    relation: Relation
    private: bool = True
    holder: str | None = None
    kind: str = "strict"

    @property
    def guarantee(self) -> str:
        """What the holder is promised, in words."""
        if not self.private:
            return "This run was made with a seed, for a test, or without noise: it guarantees nothing."
        if is_public(self.epsilon):
            return "You gave your data as public: nothing about them is guaranteed."
        times = f"e^{self.epsilon:g}" + (f" = {math.exp(self.epsilon):.3g}" if self.epsilon < 20 else "")
        return (
            f"You are guaranteed epsilon {self.epsilon:g} at delta {self.delta:g}, for all that is ever released from this run: whatever "
            f"anybody concludes from it is at most {times} times as likely as if you had given nothing, or the other way round, but for a "
            f"probability of {self.delta:g}. It is a guarantee for one holder ({self.relation})."
        )

    @property
    def cost(self) -> str:
        """What the holder's data really cost, in words."""
        if math.isnan(self.reading):
            return "What your data really cost could not be read."
        if self.kind == "estimate":
            return f"An estimate of what your data cost: epsilon {self.reading:.4g} at delta {self.reading_delta:g}. {_ESTIMATE} {_EX_POST}"
        return f"What your data really cost: epsilon {self.reading:.4g} at delta {self.reading_delta:g}. {_EX_POST}"

    def to_json(self) -> dict[str, Any]:
        """This statement as a JSON document, for the holder alone."""
        unread = math.isnan(self.reading)
        return {
            **({} if self.holder is None else {"holder": self.holder}),
            "sensitive": True,
            "private": self.private,
            "guarantee": {
                "epsilon": to_json_number(self.epsilon),
                "delta": self.delta,
                "relation": self.relation.name,
                "meaning": self.guarantee,
            },
            "reading": {
                "epsilon": None if unread else to_json_number(self.reading),
                "delta": self.reading_delta,
                "ex_post": True,
                "meaning": self.cost,
            },
        }

    def __str__(self) -> str:
        return "\n\n".join(part for part in (self.holder, self.guarantee, self.cost) if part)

    def __repr__(self) -> str:
        return "Statement(of one holder)"


def statement(
    plan: Plan, budgets: Budgets, reading: ArrayLike, holder: int | str, *, private: bool = True, kind: str = "strict"
) -> Statement:
    """The statement for one holder, by place or by name; `reading` has one entry per holder, at their delta less the reserve.

    `private` is that of the run's account, and `kind` that of the reading.
    """
    plan.groups_of(budgets)
    values = np.asarray(reading, float)
    if values.shape != (len(budgets),):
        raise SartorError(f"there are {len(budgets):,} budgets, so there must be as many readings, in one dimension.")
    place = _place(budgets, holder)
    return Statement(
        epsilon=float(budgets.epsilon[place]),
        delta=float(budgets.delta[place]),
        reading=float(values[place]),
        reading_delta=float(spendable(budgets.delta[place], budgets.reserve)),
        relation=plan.relation,
        private=private,
        holder=None if budgets.names is None else budgets.names[place],
        kind=kind,
    )


def _place(budgets: Budgets, holder: int | str) -> int:
    if isinstance(holder, str):
        if budgets.names is None or holder not in budgets.names:
            raise SartorError("there is no holder of this name.")
        return budgets.names.index(holder)
    if isinstance(holder, bool) or not isinstance(holder, int | np.integer) or not 0 <= holder < len(budgets):
        raise SartorError(f"a holder is a name, or a place from 0 to {len(budgets) - 1:,}.")
    return int(holder)
