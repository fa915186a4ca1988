"""What an attack found, group by group, beside what was promised: figures, lower bounds and a verdict.

Guarantee: if every promise holds, the verdict is "refuted" by bounds that take nothing for granted with probability at most
    1 - confidence; if the run is what its plan describes, by all bounds together.
Proof: each row's bound exceeds its epsilon with probability at most its part of 1 - confidence, as its kind of bound is proved to
    (`bounds`), and the parts add up (Bonferroni), over rows, kinds and attacks.
Breaks if: scores come from runs that were chosen by what they show; the kind of bound is one that the attack's scores are not made for.

Groups of fewer than ten holders stand in one row with others, whose claim is the largest epsilon and delta among them. What was found is
about the training records themselves, so it is sensitive unless it is said that these may be shown, as those of a set by name may.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.audit.bounds import one_run_bound_of, threshold_bound
from sartor.audit.scores import Roc, Scores, auc, roc, tpr_at
from sartor.audit.sensitive import check_said
from sartor.confidential import Shown
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.layout import Table
from sartor.numbers import to_json_number


class Bound(Protocol):
    """From scores, a delta and a confidence to a lower bound on epsilon; `seed` orders ties."""

    def __call__(self, scores: Scores, delta: float, confidence: float, /, *, seed: int | None) -> float:
        """The bound, or 0."""


class Kind(NamedTuple):
    """A kind of bound, and under which assumption it is above the truth as rarely as it says."""

    bound: Bound
    if_: str


_PROMISED, _PLANNED = "every promise held", "the run were what its plan describes"

ONE_RUN = (Kind(one_run_bound_of, _PROMISED),)
"""For members of one run who share it: whatever the mechanism does, their coins were their own."""
REPEATED = (Kind(threshold_bound, _PROMISED),)
"""For scores of independent repetitions."""
AS_PLANNED = (*ONE_RUN, Kind(threshold_bound, _PLANNED))
"""For members of one run whose scores are independent if it is what its plan describes, as those of canaries at right angles are.

A mechanism that reveals several of them together may keep its promise to each and be refuted all the same: it is not the planned one.
"""

_LOW = (0.001, 0.01)


class Promised(Protocol):
    """What a plan promises to whom: a plan of steps, the accounted one of federated rounds, or one of votes."""

    @property
    def epsilon(self) -> NDArray[np.float64]:
        """Of each group."""

    @property
    def delta(self) -> NDArray[np.float64]:
        """Of each group."""

    @property
    def view(self) -> confidential.View:
        """The groups as they may be shown."""

    def __len__(self) -> int:
        """How many groups there are."""


@dataclass(frozen=True, eq=False)
class Row:
    """One group, or several small ones: what was promised, and what was found, which its repr does not show."""

    epsilon: Shown
    delta: Shown
    claimed: float = field(repr=False)
    holders: int
    lower_bound: float = field(repr=False)
    if_: str = field(repr=False)
    """What a bound above the claim is at odds with."""
    auc: float = field(repr=False)
    tpr: tuple[float, ...] = field(repr=False)
    curve: Roc = field(repr=False)
    inside: int = field(repr=False)
    outside: int = field(repr=False)
    """How many scores there are of those who took part, and of others."""
    could_show: float = field(repr=False)
    """The bound if every score had told right: where it is not above the claim, no attack could have refuted it with so few scores."""
    is_told: bool = field(repr=False)
    """Whether scores differ at all."""

    @property
    def refuted(self) -> bool:
        """Whether more was found than the promise allows."""
        return self.lower_bound > self.claimed

    @property
    def verdict(self) -> str:
        """What was found of this group, or that nothing could have been."""
        return "refuted" if self.refuted else "cannot tell" if self.is_blind else "consistent"

    @property
    def is_blind(self) -> bool:
        """Whether nothing that these scores could show would have been more than the promise allows."""
        return self.could_show <= self.claimed < np.inf


@dataclass(frozen=True, eq=False)
class Findings:
    """What an attack found, which is `sensitive` unless the training records may be shown; documents and pages must, and do, say so."""

    attack: str
    confidence: float
    rows: tuple[Row, ...] = field(repr=False)
    sensitive: bool = True

    @property
    def verdict(self) -> str:
        """Whether what was found is consistent with what was promised."""
        return "refuted" if any(row.refuted for row in self.rows) else "consistent"

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """As a document, which has to be said to be `sensitive` where it is."""
        check_said(self.sensitive, sensitive)
        return {
            "attack": self.attack,
            "verdict": self.verdict,
            "confidence": self.confidence,
            "groups": [_of_row(row) for row in self.rows],
            **({"sensitive": True} if self.sensitive else {}),
        }

    def table(self, *, sensitive: bool = False) -> Table:
        """As a table, which has to be said to be `sensitive` where it is."""
        check_said(self.sensitive, sensitive)
        headings = ("epsilon", "delta", "holders", "in, out", "bound", "at most", "AUC", *(f"TPR at {fpr:g}" for fpr in _LOW), "verdict")
        cells = [
            [
                confidential.text(row.epsilon, "g"),
                confidential.text(row.delta, "g"),
                f"{row.holders:,}",
                f"{row.inside:,}, {row.outside:,}",
                f"{row.lower_bound:.3f}",
                f"{row.could_show:.3f}",
                f"{row.auc:.3f}",
                *(f"{rate:.2%}" if row.outside * fpr >= 1 else "-" for fpr, rate in zip(_LOW, row.tpr, strict=True)),
                row.verdict,
            ]
            for row in self.rows
        ]
        return Table(headings, cells, f"What the attack {self.attack} found, with confidence {self.confidence:g}")

    def sentence(self) -> str:
        """The verdict in words."""
        at_odds = {row.if_ for row in self.rows if row.refuted}
        if at_odds:
            return (
                f"Refuted: the attack found more than was promised to somebody. If {_PROMISED if _PROMISED in at_odds else _PLANNED}, "
                f"this would happen in at most {1 - self.confidence:.2g} of such audits."
            )
        found = ["Consistent: the attack found no more than was promised. That is no proof; a stronger attack may find more."]
        blind = [confidential.text(row.epsilon, "g") for row in self.rows if row.is_blind]
        if blind:
            more = "More canaries may, where there is room for them." if self.attack == "canary" else "The attack canary may."
            found.append(
                f"Of epsilon {', '.join(blind)} it says nothing: from so few members of one run, at this delta and confidence, not even an "
                f"attack that is always right would show more than was promised. {more}"
            )
        if not all(row.is_told for row in self.rows):
            found.append("Where AUC is 0.5, all scores are the same: there the attack told nobody from anybody.")
        return " ".join(found)


def findings(
    attack: str,
    scores: Mapping[int, Scores],
    plan: Promised | FederatedPlan,
    *,
    confidence: float = 0.99,
    bounds: Sequence[Kind] = ONE_RUN,
    counted: Mapping[int, Scores] | None = None,
    attacks: int = 1,
    seed: int | None = None,
    sensitive: bool = True,
) -> Findings:
    """Figures and bounds from the scores of each group of a plan; groups without scores are left out.

    `counted` are the scores that bounds may be computed from, if those are fewer: figures such as AUC may pool runs that bounds may not.
    `attacks` is how many share the confidence, where several look at one plan and any of them may refute it. Equal scores are ordered by
    lot, anew each time, or by a `seed`.

    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    >>> numbers = np.linspace(0, 1, 50)
    >>> found = findings("canary", {0: Scores(numbers, numbers), 1: Scores(numbers + 2, numbers)}, sartor.plan(budgets, steps=5, batch=20))
    >>> found.verdict, [round(row.auc, 2) for row in found.rows]
    ('consistent', [0.5, 1.0])
    """
    if isinstance(plan, FederatedPlan):
        plan = plan.accounted
    if not 0 < confidence < 1:
        raise SartorError(f"a confidence lies between 0 and 1, not at {confidence}.")
    if attacks < 1:
        raise SartorError(f"one attack at least shares the confidence, not {attacks}.")
    by = scores if counted is None else counted
    runs = [(row, [group for group in range(*row.indices(len(plan))) if group in scores]) for row in plan.view.rows()]
    told = [(row, groups) for row, groups in runs if groups]
    if not told:
        raise SartorError("there are no scores of any group of this plan.")
    if not all(sum(getattr(one, side).size for one in by.values()) for side in ("inside", "outside")):
        raise SartorError(
            "an attack needs scores of some who took part and of some who did not: leave records out of the training, and score them too."
        )
    each = 1 - (1 - confidence) / (len(told) * len(bounds) * attacks)
    return Findings(attack, confidence, tuple(_row(plan, row, groups, scores, by, each, bounds, seed) for row, groups in told), sensitive)


def _row(
    plan: Promised,
    row: slice,
    groups: Sequence[int],
    scores: Mapping[int, Scores],
    counted: Mapping[int, Scores],
    each: float,
    bounds: Sequence[Kind],
    seed: int | None,
) -> Row:
    pooled, fewer = (_together([source[group] for group in groups if group in source]) for source in (scores, counted))
    delta, view = float(plan.delta[row].max()), plan.view
    known, claimed = pooled.inside.size and pooled.outside.size, float(plan.epsilon[row].max())
    enough = fewer.inside.size + fewer.outside.size
    found = [(kind.bound(fewer, delta, each, seed=seed) if enough else 0.0, kind.if_) for kind in bounds]
    right = Scores(np.ones(fewer.inside.size), np.zeros(fewer.outside.size))
    values = np.concatenate([pooled.inside, pooled.outside])
    over = [if_ for bound, if_ in found if bound > claimed]
    return Row(
        epsilon=view.value(plan.epsilon, row),
        delta=view.value(plan.delta, row),
        claimed=claimed,
        holders=view.people(row),
        lower_bound=max(bound for bound, _ in found),
        if_=_PROMISED if _PROMISED in over or not over else _PLANNED,
        auc=auc(pooled) if known else 0.5,
        tpr=tuple(tpr_at(pooled, fpr) if known else 0.0 for fpr in _LOW),
        curve=roc(pooled) if known else Roc(np.array([0.0, 1.0]), np.array([0.0, 1.0])),
        inside=pooled.inside.size,
        outside=pooled.outside.size,
        could_show=max(kind.bound(right, delta, each, seed=seed) for kind in bounds) if enough else 0.0,
        is_told=bool(np.ptp(values) > 0) if len(values) else False,
    )


def _of_row(row: Row) -> dict[str, Any]:
    claim = {"epsilon": _document(row.epsilon), "delta": _document(row.delta)}
    figures = {f"tpr_at_{fpr:g}": rate for fpr, rate in zip(_LOW, row.tpr, strict=True)}
    bounds = {"lower_bound": to_json_number(row.lower_bound), "auc": row.auc}
    scores = {"inside": row.inside, "outside": row.outside, "could_show": to_json_number(row.could_show)}
    return {**claim, "holders": row.holders, **bounds, **figures, **scores, "verdict": row.verdict}


def _document(value: Shown) -> Any:
    return [to_json_number(end) for end in value] if isinstance(value, tuple) else to_json_number(value)


def _together(scores: Sequence[Scores]) -> Scores:
    nothing = np.zeros(0)
    sides = ([nothing, *(getattr(one, side) for one in scores)] for side in ("inside", "outside"))
    return Scores(*(np.concatenate(side) for side in sides))
