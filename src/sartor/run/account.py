"""Accounts: what people have spent. Every way to train has one kind, and all kinds say the same of themselves (`Account`).

`RunAccount` is of the steps of a plan (SGD, federated rounds), `sartor.federated.ClientAccount` of one client, and
`sartor.pate.PateAccount` of votings.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sartor.confidential import lent, text, to_json
from sartor.plans import Plan
from sartor.relation import Relation


class Account(Protocol):
    """What every account says, so that reports and audits need not know how somebody trained."""

    @property
    def relation(self) -> Relation:
        """Between which data sets what is spent holds."""

    @property
    def private(self) -> bool:
        """Whether it protects anyone: with noise, by a bound that tells nothing of the data, and by coins that cannot be repeated."""

    @property
    def spent(self) -> Any:
        """Epsilon spent so far, at the deltas of whom it is of: a number, or one for each group."""

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document that may be given to whom it is of."""


@dataclass(frozen=True, repr=False)
class RunAccount:
    """The steps that were taken under a plan, and what they cost each group.

    A step is charged before its coins are drawn, and stays charged. A seeded run is not private, whatever it would cost: its noise can be
    repeated.
    """

    plan: Plan
    steps: int
    """Steps that count, taken or lost."""
    seeded: bool = False
    records: int | None = None
    """How many records the holders lent, where that is known."""
    lost: int = 0
    """Steps that count and that this model did not take, as the process that was to take them ended."""
    ahead: int = 0
    """Steps that are charged on the disk and that may still be taken."""
    continued: bool = False
    """Whether the model came from another process that may have taken steps which nothing here shows (`load_state_dict`)."""

    @property
    def taken(self) -> int:
        """Steps that this model took."""
        return self.steps - self.lost

    @property
    def charged(self) -> int:
        """Steps that everybody has paid for."""
        return self.steps + self.ahead

    @property
    def relation(self) -> Relation:
        """That of the plan."""
        return self.plan.relation

    @cached_property
    def spent(self) -> NDArray[np.float64]:
        """Epsilon that each group has spent so far, at its delta, by the plan's accountant."""
        return self.plan.spent_after(self.charged)

    @property
    def private(self) -> bool:
        """Whether the run protects anyone: with noise, and with one that cannot be repeated."""
        return not self.seeded and self.plan.protects

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document; groups of fewer than ten holders are merged, and show the most that they allow as spend."""
        plan, view = self.plan, self.plan.view
        return {
            "steps": self.steps,
            "planned_steps": plan.steps,
            "taken": self.taken,
            "lost": self.lost,
            "charged": self.charged,
            "holders": int(plan.holders.sum()),
            **({} if self.records is None else {"records": int(self.records)}),
            "private": self.private,
            **({"continued": True} if self.continued else {}),
            "accountant": plan.accountant,
            "relation": self.relation.name,
            "groups": [
                {
                    "epsilon": to_json(view.value(plan.epsilon, row)),
                    "delta": to_json(view.value(plan.delta, row)),
                    "holders": view.people(row),
                    "spent": to_json(view.spent(self.spent, row)),
                }
                for row in view.rows()
            ],
        }

    def __str__(self) -> str:
        everybody = int(self.plan.holders.sum())
        whose = "" if self.records in (None, everybody) else f" over {lent(everybody, self.records)}"
        notes = [
            f"; {self.lost:,} of them lost" if self.lost else "",
            f"; charged up to step {self.charged:,}" if self.ahead else "",
            "; continued" if self.continued else "",
            "; seeded, so not private" if self.seeded else "",
        ]
        lines = [f"after {self.steps:,} of {self.plan.steps:,} steps{whose}{''.join(notes)}"]
        lines += [f"{'epsilon':>14} {'holders':>10} {'spent':>14}"]
        for row in self.to_json()["groups"]:
            lines.append(f"{text(row['epsilon']):>14} {row['holders']:>10,} {text(row['spent']):>14}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        lost = f", {self.lost} lost" if self.lost else ""
        return f"RunAccount({self.steps} of {self.plan.steps} steps{lost}{', seeded' if self.seeded else ''})"
