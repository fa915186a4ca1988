"""`sartor account`: what a plan, or a mechanism, costs by both accountants."""

from __future__ import annotations

from typing import Annotated, Any

import numpy as np
import typer

from sartor import confidential
from sartor.accounting import Accountant, Bounds, SampledGaussian, epsilon, spend
from sartor.cli.output import print_json, show, working
from sartor.errors import SartorError
from sartor.numbers import from_json_number, to_json_number
from sartor.plans.plan import Plan, read_document


def account(
    plan: Annotated[str | None, typer.Argument(metavar="[PLAN.json]", help="A plan, as `sartor plan --out` writes it.")] = None,
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
        document = read_document(plan)
        with working("accounting"):
            rows = _of_merged(document, steps) if document.get("merged") else _of_plan(Plan.from_json(document), steps)
        _print_groups(rows, json)
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
    own = plan.spent_after(end)
    taken = np.clip(end - plan.first, 0, plan.last - plan.first)
    other = np.where(np.isfinite(plan.epsilon), 0.0, own)
    finite = np.isfinite(plan.epsilon)
    name: Accountant = "rdp" if plan.accountant == "pld" else "pld"
    delta = plan.delta * (1 - plan.reserve)
    other[finite] = spend(plan.rate[finite], plan.noise_multipliers[finite], taken[finite], delta[finite], name)
    both = {plan.accountant: own, name: other}
    rows = []
    for run in confidential.rows(plan.holders):
        columns = {"epsilon": plan.epsilon, "delta": plan.delta, "rdp": both["rdp"], "pld": both["pld"]}
        row: dict[str, Any] = {key: confidential.shown(values, run, plan.holders) for key, values in columns.items()}
        rows.append({**row, "holders": int(plan.holders[run].sum())})
    return rows


def _of_merged(document: dict[str, Any], steps: int | None) -> list[dict[str, Any]]:
    """A document with merged rows: the costliest mechanism that each row's ranges allow."""
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
    if np.isinf(ends["epsilon"][0]):
        cost = {"rdp": np.inf, "pld": np.inf}
    else:
        numbers = (worst.rate, worst.noise_multiplier, worst.steps, delta)
        cost = {"rdp": float(spend(*numbers, "rdp")[0]), "pld": float(spend(*numbers, "pld")[0])}
    return {"epsilon": _shown(ends["epsilon"]), "delta": _shown(ends["delta"]), **cost, "holders": int(group["holders"])}


def _ends(value: Any) -> tuple[float, float]:
    pair = value if isinstance(value, list) else [value, value]
    return from_json_number(pair[0]), from_json_number(pair[1])


def _shown(ends: tuple[float, float]) -> float | tuple[float, float]:
    return ends[0] if ends[0] == ends[1] else ends


def _print_groups(rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        groups = [
            {key: [to_json_number(v) for v in value] if isinstance(value, tuple) else _plain(value) for key, value in row.items()}
            for row in rows
        ]
        print_json({"groups": groups})
        return
    from rich import box
    from rich.table import Table

    ranges = any(isinstance(row["epsilon"], tuple) for row in rows)
    title = "what the plan costs, by both accountants" + (" (where a row is a range, at most)" if ranges else "")
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in ("epsilon", "delta", "holders", "rdp", "pld"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in ("epsilon", "delta", "holders", "rdp", "pld")))
    show(table)


def _plain(value: Any) -> Any:
    return value if isinstance(value, int) else to_json_number(value)


def _cell(value: Any) -> str:
    if isinstance(value, tuple):
        return f"{value[0]:.2g} to {value[1]:.2g}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.5g}"
