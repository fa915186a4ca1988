"""What a run's individual accounts tell: one holder their own, and everybody what is safe to tell."""

from __future__ import annotations

import os
import sys
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sartor.cli.output import print_json, say, show, working
from sartor.errors import SartorError
from sartor.layout import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from sartor.cli.train_settings import TrainSettings
    from sartor.plans import Plan
    from sartor.report.folder import RunFolder

_LONGEST = 1_000  # digits of a place: Python reads a few thousand
_STATISTICS = ("mean", "quantiles", "histogram", "groups", "correlation")


@dataclass(frozen=True)
class Asked:
    """What --release asks for: which statistics, by what groups, and which categories there may be; None where that was not said."""

    names: tuple[str, ...]
    by: str | None = None
    categories: tuple[str, ...] | None = None

    @classmethod
    def read(cls, names: str, by: str | None, categories: str | None) -> Asked:
        """From the command line."""
        asked = _listed(names)
        unknown = [name for name in asked if name not in _STATISTICS]
        if unknown or not asked:
            what = f', not "{unknown[0]}"' if unknown else ""
            raise SartorError(f"--release takes some of {', '.join(_STATISTICS)}, separated by commas{what}.")
        if "groups" not in asked and (by is not None or categories is not None):
            raise SartorError("--by and --categories say which groups are told of: ask for groups in --release.")
        if by == "class" and categories is not None:
            raise SartorError("--categories goes with --by COLUMN: the classes are the data's own.")
        if by in (None, "budget") and categories is not None:
            raise SartorError("--categories goes with --by COLUMN: the groups of budgets are the plan's.")
        found = cls(asked, by, None if categories is None else _listed(categories))
        if any(not text.isprintable() for text in (by or "", *(found.categories or ()))):
            raise SartorError("--by and --categories take names that can be printed.")
        return found


def _listed(texts: str) -> tuple[str, ...]:
    return tuple(text.strip() for text in texts.split(",") if text.strip())


def individual(run: str | None, holder: str | None, release: Asked | None, epsilon: float | None, json: bool) -> None:
    """Print one holder's statement, or release statistics of all accounts out of the reserve."""
    if run is not None and not os.path.exists(run):
        raise SartorError(f"there is no folder {run}.")
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
    accounts = reading.accounts(sensitive=True)
    found = statement(folder.plan(), budgets, accounts, who, private=bool(folder.account()["private"]), kind=reading.kind)
    if json:
        print_json({**found.to_json(), "kind": reading.kind, "steps": reading.steps})
    else:
        show(str(found))


def _place(holder: str) -> int:
    if not holder.isdecimal():
        raise SartorError("the holders of this run have no names: give a place, from 0 on.")
    return int(holder) if len(holder) < _LONGEST else sys.maxsize  # which is nobody's place, as the sentence will say


def _release(run: str, asked: Asked, epsilon: float, json: bool) -> None:
    from sartor.individual.release import deviations, even_bins
    from sartor.individual.request import QUANTILES, Figures, Request
    from sartor.individual.reserve import Reserve
    from sartor.report.folder import RunFolder

    folder = RunFolder(run)
    reading, correct, loss = folder.reading()
    plan = folder.plan()
    if not bool(folder.account()["private"]):
        raise SartorError("this run was seeded or had no noise, so it is not private, and noise on its accounts would protect nobody.")
    by, categories = _grouping(folder, asked)
    request = Request(
        mean="mean" in asked.names,
        quantiles=QUANTILES if "quantiles" in asked.names else (),
        histogram=even_bins(plan, 20) if "histogram" in asked.names else (),
        groups=by,
        categories=categories,
        correlation="correlation" in asked.names,
    )
    with working("releasing"):
        reserve = Reserve(folder.reserve, plan)
        found = reserve.told(request, epsilon=epsilon)
        if found is None:
            figures = Figures(
                reading.accounts(sensitive=True), correct, loss, _places(folder, plan, by, categories, stored=asked.categories is None)
            )
            found = reserve.release(figures, request, epsilon=epsilon)
        try:
            folder.tell_released(plan)
        except SartorError as error:  # it is charged, so it is told all the same
            say(f"the release is not on the run's page: {error}")
    document = {**found.to_json(), "noise": deviations(found, plan, request)}
    if json:
        print_json(document)
        return
    _show(document)


def _grouping(folder: RunFolder, asked: Asked) -> tuple[str | None, tuple[str, ...]]:
    """By what groups are told, and the categories that there may be, which are public."""
    from sartor.data.table import check_column
    from sartor.individual.request import BUDGET, CLASS

    if "groups" not in asked.names:
        return None, ()
    if asked.by in (None, BUDGET):
        return BUDGET, ()
    assert asked.by is not None
    if asked.by == CLASS and asked.categories is None:
        return CLASS, folder.classes()[1]
    settings = _settings(folder)
    if settings.table is None:
        raise SartorError(
            f'--by is budget, {CLASS} or a column of the table that was trained on, and this run had no table: not "{asked.by}".'
        )
    if asked.categories is not None:
        return asked.by, asked.categories
    known = _schema(settings.schema)
    if asked.by not in known:
        check_column(settings.table, asked.by)
        raise SartorError(
            f'all that the column "{asked.by}" may hold has to be known without looking at it: list it with --categories, or in the schema.'
        )
    return asked.by, known[asked.by]


def _schema(path: str | None) -> dict[str, tuple[str, ...]]:
    """The columns whose categories a schema lists."""
    from sartor.data import read_schema

    if path is None:
        return {}
    schema = read_schema(path)
    classes = {schema["target"]: schema["classes"]} if "target" in schema and "classes" in schema else {}
    return {column: tuple(listed) for column, listed in {**schema.get("categories", {}), **classes}.items()}


def _places(folder: RunFolder, plan: Plan, by: str | None, categories: tuple[str, ...], *, stored: bool) -> NDArray[np.intp]:
    """The group of each holder; of a column, from the rows that were trained on, read again. Sensitive."""
    from sartor.cli.train_job import read_data
    from sartor.data import HeldOut, PrivateScaling
    from sartor.individual.fare import places, shared
    from sartor.individual.request import BUDGET, CLASS

    if by in (None, BUDGET):
        return plan.groups_of(folder.budgets())
    label, _, rows = folder.classes()
    if by == CLASS and stored:
        return label
    assert by is not None
    with warnings.catch_warnings():
        for category in (HeldOut, PrivateScaling):  # which the run has said, and its page says
            warnings.simplefilter("ignore", category)
        data = read_data(_settings(folder), resumed=True, attributes=[by])
    if data.fingerprint() != rows:
        raise SartorError(
            "the table is not what this run was trained on: bring its rows back as they were, with the same schema; columns that were not "
            "trained on may be new."
        )
    return shared(places(data.attributes[by], categories), data.ownership)


def _settings(folder: RunFolder) -> TrainSettings:
    from sartor.cli.train_settings import TrainSettings

    return TrainSettings.from_document(folder.config(), "config.toml")


def _show(document: dict[str, Any]) -> None:
    from sartor.report.groups import cell

    noise = document["noise"]
    rows = [["mean", f"{document['mean']:.4g}{_beside(noise['mean'])}"]] if "mean" in document else []
    rows += [[f"quantile {at}", f"{value:.4g}"] for at, value in document.get("quantiles", {}).items()]
    if "correlation" in document:
        value = document["correlation"]
        rows.append(["correlation with the logarithm of the loss", "lost in the noise" if value is None else f"{value:.3f}"])
    cost = f"cost everybody epsilon {document['epsilon']:g} at delta {document['delta']:.3g}, out of the reserve"
    show(f"Accounts of all holders, with noise; this {cost}, once: the same question gets the same answer.")
    if noise:
        show("What stands after ± is the standard deviation of the noise.")
    if rows:
        show(Table(("of the accounts", "epsilon"), rows, "what gradients really cost (readings, no guarantee)"))
    if "histogram" in document:
        edges, counts = document["histogram"]["edges"], document["histogram"]["counts"]
        beside = _beside(noise["histogram"])
        cells = [
            [f"{low:.3g} to {high:.3g}", f"{count:,.0f}{beside}"] for low, high, count in zip(edges[:-1], edges[1:], counts, strict=True)
        ]
        show(Table(("epsilon", "holders"), cells, "how many holders spent how much"))
    if "groups" in document:
        names = list(document["groups"][0])
        cells = [
            [f"{cell(row[name])}{'' if row[name] is None else _beside(own.get(name))}" for name in names]
            for row, own in zip(document["groups"], noise["groups"], strict=True)
        ]
        show(Table(names, cells, "how the groups fare"))


def _beside(deviation: float | None) -> str:
    """The deviation of the noise on a figure, to stand beside it."""
    return f" ± {deviation:.2g}" if deviation else ""
