"""`sartor account`: what a plan, or a mechanism, costs by both accountants."""

from __future__ import annotations

import os
from typing import Annotated, Any

import numpy as np
import typer

from sartor import confidential
from sartor.accounting import Bounds, SampledGaussian, accountants, epsilon, spend
from sartor.cli.output import print_json, show, working
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.numbers import from_json_number, to_json_number
from sartor.plans.document import read
from sartor.plans.plan import Plan


def account(
    plan: Annotated[
        str | None, typer.Argument(metavar="[PLAN]", help="A plan, as `sartor plan --out` writes it, or the folder of a run.")
    ] = None,
    rate: Annotated[float | None, typer.Option(help="Rate at which a holder is drawn.")] = None,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise over the clip.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps; with a plan, its first so many.")] = None,
    delta: Annotated[float | None, typer.Option(help="Delta.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Say what a plan, or one mechanism, costs by both accountants."""
    mechanism = (rate, noise_multiplier, delta)
    if plan is not None:
        if any(value is not None for value in mechanism):
            raise SartorError("give either a plan or --rate, --noise-multiplier, --steps and --delta.")
        document = read(os.path.join(plan, "plan.json") if os.path.isdir(plan) else plan)
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
        rdp, pld = epsilon(exposure, delta, "rdp").upper, epsilon(exposure, delta, "pld")
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
        f"{exposure.steps:,} steps at rate {exposure.rate:g} and noise multiplier {exposure.noise_multiplier:g}, delta {delta:g}, cost\n"
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
    try:
        whole = int(from_json_number(document["steps"]))
        reserve = from_json_number(document.get("reserve", 0.0))
        taken = whole if steps is None else steps
        rows = [_of_row(group, whole, taken, reserve) for group in document["groups"]]
    except (KeyError, TypeError, AttributeError, ValueError, IndexError, OverflowError):
        raise SartorError("this is not a plan: a number is missing, of the wrong type or out of range.") from None
    if not 0 <= taken <= whole:
        raise SartorError(f"the plan has {whole} steps: what is spent after {taken} is not defined.")
    return rows


def _of_row(group: dict[str, Any], whole: int, taken: int, reserve: float) -> dict[str, Any]:
    first, last = int(group.get("first", 0)), int(group.get("last", whole))
    ends = {key: _ends(group[key]) for key in ("epsilon", "delta", "rate", "noise_multiplier")}
    delta = ends["delta"][0] * (1 - reserve)
    worst = SampledGaussian(min(ends["rate"][1], 1.0), ends["noise_multiplier"][0], int(np.clip(taken - first, 0, last - first)))
    if not (0 < delta < 1 and ends["rate"][0] >= 0):
        raise ValueError
    numbers = (worst.rate, worst.noise_multiplier, worst.steps, delta)
    public = np.isinf(ends["epsilon"][0])
    cost = {name: np.inf if public else float(spend(*numbers, name)[0]) for name in accountants.names()}
    budget, merged = _shown(ends["epsilon"]), any(isinstance(group[key], list) for key in ("epsilon", "delta"))
    own = not merged and not isinstance(group["spent"], list)
    return {
        "epsilon": budget,
        "delta": _shown(ends["delta"]),
        **{name: confidential.spend_beside(budget, (value, value), merged=merged, own=own) for name, value in cost.items()},
        "holders": int(group["holders"]),
    }


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
