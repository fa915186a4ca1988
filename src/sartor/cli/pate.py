"""`sartor pate`: teach an ensemble by everyone's budget, let it label public data, train a student on the labels."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer

from sartor import Budgets
from sartor.cli.output import budgets_from, print_json, refuse_inputs, say, show, working
from sartor.confidential import text
from sartor.errors import SartorError
from sartor.run.files import write_public

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
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep teachers, votes and account here (sensitive): to go on after a stop, and to label again out of what is left.",
        ),
    ] = None,
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the labels here, as a CSV of query,label.")] = None,
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Label public data by an ensemble in which everyone counts by their own budget."""
    from sartor.pate import plan as plan_pate
    from sartor.pate.labelling import labelling
    from sartor.pate.voting import check_options
    from sartor.run.stream import Stream

    work = labelling(dataset, data)
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
    plan = plan_pate(own, variant, teachers=count, aggregator=kind, tune=tune)
    options = {"bound": bound, "accountant": _accountant(accounting), "labels": labels, "go_on": go_on}
    check_options(plan, bound, go_on, _accountant(accounting))
    if out is not None:
        _check_out(Path(out), keep, budgets, policy)
    cast = _cast(work, own, plan, {"epochs": epochs, "workers": workers, "seed": seed}, keep, drawn=budgets is None)
    found = cast.aggregate(**options, stream=None if seed is None else Stream(seed))
    if out is not None and len(found):  # what stands there is not replaced by nothing
        _write_labels(Path(os.path.realpath(out)), found, keep)
    report = _report(work, cast, found, seed)
    if out is not None and not len(found):
        say(f"{_no_label(report)}, and nothing was written to {out}.")
    elif labels is not None and len(found) < labels:
        end = "every query was asked" if found.asked.all() else "what the budgets allow is used up"
        say(f"{len(found):,} of the {labels:,} labels that were wanted were given: {end}.")
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


def _check_out(path: Path, keep: str | None, *inputs: str | None) -> None:
    """Whether labels can be written there, and nothing is lost by it: to be known before anybody has paid for them."""
    from sartor.pate.folder import lies_in

    if keep is not None and lies_in(path, keep):
        raise SartorError(f"--out {path} is the folder of the ensemble or a file of it: write the labels elsewhere.")
    real = Path(os.path.realpath(path))
    refuse_inputs(path, *inputs)
    if os.path.lexists(real) and not (os.path.isfile(real) and os.access(real, os.W_OK)):
        raise SartorError(f"--out {path} is not a file that can be written: give another.")
    try:
        with tempfile.NamedTemporaryFile(dir=real.parent, prefix=f".{real.name}."):
            pass
    except OSError as error:
        raise SartorError(f"--out {path} cannot be written: {error.strerror}.") from None


class _Once:
    """Votes that are in memory alone, aggregated once, and gone."""

    def __init__(self, plan: Any, votes: Any, classes: int) -> None:
        self.plan, self._votes, self._classes = plan, votes, classes
        self.account: Any = None

    def aggregate(self, **options: Any) -> Any:
        """Labels of the queries."""
        from sartor.pate import aggregate

        votes, self._votes = self._votes, None
        found = aggregate(self.plan, votes, self._classes, **options)
        self.account = found.account
        return found


def _cast(work: Any, own: Budgets, plan: Any, options: dict[str, Any], keep: str | None, *, drawn: bool) -> Any:
    """An ensemble that has voted: in its folder, where finished teachers are found again, or in memory."""
    from sartor import pate
    from sartor.pate.labelling import usual_teachers

    key = None if options["seed"] is None else str(options["seed"]).encode()
    teachers = usual_teachers(work, **{**options, "epochs": options["epochs"] or _EPOCHS[work.name]})
    if keep is None:
        votes = teachers.votes(work.private, pate.partition(plan, own, key).slices(), work.queries)
        return _Once(plan, votes, work.classes)
    if pate.EnsembleFolder.is_in(keep):
        folder = pate.EnsembleFolder(keep)
        folder.check_same(plan, None if drawn else own)  # who has which budget was drawn by lot: as it was drawn first
    else:
        folder = pate.EnsembleFolder.create(keep, plan, own, key=key)
    folder.teach(teachers, work.private, work.queries, work.classes)
    return folder


def _write_labels(path: Path, found: Any, keep: str | None) -> None:
    """The labels that were given, before anything else can fail: people have paid for them."""
    lines = [f"{query},{label}" for query, label in enumerate(found.labels) if label >= 0]
    try:
        write_public(path, "\n".join(["query,label", *lines]) + "\n")
    except SartorError as error:
        if keep is None:
            raise
        raise SartorError(
            f"{str(error)[:-1]}; the labels are paid for and kept: sartor.pate.EnsembleFolder({keep!r}).labels[-1]."
        ) from None


def _report(work: Any, cast: Any, found: Any, seed: int | None) -> dict[str, Any]:
    """What came out, and what everything made of these votes has cost in all."""
    from sartor.pate.student import train_student

    given = found.labels >= 0
    right = found.labels[given] == work.truth.numpy()[given]
    student = None
    if given.any():
        with working("training the student"):
            student = train_student(_student(work), work.queries, found.labels, work.test, augment=len(work.shape) > 1, seed=seed).accuracy
    account = cast.account.to_json()
    keys = ("epsilon", "holders", "sensitivity", "spent")
    return {
        "variant": cast.plan.variant,
        "labels": int(given.sum()),
        "queries": int(found.asked.sum()),
        "label_accuracy": float(np.mean(right)) if given.any() else None,
        "student_accuracy": student,
        "teachers": cast.plan.teachers,
        "bound": account["bound"],
        "sensitive": account["sensitive"],
        "private": account["private"],
        "groups": [{key: group[key] for key in keys} for group in account["groups"]],
    }


def _no_label(report: dict[str, Any]) -> str:
    """Why there is no label, as the beginning of a sentence."""
    if report["queries"]:
        return f"no label was given: too few teachers agreed on each of the {report['queries']:,} queries that were asked"
    return "no label was given: what the budgets allow is used up"


def _student(work: Any) -> Any:
    from functools import partial

    from sartor.pate.labelling import usual_estimator
    from sartor.pate.networks import teacher_network

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
        table.add_row(*(text(group[key]) for key in ("epsilon", "holders", "sensitivity", "spent")))
    show(
        f"{_no_label(report)}."
        if not report["labels"]
        else f"{report['variant']}: {report['teachers']} teachers labelled {report['labels']:,} of {report['queries']:,} queries; "
        f"{share(report['label_accuracy'])} of the labels are right, and a student trained on them alone reaches "
        f"{share(report['student_accuracy'])} on {len(work.test):,} public rows."
    )
    show(table)
    if report["sensitive"]:
        say("the number of labels and the spends follow the private votes: do not show them; --bound independent has a guarantee.")
    else:
        show("Voting stopped before anyone would have spent more than they allowed.")
