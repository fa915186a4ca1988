"""What a run has spent: per group, after the steps that it has taken."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.numbers import to_json_number
from sartor.plans import Plan


@dataclass(frozen=True, repr=False)
class Account:
    """The steps that were taken under a plan, and what they cost each group.

    A step is charged before its result can be seen. A seeded run is not private, whatever it would cost: its noise can be repeated.
    """

    plan: Plan
    steps: int
    seeded: bool = False

    @cached_property
    def spent(self) -> NDArray[np.float64]:
        """Epsilon that each group has spent so far, at its delta, by the plan's accountant."""
        return self.plan.spent_after(self.steps)

    @property
    def private(self) -> bool:
        """Whether the run protects anyone: with noise, and with one that cannot be repeated."""
        return not self.seeded and self.plan.noise_multiplier > 0

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document; groups of fewer than ten holders are merged, and show their budgets' range as spend."""
        return {
            "steps": self.steps,
            "planned_steps": self.plan.steps,
            "private": self.private,
            "accountant": self.plan.accountant,
            "groups": [
                {
                    "epsilon": self._shown(self.plan.epsilon, run),
                    "delta": self._shown(self.plan.delta, run),
                    "holders": int(self.plan.holders[run].sum()),
                    "spent": self._spent(run),
                }
                for run in confidential.rows(self.plan.holders)
            ],
        }

    def _spent(self, run: slice) -> Any:
        if confidential.hidden(run, self.plan.holders):
            return self._shown(self.plan.epsilon, run)  # nobody spends more, and a spend would tell a budget
        return self._shown(self.spent, run, self.plan.secret)

    def _shown(self, values: NDArray[np.float64], run: slice, secret: NDArray[np.float64] | None = None) -> Any:
        value = confidential.shown(values, run, self.plan.holders, secret)
        return [to_json_number(end) for end in value] if isinstance(value, tuple) else to_json_number(value)

    def __str__(self) -> str:
        lines = [f"after {self.steps:,} of {self.plan.steps:,} steps" + ("; seeded, so not private" if self.seeded else "")]
        lines += [f"{'epsilon':>14} {'holders':>10} {'spent':>14}"]
        for row in self.to_json()["groups"]:
            lines.append(f"{_text(row['epsilon']):>14} {row['holders']:>10,} {_text(row['spent']):>14}")
        return "\n".join(lines)

    def __repr__(self) -> str:
        return f"Account({self.steps} of {self.plan.steps} steps{', seeded' if self.seeded else ''})"


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_text(end) for end in value)
    return value if isinstance(value, str) else f"{value:.4g}"
