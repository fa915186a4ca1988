"""The page of the demo: accuracy of each scheme with error bars, and how the groups are treated by each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sartor.confidential import text
from sartor.plans import Plan
from sartor.report import page, plots
from sartor.report.curves import spend_figure
from sartor.report.training import SEEDED

HEADINGS = ("scheme", "accuracy", "noise multiplier", "spent per group", "rate per group", "clip per group")


class Trial(NamedTuple):
    """What a scheme reached: mean accuracy, its standard deviation over the runs, and the plan if there was one."""

    scheme: str
    accuracy: float
    spread: float
    plan: Plan | None


def cells(trial: Trial) -> list[str]:
    """A scheme as one row of a table."""
    figure = [trial.scheme, f"{trial.accuracy:.1%} ± {trial.spread:.1%}"]
    if trial.plan is None:
        return [*figure, "none", "no limit", "", ""]
    plan = trial.plan
    view = plan.view
    columns = (
        [view.spent(plan.spent, row) for row in view.rows()],
        *([view.value(values, row) for row in view.rows()] for values in (plan.rate, plan.clips)),
    )
    return [*figure, f"{plan.noise_multiplier:.2f}", *(" · ".join(text(value, ".3g") for value in column) for column in columns)]


def demonstration_page(trials: Sequence[Trial], *, setting: str, meaning: Sequence[str]) -> str:
    """The page, as HTML."""
    plans = [trial.plan for trial in trials if trial.plan is not None]
    return page.page(
        "What individual budgets buy",
        page.note(SEEDED),
        page.paragraph(setting),
        page.section("Accuracy", _accuracy(trials), *(page.paragraph(sentence) for sentence in meaning)),
        *(page.section(f"What is spent: {plan.scheme}", spend_figure(plan, plan.steps)) for plan in plans),
        page.section("How each group is treated", _per_group(plans, "rate"), _per_group(plans, "clip")),
        page.section("All figures", page.table(HEADINGS, [cells(trial) for trial in trials])),
    )


def _accuracy(trials: Sequence[Trial]) -> page.Block:
    svg = plots.bars([plots.Bar(trial.scheme, trial.accuracy, trial.spread) for trial in trials], x="accuracy on test rows")
    figures = "; ".join(f"{trial.scheme} {trial.accuracy:.1%}" for trial in trials)
    caption = f"Accuracy of each scheme, with one standard deviation over the runs: {figures}."
    return page.figure(svg, caption, page.table(HEADINGS[:2], [cells(trial)[:2] for trial in trials]))


def _per_group(plans: Sequence[Plan], what: str) -> page.Block:
    words = {"rate": "How often a person of each group is drawn in one step", "clip": "How much a person of each group counts at most"}
    view = plans[0].view  # the plans are over the same budgets
    alone = [row.start for row in view.rows() if not view.hides(row)]
    if not alone:
        return page.paragraph(f"No group is large enough for its {what} to be drawn by itself.")
    values = [plan.rate if what == "rate" else plan.clips for plan in plans]
    lines = [plots.Line(plan.scheme, plan.epsilon[alone], own[alone]) for plan, own in zip(plans, values, strict=True)]
    svg = plots.lines(lines, x="epsilon of the group", y=what, markers=True, zero=True)
    rows = [[text(view.value(figure, row)) for figure in (plans[0].epsilon, *values)] for row in view.rows()]
    return page.figure(
        svg, f"{words[what]}: {what} by budget, for each scheme.", page.table(["epsilon", *(line.label for line in lines)], rows)
    )
