"""`sartor pate`: teach an ensemble by everyone's budget, let it label public data, train a student on the labels."""

from __future__ import annotations

import json as jsonlib
import os
import secrets
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sartor import Budgets
from sartor.cli.output import budgets_from, print_json, say, show, working
from sartor.errors import SartorError

_EPOCHS = {"mnist": 20, "digits": 40, "adult": 1}


def pate(
    dataset: Annotated[str, typer.Option(help="digits, mnist or adult.")] = "digits",
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data set's files are; otherwise $SARTOR_DATA or data.")] = None,
    variant: Annotated[str, typer.Option(help="standard, upsample, weight or vanish.")] = "weight",
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas.")] = None,
    share: Annotated[str | None, typer.Option(help="Share of the holders in each group, separated by commas.")] = None,
    delta: Annotated[str | None, typer.Option(help="Delta, one for all or one per group.")] = None,
    budgets: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of holder,epsilon[,delta] or holder,level instead.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="TOML that maps levels to numbers.")] = None,
    reserve: Annotated[float, typer.Option(help="Share of every budget kept for later releases.")] = 0.0,
    teachers: Annotated[int | None, typer.Option(help="Number of teachers (250; 25 for digits).")] = None,
    aggregator: Annotated[str, typer.Option(help="confident or gnmax.")] = "confident",
    noise: Annotated[float | None, typer.Option(help="Deviation of the noise on every count, in votes.")] = None,
    threshold: Annotated[float | None, typer.Option(help="confident: votes that must agree.")] = None,
    threshold_noise: Annotated[float | None, typer.Option(help="confident: deviation of the noise of that test.")] = None,
    tune: Annotated[bool, typer.Option("--tune", help="Let all groups run out together by the true cost of votes.")] = False,
    bound: Annotated[str, typer.Option(help="independent, or dependent (sensitive: for research).")] = "independent",
    accounting: Annotated[str, typer.Option(help="exact, fine or paper (orders 2 to 50).")] = "",
    labels: Annotated[int | None, typer.Option(min=1, help="How many labels are enough.")] = None,
    go_on: Annotated[bool, typer.Option("--go-on", help="Go on without the groups that are out (weight, vanish).")] = False,
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each teacher, for networks.")] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that train teachers; otherwise one for each core.")] = None,
    keep: Annotated[str | None, typer.Option(metavar="DIR", help="Keep finished teachers here (sensitive), to go on after a stop.")] = None,
    votes: Annotated[str | None, typer.Option(metavar="FILE", help="Keep votes and account here, or aggregate those in it again.")] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the labels here, as a CSV of query,label.")] = None,
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Label public data by an ensemble in which everyone counts by their own budget."""
    from sartor.pate import plan as plan_pate
    from sartor.pate.problems import problem
    from sartor.pate.voting import check_options
    from sartor.sgd.stream import Stream

    work = problem(dataset, data)
    own = budgets_from(
        epsilon=epsilon or (None if budgets is not None else "1,2,3"),
        share=share or (None if budgets is not None or epsilon is not None else "0.34,0.43,0.23"),
        holders=None if budgets is not None else len(work.private),
        delta=delta or (None if budgets is not None else "1e-5"),
        budgets=budgets,
        policy=policy,
        reserve=reserve,
        seed=seed,
    )
    if len(own) != len(work.private):
        raise SartorError(f"there are {len(own):,} budgets for {len(work.private):,} private records.")
    count = (25 if dataset == "digits" else 250) if teachers is None else teachers
    kind = _aggregator(dataset, count, aggregator, noise, threshold, threshold_noise)
    plan = plan_pate(own, variant, teachers=count, aggregator=kind, tune=tune)  # type: ignore[arg-type]
    options = {"bound": bound, "accountant": _accountant(accounting), "labels": labels, "go_on": go_on}
    check_options(plan, bound, go_on, _accountant(accounting))
    for path in (votes, out):
        if path is not None and not os.access(Path(path).resolve().parent, os.W_OK):
            raise SartorError(f"{path} cannot be written: there is no such folder, or it is not yours.")
    stored = _votes(work, own, plan, {"epochs": epochs, "workers": workers, "folder": keep, "seed": seed}, votes)
    found = stored.aggregate(**options, stream=None if seed is None else Stream(seed))
    if out is not None:
        _write_labels(Path(out), found)
    report = _report(work, stored, found, seed)
    if json:
        print_json(report)
        return
    _show(work, report)


def _aggregator(dataset: str, teachers: int, kind: str, noise: float | None, threshold: float | None, threshold_noise: float | None) -> Any:
    """The paper's parameters (its table 4), in the size of this ensemble, unless told otherwise."""
    from sartor.pate import Confident, GNMax

    per = teachers / 250
    sigma = 40 * per if noise is None else noise
    if kind == "gnmax":
        if threshold is not None or threshold_noise is not None:
            raise SartorError("--threshold and --threshold-noise go with the confident aggregator.")
        return GNMax(sigma)
    if kind != "confident":
        raise SartorError(f'--aggregator is confident or gnmax, not "{kind}"; the interactive one needs a student, in Python.')
    usual = (300 * per, 200 * per) if dataset == "adult" else (200 * per, 150 * per)
    return Confident(sigma, usual[0] if threshold is None else threshold, usual[1] if threshold_noise is None else threshold_noise)


def _accountant(name: str) -> Any:
    from sartor.pate import Accountant

    known = {"": None, "exact": Accountant(), "fine": Accountant.fine(), "paper": Accountant.paper()}
    if name not in known:
        raise SartorError(f'--accounting is exact, fine or paper, not "{name}".')
    return known[name]


def _votes(work: Any, own: Budgets, plan: Any, options: dict[str, Any], path: str | None) -> Any:
    """The votes in a file, or those of an ensemble that is taught now."""
    from sartor import pate
    from sartor.pate.problems import usual_teachers

    if path is not None and Path(path).exists():
        stored = pate.SavedVotes(path)
        if stored.of != work.name:
            raise SartorError(f"{path} holds votes on {stored.of}, not on {work.name}.")
        if plan.to_json() != stored.plan.to_json():
            raise SartorError(f"{path} holds the votes of another plan: repeat the options that it was made with, or choose another file.")
        return stored
    key = None if options["seed"] is None else str(options["seed"]).encode()
    folder = None if options["folder"] is None else Path(options["folder"])
    if folder is not None:
        key, own = _who(folder, own, options["seed"])
        plan.groups_of(own)
        options = {**options, "folder": folder / "teachers"}
    placed = pate.partition(plan, own, key)
    settings = {**options, "epochs": options["epochs"] or _EPOCHS[work.name]}
    cast = usual_teachers(work, **settings).votes(work.private, placed.slices(), work.queries)
    if path is not None:
        return pate.SavedVotes.create(path, plan, cast, work.classes, of=work.name)
    return _Unsaved(plan, cast, work.classes)


def _who(folder: Path, own: Budgets, seed: int | None) -> tuple[bytes, Budgets]:
    """The key of the places and who has which budget, kept beside the teachers so that a stopped run finds everyone where they were."""
    from sartor.documents import read_json
    from sartor.files import write_private

    path = folder / "who.json"
    if path.exists():
        kept = read_json(path, "the record of who is where")
        return bytes.fromhex(kept["key"]), Budgets(kept["epsilon"], delta=kept["delta"], reserve=own.reserve)
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    key = secrets.token_bytes(32) if seed is None else str(seed).encode()
    document = {"key": key.hex(), "epsilon": own.epsilon.tolist(), "delta": own.delta.tolist()}
    write_private(path, jsonlib.dumps(document).encode())
    return key, own


class _Unsaved:
    """Votes that are used once and forgotten."""

    def __init__(self, plan: Any, votes: Any, classes: int) -> None:
        self.plan, self.votes, self.classes = plan, votes, classes
        self.account: Any = None

    def aggregate(self, **options: Any) -> Any:
        """Labels of the queries."""
        from sartor.pate import aggregate

        found = aggregate(self.plan, self.votes, self.classes, **options)
        self.account = found.account
        return found


def _write_labels(path: Path, found: Any) -> None:
    """The labels that were given, before anything else can fail: people have paid for them."""
    lines = [f"{query},{label}" for query, label in enumerate(found.labels) if label >= 0]
    try:
        path.write_text("\n".join(["query,label", *lines]) + "\n")
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None


def _report(work: Any, stored: Any, found: Any, seed: int | None) -> dict[str, Any]:
    """What came out, and what everything made of these votes has cost in all."""
    from sartor.pate.student import train_student

    given = found.labels >= 0
    right = found.labels[given] == work.truth.numpy()[given]
    student = None
    if given.any():
        with working("training the student"):
            student = train_student(_student(work), work.queries, found.labels, work.test, augment=len(work.shape) > 1, seed=seed).accuracy
    account = stored.account.to_json()
    keys = ("epsilon", "holders", "sensitivity", "spent")
    return {
        "variant": stored.plan.variant,
        "labels": int(given.sum()),
        "queries": int(found.asked.sum()),
        "label_accuracy": float(np.mean(right)) if given.any() else None,
        "student_accuracy": student,
        "teachers": stored.plan.teachers,
        "bound": account["bound"],
        "sensitive": account["sensitive"],
        "private": account["private"],
        "groups": [{key: group[key] for key in keys} for group in account["groups"]],
    }


def _student(work: Any) -> Any:
    from functools import partial

    from sartor.pate.networks import teacher_network
    from sartor.pate.problems import usual_estimator

    return partial(teacher_network, work.shape, work.classes) if len(work.shape) > 1 else usual_estimator()


def _show(work: Any, report: dict[str, Any]) -> None:
    from rich import box
    from rich.table import Table

    def share(value: float | None) -> str:
        return "-" if value is None else f"{value:.1%}"

    table = Table(box=box.SIMPLE_HEAD)
    for heading in ("epsilon", "holders", "votes that one holder moves", "spent"):
        table.add_column(heading, justify="right")
    for group in report["groups"]:
        table.add_row(*(_text(group[key]) for key in ("epsilon", "holders", "sensitivity", "spent")))
    show(
        f"{report['variant']}: {report['teachers']} teachers labelled {report['labels']:,} of {report['queries']:,} queries; "
        f"{share(report['label_accuracy'])} of the labels are right, and a student trained on them alone reaches "
        f"{share(report['student_accuracy'])} on {len(work.test):,} public rows."
    )
    show(table)
    if report["sensitive"]:
        say("the number of labels and the spends follow the private votes: do not show them; --bound independent has a guarantee.")
    else:
        show("Voting stopped before anyone would have spent more than they allowed.")


def _text(value: Any) -> str:
    if isinstance(value, list):
        return " to ".join(_text(end) for end in value)
    return f"{value:,}" if isinstance(value, int) else value if isinstance(value, str) else f"{value:.4g}"
