"""Plans as tables that people read: one row per group, small groups merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sartor.confidential import lent, text
from sartor.layout import Table
from sartor.numbers import several
from sartor.plans.document import shown_options

if TYPE_CHECKING:
    from sartor.plans.plan import Plan

_MOST_ROWS = 20
_HEADINGS = ("epsilon", "delta", "holders", "rate", "clip", "noise multiplier", "expected uses", "spent")
_MOST_EXCESS = 32  # groups up to which a table computes the excess, which takes a moment each


def title(plan: Plan) -> str:
    """What stands above the table."""
    kept = f", {plan.reserve:.0%} of every budget kept in reserve" if plan.reserve else ""
    options = "".join(f", {key} {value:g}" if isinstance(value, float) else f", {key} {value}" for key, value in _told(plan).items())
    if not plan.protects:
        how = "no noise: every record is public" if np.isinf(plan.epsilon).all() else "no noise: these deltas allow it"
    else:
        how = f"{noise(plan)} on a clip of {plan.clip:g}"
    steps = f"{several(plan.steps, 'step')}{_lent(plan)}{_filter(plan)}"
    return f"{plan.scheme}{options}: {steps}, expected batch {plan.batch:g}, {how} ({plan.accountant}{kept})"


def _told(plan: Plan) -> dict[str, Any]:
    """Options worth a word: how many thresholds there are says how many rounds, and those that were given are not said twice."""
    options = shown_options(plan, merged=plan.view.merged)
    found = {key: value for key, value in options.items() if value is not None and not (key == "rounds" and "thresholds" in options)}
    if "thresholds" in found:
        found.pop("threshold", None)
        found["thresholds"] = ", ".join(f"{value:g}" for value in found["thresholds"])
        if len(set(options["thresholds"])) == 1:
            found["thresholds"] = f"{options['thresholds'][0]:g} in each of {len(options['thresholds'])}"
    return found


def _filter(plan: Plan) -> str:
    """What a filter buys."""
    if plan.filter is None:
        return ""
    kind = {"ladder": "ladder", "renyi": "Rényi"}[plan.filter.kind]
    return f" of which full norm pays for {plan.filter.full_steps:,} ({kind} filter, norms tracked every {plan.filter.refresh:,})"


def _lent(plan: Plan) -> str:
    """Whose steps they are, where holders have several records."""
    if not plan.by_holder:
        return ""
    most = "all" if plan.records_per_holder is None else f"at most {plan.records_per_holder:,}"
    return f" over {lent(int(plan.holders.sum()), plan.records)}, {most} of a drawn holder's records, by their {plan.combine}"


def noise(plan: Plan) -> str:
    """The noise of a plan, or the range of its stages'."""
    found = sorted({stage.noise_multiplier for stage in plan.stages})
    return f"noise multiplier {found[0]:.5g}" + (f" to {found[-1]:.5g}" if len(found) > 1 else "")


def cells(plan: Plan) -> list[list[str]]:
    """The rows of the table."""
    view = plan.view
    spans = np.any((plan.first > 0) | (plan.last < plan.steps))
    out = []
    for row in view.rows(_MOST_ROWS):
        capped = bool(np.any(plan.capped[row]))
        line = [
            text(view.value(plan.epsilon, row), "g"),
            text(view.value(plan.delta, row), "g"),
            f"{view.people(row):,}",
            text(view.value(plan.rate, row)) + (" (capped)" if capped else ""),
            text(view.value(plan.clips, row)),
            text(view.value(plan.noise_multipliers, row)),
            text(view.value(plan.expected_uses, row)),
            "within budget" if view.hides(row) else text(view.spent(plan.spent, row), ".4f"),
        ]
        if _shows_excess(plan):
            line.append(text(view.value(plan.excess, row), ".2g"))
        if plan.filter is not None:
            line.append(text(view.value(plan.rests_at, row), ",.0f"))
        if spans:
            line.append("" if view.hides(row) else f"{int(plan.first[row][0]):,} to {int(plan.last[row][0]):,}")
        out.append(line)
    return out


def headings(plan: Plan) -> list[str]:
    """The names of the columns."""
    spans = np.any((plan.first > 0) | (plan.last < plan.steps))
    own = [*(["excess"] if _shows_excess(plan) else []), *([] if plan.filter is None else ["rests at"])]
    return [*_HEADINGS, *own, *(["steps"] if spans else [])]


def _shows_excess(plan: Plan) -> bool:
    return len(plan) <= _MOST_EXCESS or "excess" in vars(plan)


def table(plan: Plan) -> Table:
    """The plan as a table, for a page of text or a terminal."""
    return Table(headings(plan), cells(plan), title(plan))
