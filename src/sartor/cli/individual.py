"""What a run's individual accounts tell: one holder their own, and everybody what is safe to tell."""

from __future__ import annotations

import os
from typing import Any

from sartor.cli.output import print_json, show, working
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.numbers import from_json_number

_STATISTICS = ("mean", "quantiles", "histogram", "groups", "correlation")


def individual(run: str | None, holder: str | None, release: str | None, epsilon: float | None, json: bool) -> None:
    """Print one holder's statement, or release statistics of all accounts out of the reserve."""
    if run is None or not os.path.isdir(run):
        raise SartorError("--holder and --release are of a run: give its folder, as `sartor train --out` writes it.")
    if (holder is None) == (release is None):
        raise SartorError("give one of --holder, for one person, and --release with --epsilon, for everybody.")
    if holder is not None:
        if epsilon is not None:
            raise SartorError("--epsilon goes with --release: a statement for one holder costs nothing.")
        _statement(run, holder, json)
        return
    assert release is not None
    if epsilon is None:
        raise SartorError("--release costs everybody something out of the reserve: say how much with --epsilon.")
    _release(run, release, epsilon, json)


def _statement(run: str, holder: str, json: bool) -> None:
    from sartor.individual.statement import statement
    from sartor.report.folder import RunFolder

    folder = RunFolder(run)
    reading, _, _ = folder.reading()
    budgets = folder.budgets()
    who: int | str = holder if budgets.names is not None else _place(holder)
    found = statement(folder.plan(), budgets, reading.epsilon, who, private=bool(folder.account()["private"]))
    if json:
        print_json({**found.to_json(), "kind": reading.kind, "steps": reading.steps})
    else:
        show(str(found))


def _place(holder: str) -> int:
    if not holder.isdecimal():
        raise SartorError("the holders of this run have no names: give a place, from 0 on.")
    return int(holder)


def _release(run: str, names: str, epsilon: float, json: bool) -> None:
    from sartor.individual.release import even_bins
    from sartor.individual.request import QUANTILES, Figures, Request
    from sartor.individual.reserve import Reserve
    from sartor.report.folder import RunFolder

    asked = [name.strip() for name in names.split(",") if name.strip()]
    unknown = [name for name in asked if name not in _STATISTICS]
    if unknown or not asked:
        what = f', not "{unknown[0]}"' if unknown else ""
        raise SartorError(f"--release takes some of {', '.join(_STATISTICS)}, separated by commas{what}.")
    folder = RunFolder(run)
    reading, correct, loss = folder.reading()
    plan = folder.plan()
    if not bool(folder.account()["private"]):
        raise SartorError("this run was seeded or had no noise, so it is not private, and noise on its accounts would protect nobody.")
    request = Request(
        mean="mean" in asked,
        quantiles=QUANTILES if "quantiles" in asked else (),
        histogram=even_bins(plan, 20) if "histogram" in asked else (),
        groups="budget" if "groups" in asked else None,
        correlation="correlation" in asked,
    )
    figures = Figures(reading.epsilon, correct, loss, plan.groups_of(folder.budgets()))
    with working("releasing"):
        found = Reserve(folder.reserve, plan).release(figures, request, epsilon=epsilon)
    document = found.to_json()
    if json:
        print_json(document)
        return
    _show(document)


def _show(document: dict[str, Any]) -> None:
    rows = [["mean", f"{document['mean']:.4g}"]] if "mean" in document else []
    rows += [[f"quantile {at}", f"{value:.4g}"] for at, value in document.get("quantiles", {}).items()]
    if "correlation" in document:
        value = document["correlation"]
        rows.append(["correlation with the logarithm of the loss", "lost in the noise" if value is None else f"{value:.3f}"])
    cost = f"cost everybody epsilon {document['epsilon']:g} at delta {document['delta']:.3g}, out of the reserve"
    show(f"Accounts of all holders, with noise; this {cost}, once: the same question gets the same answer.")
    if rows:
        show(Table(("of the accounts", "epsilon"), rows, "what gradients really cost (readings, no guarantee)"))
    if "histogram" in document:
        edges, counts = document["histogram"]["edges"], document["histogram"]["counts"]
        cells = [[f"{low:.3g} to {high:.3g}", f"{count:,.0f}"] for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)]
        show(Table(("epsilon", "holders"), cells, "how many holders spent how much"))
    if "groups" in document:
        names = list(document["groups"][0])
        cells = [[_cell(row[name]) for name in names] for row in document["groups"]]
        show(Table(names, cells, "how the groups fare"))


def _cell(value: Any) -> str:
    if value is None:
        return "lost in the noise"
    if isinstance(value, list):
        return " to ".join(_cell(end) for end in value)
    return f"{value:,}" if isinstance(value, int) else f"{from_json_number(value):.4g}" if not isinstance(value, str) else value
