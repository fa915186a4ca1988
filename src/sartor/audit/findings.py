"""What an attack found, group by group, beside what was promised: figures, lower bounds and a verdict.

Guarantee: if every promise holds, the verdict is "refuted" with probability at most 1 - confidence.
Proof: each row's bound exceeds its epsilon with probability at most its part of 1 - confidence, as its kind of bound is proved to
    (`bounds`, `one_run`), and the parts add up (Bonferroni), over rows and kinds.
Breaks if: scores come from runs that were chosen by what they show; the kind of bound is one that the attack's scores are not made for.

Groups of fewer than ten holders stand in one row with others, whose claim is the largest epsilon and delta among them. All of it is
sensitive where the data are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sartor import confidential
from sartor.audit.bounds import threshold_bound
from sartor.audit.one_run import one_run_bound_of
from sartor.audit.scores import Roc, Scores, auc, roc, tpr_at
from sartor.confidential import Shown
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.numbers import to_json_number
from sartor.plans import Plan

Bound = Callable[[Scores, float, float], float]
"""From scores, a delta and a confidence to a lower bound on epsilon."""

ONE_RUN: tuple[Bound, ...] = (one_run_bound_of,)
"""For members of one run who share it: whatever the mechanism does, their coins were their own."""
REPEATED: tuple[Bound, ...] = (one_run_bound_of, threshold_bound)
"""For members whose scores are independent, as those of canaries at right angles are under the mechanism that is claimed."""

_LOW = (0.001, 0.01)


@dataclass(frozen=True, eq=False)
class Row:
    """One group, or several small ones: what was promised, and what was found."""

    epsilon: Shown
    delta: Shown
    claimed: float
    holders: int
    lower_bound: float
    auc: float
    tpr: tuple[float, ...]
    curve: Roc

    @property
    def refuted(self) -> bool:
        """Whether more was found than the promise allows."""
        return self.lower_bound > self.claimed

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        claim = {"epsilon": _document(self.epsilon), "delta": _document(self.delta)}
        figures = {f"tpr_at_{fpr:g}": rate for fpr, rate in zip(_LOW, self.tpr, strict=True)}
        bounds = {"lower_bound": to_json_number(self.lower_bound), "auc": self.auc}
        return {**claim, "holders": self.holders, **bounds, **figures}


@dataclass(frozen=True, eq=False)
class Findings:
    """What an attack found. Sensitive where the data are."""

    attack: str
    confidence: float
    rows: tuple[Row, ...]

    @property
    def verdict(self) -> str:
        """Whether what was found is consistent with what was promised."""
        return "refuted" if any(row.refuted for row in self.rows) else "consistent"

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        return {
            "attack": self.attack,
            "verdict": self.verdict,
            "confidence": self.confidence,
            "groups": [row.to_json() for row in self.rows],
        }

    def table(self) -> Table:
        """As a table."""
        headings = ("epsilon", "delta", "holders", "lower bound", "AUC", "TPR at 0.1 % FPR", "TPR at 1 % FPR", "verdict")
        cells = [
            [
                confidential.text(row.epsilon, "g"),
                confidential.text(row.delta, "g"),
                f"{row.holders:,}",
                f"{row.lower_bound:.3f}",
                f"{row.auc:.3f}",
                *(f"{rate:.2%}" for rate in row.tpr),
                "refuted" if row.refuted else "consistent",
            ]
            for row in self.rows
        ]
        return Table(headings, cells, f"What the attack {self.attack} found, with confidence {self.confidence:g}")

    def sentence(self) -> str:
        """The verdict in words."""
        if self.verdict == "refuted":
            return (
                f"Refuted: the attack found more than was promised to somebody. If every promise held, this would happen in at most "
                f"{1 - self.confidence:.2g} of such audits."
            )
        return "Consistent: the attack found no more than was promised. That is no proof; a stronger attack may find more."


def findings(
    attack: str,
    scores: Mapping[int, Scores],
    plan: Plan,
    *,
    confidence: float = 0.99,
    bounds: Sequence[Bound] = ONE_RUN,
    counted: Mapping[int, Scores] | None = None,
) -> Findings:
    """Figures and bounds from the scores of each group of a plan; groups without scores are left out.

    `counted` are the scores that bounds may be computed from, if those are fewer: figures such as AUC may pool runs that bounds may not.

    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    >>> numbers = np.linspace(0, 1, 50)
    >>> found = findings("canary", {0: Scores(numbers, numbers), 1: Scores(numbers + 2, numbers)}, sartor.plan(budgets, steps=5, batch=20))
    >>> found.verdict, [round(row.auc, 2) for row in found.rows]
    ('consistent', [0.5, 1.0])
    """
    if not 0 < confidence < 1:
        raise SartorError(f"a confidence lies between 0 and 1, not at {confidence}.")
    by = scores if counted is None else counted
    runs = [(row, [group for group in range(*row.indices(len(plan))) if group in scores]) for row in plan.view.rows()]
    told = [(row, groups) for row, groups in runs if groups]
    if not told:
        raise SartorError("there are no scores of any group of this plan.")
    each = 1 - (1 - confidence) / (len(told) * len(bounds))
    return Findings(attack, confidence, tuple(_row(plan, row, groups, scores, by, each, bounds) for row, groups in told))


def _row(
    plan: Plan,
    row: slice,
    groups: Sequence[int],
    scores: Mapping[int, Scores],
    counted: Mapping[int, Scores],
    each: float,
    bounds: Sequence[Bound],
) -> Row:
    pooled, fewer = (_together([source[group] for group in groups if group in source]) for source in (scores, counted))
    delta, view = float(plan.delta[row].max()), plan.view
    known = pooled.inside.size and pooled.outside.size
    return Row(
        epsilon=view.value(plan.epsilon, row),
        delta=view.value(plan.delta, row),
        claimed=float(plan.epsilon[row].max()),
        holders=view.people(row),
        lower_bound=max(bound(fewer, delta, each) for bound in bounds) if fewer.inside.size + fewer.outside.size else 0.0,
        auc=auc(pooled) if known else 0.5,
        tpr=tuple(tpr_at(pooled, fpr) if known else 0.0 for fpr in _LOW),
        curve=roc(pooled) if known else Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0])),
    )


def _document(value: Shown) -> Any:
    return [to_json_number(end) for end in value] if isinstance(value, tuple) else to_json_number(value)


def _together(scores: Sequence[Scores]) -> Scores:
    nothing = np.zeros(0)
    sides = ([nothing, *(getattr(one, side) for one in scores)] for side in ("inside", "outside"))
    return Scores(*(np.concatenate(side) for side in sides))
