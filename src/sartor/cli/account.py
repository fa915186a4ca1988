"""`sartor account`: what a plan, or a mechanism, costs by both accountants, and what training by record costs a person who owns several."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sartor import confidential
from sartor.accounting import Bounds, SampledGaussian, SampledRecords, accountants, spend, spend_on
from sartor.accounting import epsilon as cost_of
from sartor.cli.individual import Asked, individual
from sartor.cli.output import print_json, show, working
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.numbers import from_json_number, several, to_json_number
from sartor.plans.document import is_by_holder, read
from sartor.plans.persons import ACCOUNTANT, COINS, check_records, entering, spent_by_person
from sartor.plans.plan import Plan
from sartor.report.seal import check

_NO_PLAN = "this is not a plan: a number is missing, of the wrong type or out of range."


def account(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan, as `sartor plan --out` writes it, or the folder of a run.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Rate at which a holder is drawn.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over the clip.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps; with a plan, its first so many.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta.")] = None,
    records: Annotated[
        int | None, typer.Option(help="With a plan that is trained by record: what a person spends who owns so many records.")
    ] = None,
    holder: Annotated[
        str | None, typer.Option(metavar="ID", help="With a run's folder: the statement for one holder, by name or place; for them alone.")
    ] = None,
    release: Annotated[
        str | None,
        typer.Option(help="With a run's folder: some of mean, quantiles, histogram, groups and correlation of all accounts, with noise."),
    ] = None,
    by: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Groups of --release: by budget (default), class, or a column of the run's table.")
    ] = None,
    categories: Annotated[
        str | None, typer.Option(help="All that --by COLUMN may hold, separated by commas, known without looking; or the schema has them.")
    ] = None,
    epsilon: Annotated[float | None, typer.Option(help="What --release costs everybody, out of the reserve.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a plan, or one mechanism, costs by both accountants; or what a run's individual accounts tell."""
    mechanism = (rate, noise_multiplier, delta)
    if any(value is not None for value in (holder, release, by, categories, epsilon)):
        if any(value is not None for value in (*mechanism, steps, records)):
            raise SartorError("--holder, --release and --epsilon are of a run as it went: give them with its folder alone.")
        if (by is not None or categories is not None) and release is None:
            raise SartorError("--by and --categories say which groups --release tells of: give it with them.")
        individual(plan, holder, None if release is None else Asked.read(release, by, categories), epsilon, json)
        return
    if records is not None:
        if plan is None:
            raise SartorError("--records asks what a plan costs a person who owns so many records: give a plan, or the folder of a run.")
        check_records(records)
    if plan is not None:
        if any(value is not None for value in mechanism):
            raise SartorError("give either a plan or --rate, --noise-multiplier, --steps and --delta.")
        if os.path.isdir(plan):
            check(Path(plan))
            plan = os.path.join(plan, "plan.json")
        document = read(plan)
        if records is not None:
            _print_persons(_persons(document, steps, records), records, is_by_holder(document), json)
            return
        with working("accounting"):
            rows = _of_merged(document, steps) if document.get("merged") else _of_plan(Plan.from_json(document), steps)
        _print_groups(rows, _records(document), json)
        return
    if rate is None or noise_multiplier is None or steps is None or delta is None:
        raise SartorError("give a plan, or all of --rate, --noise-multiplier, --steps and --delta.")
    _print_mechanism(_exposure(rate, noise_multiplier, steps), delta, json)


def _exposure(rate: float, noise_multiplier: float, steps: int) -> SampledGaussian:
    try:
        return SampledGaussian(rate, noise_multiplier, steps)
    except ValueError as error:
        raise SartorError(str(error)) from error


def _print_mechanism(exposure: SampledGaussian, delta: float, json: bool) -> None:
    if not 0 < delta < 1:
        raise SartorError(f"delta must lie strictly between 0 and 1, not {delta:g}.")
    with working("accounting"):
        rdp, pld = cost_of(exposure, delta, "rdp").upper, cost_of(exposure, delta, "pld")
    if json:
        inside = {
            "rate": exposure.rate,
            "noise_multiplier": to_json_number(exposure.noise_multiplier),
            "steps": exposure.steps,
            "delta": delta,
        }
        print_json({**inside, "rdp": to_json_number(rdp), "pld": _as_json(pld)})
        return
    show(
        f"{several(exposure.steps, 'step')} at rate {exposure.rate:g} and noise multiplier {exposure.noise_multiplier:g}, delta {delta:g}, "
        f"cost{'s' if exposure.steps == 1 else ''}\n"
        f"  epsilon {pld.upper:.4f} by privacy-loss distributions (proven between {pld.lower:.4f} and {pld.upper:.4f})\n"
        f"  epsilon {rdp:.4f} by Rényi divergences"
    )


def _as_json(bounds: Bounds) -> dict[str, Any]:
    return {name: to_json_number(value) for name, value in bounds._asdict().items()}


def _of_plan(plan: Plan, steps: int | None) -> list[dict[str, Any]]:
    end = plan.steps if steps is None else steps
    spent = {name: plan.spent_after(end, name) for name in accountants.names()}
    view = plan.view
    return [
        {
            "epsilon": view.value(plan.epsilon, row),
            "delta": view.value(plan.delta, row),
            **{name: view.spent(spent[name], row) for name in accountants.names()},
            "holders": view.people(row),
        }
        for row in view.rows()
    ]


def _of_merged(document: dict[str, Any], steps: int | None) -> list[dict[str, Any]]:
    """A document with merged rows: what the costliest mechanism that each row's ranges allow costs, as the row may show it."""
    return [
        {
            "epsilon": row.budget,
            "delta": row.delta,
            **{name: row.shown(float(spend(*row.mechanism, name)[0])) for name in accountants.names()},
            "holders": row.holders,
        }
        for row in _rows(document, steps)
    ]


@dataclass(frozen=True)
class _Row:
    """A row of a document as it may be shown, and the costliest mechanism that its ranges allow, with the least delta."""

    budget: confidential.Shown
    delta: confidential.Shown
    holders: int
    worst: SampledGaussian
    at: float
    merged: bool
    own: bool

    @property
    def mechanism(self) -> tuple[float, float, int, float]:
        return self.worst.rate, self.worst.noise_multiplier, self.worst.steps, self.at

    def shown(self, cost: float) -> confidential.Shown:
        """What the mechanism costs, beside the budget; public records, who asked for no protection, have none."""
        public = np.isinf(self.budget[0] if isinstance(self.budget, tuple) else self.budget)
        value = np.inf if public else cost
        return confidential.spend_beside(self.budget, (value, value), merged=self.merged, own=self.own)

    def shown_of_person(self, records: int) -> confidential.Shown:
        """What the mechanism costs a person who owns so many records; it follows from what the row shows, and tells no more."""
        if records == 1:
            return self.shown(float(spend(*self.mechanism, ACCOUNTANT)[0]))
        person = SampledRecords(records, self.worst.rate, self.worst.noise_multiplier, self.worst.steps)
        return self.shown(float(spend_on([person], self.at, ACCOUNTANT)[0]))


def _rows(document: dict[str, Any], steps: int | None) -> list[_Row]:
    if document.get("filter") is not None:
        raise SartorError(
            "this document shows groups of fewer than 10 holders merged, from which no filter can be judged; give the plan with every "
            "group (plan-all.json in the folder of a run)."
        )
    try:
        whole = int(from_json_number(document["steps"]))
        reserve = from_json_number(document.get("reserve", 0.0))
        taken = whole if steps is None else steps
        rows = [_row(group, whole, taken, reserve) for group in document["groups"]]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError):
        raise SartorError(_NO_PLAN) from None
    if not 0 <= taken <= whole:
        raise SartorError(f"the plan has {whole} steps: what is spent after {taken} is not defined.")
    return rows


def _row(group: dict[str, Any], whole: int, taken: int, reserve: float) -> _Row:
    first, last = int(group.get("first", 0)), int(group.get("last", whole))
    ends = {key: _ends(group[key]) for key in ("epsilon", "delta", "rate", "noise_multiplier")}
    delta = ends["delta"][0] * (1 - reserve)
    worst = SampledGaussian(min(ends["rate"][1], 1.0), ends["noise_multiplier"][0], int(np.clip(taken - first, 0, last - first)))
    if not (0 < delta < 1 and ends["rate"][0] >= 0):
        raise ValueError
    merged = any(isinstance(group[key], list) for key in ("epsilon", "delta"))
    own = not merged and not isinstance(group["spent"], list)
    return _Row(_shown(ends["epsilon"]), _shown(ends["delta"]), int(group["holders"]), worst, delta, merged, own)


def _persons(document: dict[str, Any], steps: int | None, records: int) -> list[dict[str, Any]]:
    """Rows with what one record spends and what a person does who owns so many, by the accountant that can judge both."""
    with working("accounting"):
        if not document.get("merged"):
            return _persons_of_plan(Plan.from_json(document), steps, records)
        rows = _rows(document, steps)
        records = 1 if is_by_holder(document) else records
        if records > 1 and _has_coins(document):
            raise SartorError(COINS)
        return [
            {
                "epsilon": row.budget,
                "delta": row.delta,
                "holders": row.holders,
                "spent": row.shown_of_person(1),
                "spent_by_person": row.shown_of_person(records),
            }
            for row in rows
        ]


def _persons_of_plan(plan: Plan, steps: int | None, records: int) -> list[dict[str, Any]]:
    """The groups of a plan; of merged ones, what the costliest mechanism costs that may be shown of them, and not their own figures.

    Those would tell their budgets, one number of records after another, however wide each range is.
    """
    end, view = plan.steps if steps is None else steps, plan.view
    spent, person = plan.spent_after(end, ACCOUNTANT), np.zeros(len(plan))
    alone = [row.start for row in view.rows() if not view.hides(row)]
    person[alone] = spent_by_person(plan, records, end, alone)
    return [
        {
            "epsilon": view.value(plan.epsilon, row),
            "delta": view.value(plan.delta, row),
            "holders": view.people(row),
            "spent": view.spent(spent, row),
            "spent_by_person": _of_hidden(plan, row, end).shown_of_person(entering(plan, records))
            if view.hides(row)
            else view.spent(person, row),
        }
        for row in view.rows()
    ]


def _of_hidden(plan: Plan, row: slice, steps: int) -> _Row:
    """A merged row of a plan, as its document would show it."""
    names = ("epsilon", "delta", "rate", "noise_multiplier")
    values = (plan.epsilon, plan.delta, plan.rate, plan.noise_multipliers)
    shown = {name: confidential.to_json(plan.view.value(value, row)) for name, value in zip(names, values, strict=True)}
    return _row({**shown, "spent": [], "holders": plan.view.people(row)}, plan.steps, steps, plan.reserve)


def _has_coins(document: dict[str, Any]) -> bool:
    """Whether some stage surely has a coin of inclusion; where ranges leave it open, to take everybody in is the costlier."""
    try:
        ends = [_ends(value) for stage in document.get("stages", []) for value in stage["inclusion"]]
    except (KeyError, TypeError, IndexError):
        raise SartorError(_NO_PLAN) from None
    return any(0 < high <= 1 and low < 1 for low, high in ends)


def _ends(value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, list) else [value, value]
    return from_json_number(pair[0]), from_json_number(pair[1])


def _shown(ends: tuple[float, float]) -> confidential.Shown:
    return ends[0] if ends[0] == ends[1] else ends


def _records(document: dict[str, Any]) -> int | None:
    """How many records the holders of a plan have, if they have several."""
    found = document.get("records")
    return found if isinstance(found, int) and not isinstance(found, bool) else None


def _print_groups(rows: list[dict[str, Any]], records: int | None, json: bool) -> None:
    people = sum(row["holders"] for row in rows)
    if json:
        figures = ("epsilon", "delta", *accountants.names())
        groups = [{**{key: confidential.to_json(row[key]) for key in figures}, "holders": row["holders"]} for row in rows]
        print_json({"groups": groups} if records is None else {"holders": people, "records": records, "groups": groups})
        return
    names = ("epsilon", "delta", "holders", "rdp", "pld")
    cells = [[confidential.text(row[name], ".5g") for name in names] for row in rows]
    lent = "" if records is None else f" over {confidential.lent(people, records)}"
    show(Table(names, cells, f"what the plan costs{lent}, by both accountants"))


def _print_persons(rows: list[dict[str, Any]], records: int, by_holder: bool, json: bool) -> None:
    if json:
        groups = [{key: value if key == "holders" else confidential.to_json(value) for key, value in row.items()} for row in rows]
        print_json({"records": records, "unit": "holder" if by_holder else "record", "accountant": ACCOUNTANT, "groups": groups})
        return
    cells = [[confidential.text(value, ".5g") for value in row.values()] for row in rows]
    if by_holder:
        title = f"training by holder spends of a person who owns {records:,} records what it spends of a person who owns one"
    else:
        title = f"what training by record spends of one record, and of a person who owns {records:,}, by privacy-loss distributions"
    show(Table(("epsilon", "delta", "holders", "one record", "a person"), cells, title))
