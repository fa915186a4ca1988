"""Plans as tables that people read: one row per group, small groups merged."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from sartor import confidential

if TYPE_CHECKING:
    from sartor.plans.plan import Plan

_MOST_ROWS = 20
_HEADINGS = ("epsilon", "delta", "holders", "rate", "clip", "noise multiplier", "expected uses", "spent")
_MOST_EXCESS = 32  # groups up to which a table computes the excess, which takes a moment each


def title(plan: Plan) -> str:
    """What stands above the table."""
    kept = f", {plan.reserve:.0%} of every budget kept in reserve" if plan.reserve else ""
    options = "".join(f", {key} {value:g}" if isinstance(value, float) else f", {key} {value}" for key, value in plan.options.items())
    if plan.noise_multiplier == 0:
        noise = "no noise: every record is public"
    else:
        noise = f"noise multiplier {plan.noise_multiplier:.5g} on a clip of {plan.clip:g}"
    return f"{plan.scheme}{options}: {plan.steps:,} steps, expected batch {plan.batch:g}, {noise} ({plan.accountant}{kept})"


def cells(plan: Plan) -> list[list[str]]:
    """The rows of the table."""
    holders = plan.holders
    spans = np.any((plan.first > 0) | (plan.last < plan.steps))
    out = []
    for run in confidential.rows(holders, _MOST_ROWS):
        capped = bool(np.any(plan.capped[run]))
        row = [
            confidential.text(plan.epsilon, run, holders, "g"),
            confidential.text(plan.delta, run, holders, "g"),
            f"{int(holders[run].sum()):,}",
            confidential.text(plan.rate, run, holders, ".4g") + (" (capped)" if capped else ""),
            confidential.text(plan.clips, run, holders, ".4g"),
            confidential.text(plan.noise_multipliers, run, holders, ".4g"),
            confidential.text(plan.expected_uses, run, holders, ".4g"),
            "within budget" if confidential.hidden(run, holders) else confidential.text(plan.spent, run, holders, ".4f", plan.secret),
        ]
        if _shows_excess(plan):
            row.append(confidential.text(plan.excess, run, holders, ".2g"))
        if spans:
            row.append("" if confidential.hidden(run, holders) else f"{int(plan.first[run][0]):,} to {int(plan.last[run][0]):,}")
        out.append(row)
    return out


def headings(plan: Plan) -> list[str]:
    """The names of the columns."""
    spans = np.any((plan.first > 0) | (plan.last < plan.steps))
    return [*_HEADINGS, *(["excess"] if _shows_excess(plan) else []), *(["steps"] if spans else [])]


def _shows_excess(plan: Plan) -> bool:
    return len(plan) <= _MOST_EXCESS or "excess" in vars(plan)


def plain(plan: Plan) -> str:
    """The table as text."""
    rows = [headings(plan), *cells(plan)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)) for row in rows]
    return "\n".join([title(plan), lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def rich(plan: Plan) -> Any:
    """The table for a terminal."""
    from rich import box
    from rich.table import Table

    out = Table(title=title(plan), title_justify="left", box=box.SIMPLE_HEAD)
    for name in headings(plan):
        out.add_column(name, justify="right")
    for row in cells(plan):
        out.add_row(*row)
    return out
