"""The page of a training run: what was trained, the plan, accuracy on public rows, what was spent, and the profile of each group."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from sartor.plans import Plan, table
from sartor.report import page, plots
from sartor.report.curves import profile_figure, spend_figure

NO_FIGURE = "There were no public test rows, so no accuracy is told."
SEEDED = "This run was seeded: its coins and its noise can be repeated, so it is a test and protects nobody."


def meaning(plan: Plan, steps: int) -> str:
    """What the guarantee says, in two sentences."""
    done = f"all {plan.steps:,}" if steps == plan.steps else f"{steps:,} of {plan.steps:,}"
    return (
        f"Whoever sees the model after {done} steps can hardly tell whether any one holder's data was used: the odds that they give to it "
        "change by a factor of at most e to the power of that holder's own epsilon, except with about the probability delta. This holds "
        "for each holder at their own budget, whatever the others do, as long as the run's sensitive files stay private."
    )


def training_page(
    *,
    title: str,
    facts: Mapping[str, str],
    plan: Plan,
    steps: int,
    seeded: bool,
    accuracy: float | None,
    history: Sequence[Mapping[str, Any]],
    notes: Sequence[str] = (),
    released: page.Block | None = None,
) -> str:
    """The page, as HTML. `released` is the part on what was told of individual accounts (`sartor.report.released`)."""
    result = NO_FIGURE if accuracy is None else f"Accuracy on the public test rows: {accuracy:.1%}."
    return page.page(
        title,
        *([page.note(SEEDED)] if seeded else []),
        page.paragraph(result),
        page.paragraph(meaning(plan, steps)),
        page.section("What was trained", page.table(["setting", "value"], list(facts.items())), *(page.paragraph(note) for note in notes)),
        page.section("The plan", page.paragraph(table.title(plan)), page.table(table.headings(plan), table.cells(plan))),
        *([page.section("Accuracy over the steps", _accuracy(history))] if history else []),
        page.section("What was spent", spend_figure(plan, steps)),
        page.section("Beyond one epsilon", profile_figure(plan)),
        *([] if released is None else [released]),
    )


def _accuracy(history: Sequence[Mapping[str, Any]]) -> page.Block:
    steps, values = [row["step"] for row in history], [row["accuracy"] for row in history]
    svg = plots.lines([plots.Line("accuracy", steps, values)], x="steps", y="accuracy on public rows")
    caption = f"Accuracy on the public test rows, from {values[0]:.1%} at step {steps[0]:,} to {values[-1]:.1%} at step {steps[-1]:,}."
    shown = range(0, len(steps), max(1, len(steps) // 20))
    return page.figure(svg, caption, page.table(["steps", "accuracy"], [[f"{steps[i]:,}", f"{values[i]:.4f}"] for i in shown]))
