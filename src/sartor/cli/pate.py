"""`sartor pate`: teach an ensemble by everyone's budget, let it label public data, train a student on the labels."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from sartor.cli.output import flat, print_json, refuse_inputs, say, show, working
from sartor.cli.pate_settings import PateSettings
from sartor.confidential import text
from sartor.errors import SartorError
from sartor.layout import Table
from sartor.run.files import write_public

if TYPE_CHECKING:
    from sartor.budgets import Budgets
    from sartor.pate import EnsembleFolder, Forecast, Labels, PatePlan
    from sartor.pate.labelling import Labelling
    from sartor.pate.teachers import Teachers


@flat
def pate(
    asked: PateSettings,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Label public data by an ensemble in which everyone counts by their own budget."""
    from sartor.pate.labelling import labelling, usual_teachers
    from sartor.pate.voting import check_options
    from sartor.run.stream import Stream

    asked.check()
    work = labelling(asked.dataset, asked.data)
    teachers = usual_teachers(work, model=asked.model, epochs=asked.epochs, workers=asked.workers, seed=asked.seed)
    people = asked.people(len(work.private))
    plan = asked.plan(people, work.classes, len(work.queries))
    check_options(plan, asked.bound, asked.go_on, asked.accountant)
    if asked.out is not None:
        _check_out(Path(asked.out), asked.keep, asked.budgets, asked.policy)
    kept = _kept(asked, plan, people)
    if kept is not None and kept.cut_off:
        say(f"Aggregations that were cut off before their labels were kept: {kept.cut_off}. Each is charged with the most it could cost.")
    repeated = kept is not None and not asked.further and kept.told(**asked.voting, seeded=asked.seed is not None) is not None
    expected = None if repeated else _expected(asked, plan, work, kept)
    _announce(asked, plan, expected)
    cast = _cast(asked, work, teachers, people, plan, kept)
    found = cast.aggregate(**asked.voting, further=asked.further, stream=None if asked.seed is None else Stream(asked.seed))
    if repeated:
        say("These labels were given and paid for before, and nothing further is charged; --further asks for more.")
    if asked.out is not None and len(found):  # what stands there is not replaced by nothing
        _write_labels(Path(os.path.realpath(asked.out)), found, asked.keep)
    report = {**_report(asked, work, cast, found, expected), "repeated": repeated}
    if asked.out is not None and not len(found):
        say(f"{_no_label(report)}, and nothing was written to {asked.out}.")
    elif asked.labels is not None and len(found) < asked.labels:
        end = "every query was asked" if found.asked.all() else "the budgets are exhausted"
        say(f"{len(found):,} of the {asked.labels:,} labels that were wanted were given: {end}.")
    if json:
        print_json(report)
        return
    _show(work, report)


def _kept(asked: PateSettings, plan: PatePlan, people: Budgets) -> EnsembleFolder | None:
    """The ensemble that is kept already, if it is the same."""
    from sartor import pate

    if asked.keep is None or not pate.EnsembleFolder.is_in(asked.keep):
        return None
    folder = pate.EnsembleFolder(asked.keep)
    folder.check_same(plan, None if asked.budgets is None else people)  # who has which budget was drawn by lot: as it was drawn first
    return folder


def _expected(asked: PateSettings, plan: PatePlan, work: Labelling, kept: EnsembleFolder | None) -> Forecast | None:
    """How many queries the budgets pay for, known before any teacher is trained; an error where no student could come of them.

    Where costs follow the votes nobody knows it, and where teachers have voted already there is nothing to be spared.
    """
    from sartor.pate import forecast
    from sartor.pate.forecast import check_enough

    if asked.bound == "dependent":
        return None
    before = [] if kept is None else kept.accounts
    found = forecast(plan, len(work.queries), accountant=asked.accountant, go_on=asked.go_on, before=before)
    if kept is None or not kept.has_voted:
        check_enough(found, work.classes, accountant=asked.accountant)
    return found


def _announce(asked: PateSettings, plan: PatePlan, expected: Forecast | None) -> None:
    """What was assumed and what can come of it, before anybody waits for teachers."""
    if asked.assumed is not None:
        say(f"Nobody said what people allow: {asked.assumed} are assumed.")
    if expected is None:
        return
    more = ", or for more where teachers disagree" if plan.aggregator.tests and expected.queries < expected.available else ""
    say(f"These budgets pay for {expected.queries:,} of {expected.available:,} queries{more}.")
    say(f"{plan.teachers:,} teachers vote under a noise of {plan.aggregator.noise:.3g} votes.")


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

    def __init__(self, plan: PatePlan, votes: Any, classes: int) -> None:
        self.plan, self._votes, self._classes = plan, votes, classes
        self.account: Any = None

    def aggregate(self, *, further: bool, **options: Any) -> Labels:
        """Label the queries; nothing was asked before that could be asked further."""
        from sartor.pate import aggregate

        votes, self._votes = self._votes, None
        found = aggregate(self.plan, votes, self._classes, **options)
        self.account = found.account
        return found


def _cast(
    asked: PateSettings, work: Labelling, teachers: Teachers, people: Budgets, plan: PatePlan, kept: EnsembleFolder | None
) -> EnsembleFolder | _Once:
    """An ensemble that has voted: in its folder, where finished teachers are found again, or in memory."""
    from sartor import pate

    key = None if asked.seed is None else str(asked.seed).encode()
    if asked.keep is None:
        votes = teachers.votes(work.private, pate.partition(plan, people, key).slices(), work.queries)
        return _Once(plan, votes, work.classes)
    folder = pate.EnsembleFolder.create(asked.keep, plan, people, key=key) if kept is None else kept
    folder.teach(teachers, work.private, work.queries, work.classes)
    return folder


def _write_labels(path: Path, found: Labels, keep: str | None) -> None:
    """The labels that were given, before anything else can fail: people have paid for them."""
    lines = [f"{query},{label}" for query, label in enumerate(found.labels) if label >= 0]
    try:
        write_public(path, "\n".join(["query,label", *lines]) + "\n")
    except SartorError as error:
        if keep is None:
            raise
        raise SartorError(
            f"{str(error)[:-1]}; the labels are paid for and kept: the same command without --further writes them at no further cost."
        ) from None


def _report(asked: PateSettings, work: Labelling, cast: EnsembleFolder | _Once, found: Labels, expected: Forecast | None) -> dict[str, Any]:
    """What came out, and what everything made of these votes has cost in all."""
    given = found.labels >= 0
    right = found.labels[given] == work.truth.numpy()[given]
    assert cast.account is not None
    account = cast.account.to_json()
    keys = ("epsilon", "holders", "sensitivity", "spent")
    return {
        "variant": cast.plan.variant,
        "forecast": None if expected is None else expected.to_json(),
        "labels": int(given.sum()),
        "queries": int(found.asked.sum()),
        "label_accuracy": float(np.mean(right)) if given.any() else None,
        "student_accuracy": _student_accuracy(asked, work, found),
        "teachers": cast.plan.teachers,
        **cast.plan.counted,
        "bound": account["bound"],
        "sensitive": account["sensitive"],
        "private": account["private"],
        "groups": [{key: group[key] for key in keys} for group in account["groups"]],
    }


def _student_accuracy(asked: PateSettings, work: Labelling, found: Labels) -> float | None:
    """How well a student of the labels does on public rows; None where they are of fewer than two classes."""
    from sartor.pate.labelling import usual_student
    from sartor.pate.teachers import train_student

    if len(np.unique(found.labels[found.labels >= 0])) < 2:
        return None
    make, options = usual_student(work)
    with working("training the student"):
        return train_student(make, work.queries, found.labels, work.test, **options, seed=asked.seed).accuracy


def _no_label(report: dict[str, Any]) -> str:
    """Why there is no label, as the beginning of a sentence."""
    if report["queries"]:
        return f"no label was given: too few teachers agreed on each of the {report['queries']:,} queries that were asked"
    return "no label was given: the budgets are exhausted"


def _show(work: Labelling, report: dict[str, Any]) -> None:
    student = report["student_accuracy"]
    learned = (
        "a student has nothing to learn from labels of a single class."
        if student is None
        else f"a student trained on them alone reaches {student:.1%} on {len(work.test):,} public rows."
    )
    cells = [[text(group[key]) for key in ("epsilon", "holders", "sensitivity", "spent")] for group in report["groups"]]
    show(
        f"{_no_label(report)}."
        if not report["labels"]
        else f"{report['variant']}: {report['teachers']} teachers labelled {report['labels']:,} of {report['queries']:,} queries; "
        f"{report['label_accuracy']:.1%} of the labels are right, and {learned}"
    )
    show(Table(("epsilon", "holders", "votes that one holder moves", "spent"), cells))
    if report["sensitive"]:
        say("the number of labels and the spends follow the private votes: do not show them; --bound independent has a guarantee.")
    else:
        show("Voting stopped before anyone would have spent more than they allowed.")
