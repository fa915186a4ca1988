"""The curves of a plan that may be drawn: spend over the steps, and the privacy profile, of groups that may be shown one by one.

A group is left out if it has fewer than ten holders, or if its curve would tell the budget of such a group. Where groups are many, the ones
drawn are spread evenly over the budgets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.plans import Plan
from sartor.report import page, plots

Array = NDArray[Any]

_MOST_CURVES = 6
_POINTS = 12
_LEAST_DELTA = 1e-12


def drawn(plan: Plan) -> list[int]:
    """The groups of a plan whose curves may be drawn, at most six."""
    own = [row.start for row in plan.view.rows() if plan.view.shows_spent(row)]
    finite = [group for group in own if np.isfinite(plan.epsilon[group])]
    if len(finite) <= _MOST_CURVES:
        return finite
    return [finite[i] for i in np.linspace(0, len(finite) - 1, _MOST_CURVES).round().astype(int)]


def spend_figure(plan: Plan, steps: int) -> page.Block:
    """What each group has spent after so many of the steps taken."""
    at = np.unique(np.linspace(0, steps, _POINTS).round().astype(int))
    spent = np.array([plan.spent_after(int(step)) for step in at])
    caption = "Epsilon spent over the steps, per group; it never passes the group's budget."
    form: tuple[Callable[[float], str], str] = (lambda step: f"{step:,.0f}", ".4f")
    return _figure(plan, at, lambda group: spent[:, group], x="steps", y="epsilon spent", caption=caption, cells=form)


def profile_figure(plan: Plan) -> page.Block:
    """The privacy profile of each group: delta for every epsilon."""
    groups = drawn(plan)
    most = float(plan.epsilon[groups].max()) * 1.5 if groups else 1.0
    at = np.linspace(0, most, 31)
    known = {group: plan.profile(group, at) for group in groups}
    caption = "The privacy profile of each group: the delta that holds at every epsilon. A budget is one point of its group's curve."
    form: tuple[Callable[[float], str], str] = (lambda value: f"{value:.2f}", ".3g")
    return _figure(plan, at, lambda group: _floored(known[group]), x="epsilon", y="delta", caption=caption, cells=form, logarithmic=True)


def _floored(delta: Array) -> Array:
    """Deltas below anything that anybody asks for are not drawn: there they would only stretch the axis."""
    return np.where(delta >= _LEAST_DELTA, delta, np.nan)


def label(plan: Plan, group: int) -> str:
    """How a group is called beside its curve."""
    return f"epsilon {plan.epsilon[group]:g}"


def _figure(
    plan: Plan,
    at: Array,
    values: Callable[[int], Array],
    *,
    x: str,
    y: str,
    caption: str,
    cells: tuple[Callable[[float], str], str],
    logarithmic: bool = False,
) -> page.Block:
    groups = drawn(plan)
    if not groups:
        return page.paragraph("No group is large enough for its curve to be drawn by itself.")
    curves = [plots.Line(label(plan, group), at, values(group)) for group in groups]
    svg = plots.lines(curves, x=x, y=y, logarithmic=logarithmic, zero=not logarithmic)
    left = int(plan.holders.sum() - plan.holders[groups].sum())
    if left:
        caption += f" Groups of {left:,} holders are not drawn: they are small, public, or too many for one plot."
    shown = range(0, len(at), max(1, len(at) // 10))
    rows = [[cells[0](float(at[i])), *(_cell(float(values(group)[i]), cells[1]) for group in groups)] for i in shown]
    return page.figure(svg, caption, page.table([x, *(label(plan, group) for group in groups)], rows))


def _cell(value: float, form: str) -> str:
    return f"below {_LEAST_DELTA:g}" if np.isnan(value) else format(value, form)
