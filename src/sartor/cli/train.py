"""`sartor train`: data and budgets in; a model, its account and a page out, in one folder."""

from __future__ import annotations

import inspect
import os
from dataclasses import asdict, fields
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

import sartor
from sartor import usual
from sartor.allowed import Allowed
from sartor.budgets import Budgets
from sartor.cli.output import initial_weights, print_json, say, show, working
from sartor.errors import SartorError

_SOURCES = ("dataset", "table", "arrays")
_PATHS = ("data", "table", "test", "schema", "arrays", "budgets", "policy")
_LISTS = ("epsilon", "share", "delta")
_NOT_SETTINGS = ("config", "resume", "out", "json")
_EVALUATIONS = 40
_CHECKPOINTS = 20
_HELD_OUT = 0.2  # of the rows


def train(
    dataset: Annotated[str | None, typer.Option(help="digits, mnist, fashion-mnist, cifar10, svhn, adult, names, imdb or snli.")] = None,
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data set's files are; otherwise $SARTOR_DATA or data.")] = None,
    table: Annotated[
        str | None, typer.Option(metavar="FILE", help="A CSV or Parquet table of your own instead, one row per holder.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Table: the column to predict.")] = None,
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Table: public test rows, of others who agreed to that.")] = None,
    sensitive: Annotated[
        bool,
        typer.Option("--sensitive", help="Table: hold a fifth out, and write accuracy on it to held-out.json in --out, for you alone."),
    ] = False,
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="Table: TOML of public bounds, categories and classes.")] = None,
    id_column: Annotated[str | None, typer.Option(help="Table: the column that names the holder.")] = None,
    arrays: Annotated[str | None, typer.Option(metavar="DIR", help="Arrays x_train, y_train, x_test and y_test instead.")] = None,
    model: Annotated[str | None, typer.Option(help="Model by name; otherwise the usual one for the data.")] = None,
    scheme: Annotated[str | None, typer.Option(help="scale (default), sample, hybrid, uniform, exclude or sequential.")] = None,
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas; inf marks public records.")] = None,
    share: Annotated[str | None, typer.Option(help="Share of the holders in each group, separated by commas.")] = None,
    delta: Annotated[str | None, typer.Option(help="Delta, one for all or one per group.")] = None,
    budgets: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of holder,epsilon[,delta] or holder,level instead.")] = None,
    budget_column: Annotated[str | None, typer.Option(help="Table: the column of epsilons or levels.")] = None,
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="TOML that maps levels to numbers.")] = None,
    accountant: Annotated[str | None, typer.Option(help="pld (tight, default) or rdp.")] = None,
    steps: Annotated[int | None, typer.Option(help="Number of steps.")] = None,
    batch: Annotated[float | None, typer.Option(help="Expected size of a batch.")] = None,
    clip: Annotated[float | None, typer.Option(help="Clip norm; its mean, where clips are personal.")] = None,
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None,
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None,
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.")] = None,
    mix: Annotated[float | None, typer.Option(help="hybrid: share of sampling, in [0, 1].")] = None,
    max_excess: Annotated[float | None, typer.Option(help="hybrid: as much sampling as this excess allows.")] = None,
    threshold: Annotated[float | None, typer.Option(help="exclude: the smallest epsilon that takes part.")] = None,
    order: Annotated[str | None, typer.Option(help="sequential: strictest-first or open-first.")] = None,
    reserve: Annotated[float | None, typer.Option(help="Share of every budget kept for later releases.")] = None,
    max_physical_batch: Annotated[int | None, typer.Option(help="Most examples in memory at once.")] = None,
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="TOML with any of these options; the command line wins.")] = None,
    out: Annotated[str | None, typer.Option(metavar="RUN", help="Folder to keep the run in.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train a model so that every holder gets the privacy that they asked for."""
    given = {name: value for name, value in locals().items() if name not in _NOT_SETTINGS and value is not None and value is not False}
    from sartor.report.folder import RunFolder

    folder = None if out is None else RunFolder(out)
    if resume:
        if folder is None:
            raise SartorError("--resume continues the run in a folder: give it with --out.")
        if given or config is not None:
            named = ", ".join("--" + name.replace("_", "-") for name in [*given, *(["config"] if config else [])])
            raise SartorError(f"--resume reads the settings from {folder.path / 'config.toml'}: leave out {named}.")
        settings = _checked(folder.settings(), "config.toml")
    else:
        if folder is not None:
            folder.check_new()
        settings = {**({} if config is None else _read_config(config)), **given}
        if settings.get("sensitive") and folder is None:
            raise SartorError("--sensitive writes to a file for you alone in the run's folder: give that with --out.")
    job = _prepared(settings, folder if resume else None)
    if not json:
        show(_introduction(job))
        show(job.plan)
    if folder is not None and not resume:  # last of all: whatever went wrong before has left no run behind
        folder.create(job.settings, job.plan, job.budgets)
    result = _fitted(job, folder, resume)
    if folder is not None:
        _keep(job, folder, result)
    account = result.account.to_json()
    groups = [{key: group[key] for key in ("epsilon", "holders", "spent")} for group in account["groups"]]
    if json:
        print_json(
            {"accuracy": result.accuracy, "seconds": result.seconds, "steps": result.steps, "plan": job.plan.to_json(), "groups": groups}
        )
        return
    show(_conclusion(job, result, folder))


class _Job(NamedTuple):
    """All that training needs."""

    settings: dict[str, Any]
    data: Any
    budgets: Budgets
    plan: sartor.Plan
    model: Any


def _read_config(path: str) -> dict[str, Any]:
    from sartor.documents import read_toml

    return _checked(read_toml(path, "the settings"), Path(path).name)


def _checked(document: dict[str, Any], name: str) -> dict[str, Any]:
    """The settings in a document, of the types that the options have."""
    kinds = {key: kind for key, kind in inspect.get_annotations(train, eval_str=True).items() if key not in (*_NOT_SETTINGS, "return")}
    unknown = [key for key in document if key not in kinds]
    if unknown:
        raise SartorError(f"{name} has a setting {', '.join(unknown)} that nothing reads; it may have {', '.join(kinds)}.")
    settings = {}
    for key, value in document.items():
        value = _listed(value) if key in _LISTS else value
        own = kinds[key].__origin__
        wanted: Any = bool if own is bool else next(kind for kind in (int, float, str) if kind in own.__args__)
        right = isinstance(value, (int, float) if wanted is float else wanted)
        if not right or (isinstance(value, bool) and wanted is not bool):
            what = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}[wanted]
            raise SartorError(f"in {name}, {key} must be {what}.")
        settings[key] = value
    return settings


def _listed(value: Any) -> Any:
    """Numbers may be written as a text with commas, as one number, or as a list."""
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value if isinstance(value, bool | str) else str(value)


def _prepared(settings: dict[str, Any], resumed: Any) -> _Job:
    """Read the data, the budgets and the model, and make the plan; of a run that is continued, budgets and plan as they were."""
    from sartor.models import registry

    _check_together(settings)
    with working("reading the data"):
        data = _data(settings, resumed=resumed is not None)
    settings = {**_usual(settings, len(data.train)), **settings}
    with initial_weights(settings.get("seed")):
        model = registry.build(settings["model"], shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)
    if resumed is not None:
        return _Job(settings, data, resumed.budgets(), resumed.plan(), model)
    people = _budgets(settings, data)
    options = {name: settings[name] for name in ("mix", "max_excess", "threshold", "order") if name in settings}
    with working("planning"):
        plan = sartor.plan(
            people,
            settings["scheme"],
            steps=settings["steps"],
            batch=settings["batch"],
            clip=settings["clip"],
            accountant=settings["accountant"],
            **options,
        )
    settings = {name: os.path.abspath(value) if name in _PATHS else value for name, value in settings.items()}
    return _Job(settings, data, people, plan, model)


def _check_together(settings: dict[str, Any]) -> None:
    """Refuse options that contradict each other, before anything is read."""
    sources = [f"--{name}" for name in _SOURCES if name in settings]
    if len(sources) != 1:
        found = f", not {' and '.join(sources)}" if sources else ""
        raise SartorError(f"give the data as one of --dataset, --table or --arrays{found}.")
    for source, names in {"dataset": ("data",), "table": ("target", "test", "sensitive", "schema", "id_column", "budget_column")}.items():
        strays = [f"--{name.replace('_', '-')}" for name in names if name in settings and source not in settings]
        if strays:
            raise SartorError(f"{strays[0]} goes with --{source}.")
    _allowed(settings)


def _data(settings: dict[str, Any], *, resumed: bool) -> Any:
    from sartor.data import load, read_arrays, read_schema, read_table

    if "dataset" in settings:
        return load(settings["dataset"], settings.get("data"))
    allowed = _allowed(settings)
    if "arrays" in settings:
        return read_arrays(settings["arrays"], delta=allowed.delta_for_all())
    known: dict[str, Any] = dict(read_schema(settings["schema"])) if "schema" in settings else {}
    known.update({name: settings[name] for name in ("target", "test", "id_column", "budget_column") if name in settings})
    if settings.get("sensitive"):
        known.setdefault("test_share", _HELD_OUT)
    if "target" not in known:
        raise SartorError("--table needs --target, the column to predict.")
    if "budget_column" in known:
        if allowed.policy is not None:
            known["policy"] = allowed.levels()
        elif allowed.delta is not None:
            known["delta"] = allowed.delta_for_all()
    if "budgets" in settings and not resumed:
        known["budgets"] = allowed.budgets()
    return read_table(settings["table"], **known)


def _usual(settings: dict[str, Any], rows: int) -> dict[str, Any]:
    """Settings for what was not said."""
    known = usual.recipe(settings["dataset"]) if "dataset" in settings else usual.recipe_for(rows)
    return asdict(known.but({field.name: settings[field.name] for field in fields(known) if field.name in settings}))


def _budgets(settings: dict[str, Any], data: Any) -> Budgets:
    """What the holders of the training rows allow, in the order of the rows."""
    from sartor.data.consent import refuse_budget_features

    reserve = settings["reserve"]
    if "epsilon" not in settings and data.budgets is not None and ("table" in settings or "budgets" not in settings):
        found: Budgets = data.budgets
        return found.with_reserve(reserve)
    allowed = _allowed(settings)
    if not allowed.is_said and "dataset" not in settings:
        raise SartorError("say what people allow: --budget-column, --budgets with a file, or --epsilon with --share.")
    people = allowed.or_else(usual.ALLOWED).budgets(len(data.train))
    if "arrays" in settings and allowed.file is not None:
        refuse_budget_features(data.train.tensors[0].numpy(), people)
    return people


def _allowed(settings: dict[str, Any]) -> Allowed:
    """What the options say that people allow."""
    said = {name: settings.get(name) for name in ("epsilon", "share", "delta", "policy", "seed")}
    return Allowed(**said, file=settings.get("budgets"), column=settings.get("budget_column"), reserve=settings.get("reserve", 0.0))


def _fitted(job: _Job, folder: Any, resume: bool) -> Any:
    from sartor.sgd import NotFinite

    settings, steps = job.settings, job.plan.steps
    try:
        return sartor.fit(
            job.model,
            job.data.train,
            job.budgets,
            job.plan,
            lr=settings["lr"],
            optimizer=settings["optimizer"],
            momentum=settings["momentum"],
            public=job.data.test if len(job.data.test) else None,
            every=max(1, steps // _EVALUATIONS),
            checkpoint=None if folder is None else folder.checkpoint,
            checkpoint_every=None if folder is None else max(1, steps // _CHECKPOINTS),
            resume=resume,
            seed=settings.get("seed"),
            max_physical_batch=settings.get("max_physical_batch"),
        )
    except NotFinite as stop:
        if folder is not None:
            folder.write_account({**stop.account.to_json(), "ended": str(stop)})
        raise
    except KeyboardInterrupt:
        if folder is None:
            say("stopped; nothing was kept, because there is no --out.")
        else:
            say(f"stopped; sartor train --resume --out {folder.path} goes on from the step that it was stopped at.")
        raise typer.Exit(130) from None


def _keep(job: _Job, folder: Any, result: Any) -> None:
    from sartor.report.training import training_page
    from sartor.sgd import evaluate

    with working("writing the report"):
        if job.settings.get("sensitive"):
            held_out = job.data.held_out
            folder.write_held_out({"accuracy": evaluate(result.model, held_out)["accuracy"], "rows": len(held_out)})
        page = training_page(
            title=f"{job.data.name}: {job.settings['model']} trained with {job.plan.scheme}",
            facts=_facts(job),
            plan=job.plan,
            steps=result.account.steps,
            seeded=result.account.seeded,
            accuracy=result.accuracy,
            history=result.history,
            notes=job.data.notes,
        )
        folder.finish(result.model, result.account.to_json(), page)


def _facts(job: _Job) -> dict[str, str]:
    settings, data = job.settings, job.data
    momentum = f", momentum {settings['momentum']:g}" if settings["momentum"] else ""
    return {
        "data": f"{data.name}: {len(data.train):,} training rows, {len(data.test):,} public test rows, {data.classes} classes",
        "model": f"{settings['model']}, {sum(parameter.numel() for parameter in job.model.parameters()):,} parameters",
        "optimizer": f"{settings['optimizer']}, learning rate {settings['lr']:g}{momentum}",
        "one holder": "one training row",
    }


def _introduction(job: _Job) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(job).items()) + "\n"


def _conclusion(job: _Job, result: Any, folder: Any) -> str:
    from sartor.report.training import NO_FIGURE, SEEDED, meaning

    figure = NO_FIGURE if result.accuracy is None else f"Accuracy on the public test rows: {result.accuracy:.1%}"
    kept = "Nothing was written: --out keeps the model, its account and a report." if folder is None else _kept(job, folder)
    parts = [f"{figure} ({result.steps:,} steps in {result.seconds:.1f} s)", *job.data.notes, "", str(result.account), ""]
    return "\n".join([*parts, meaning(job.plan, result.account.steps), *([SEEDED] if result.account.seeded else []), kept])


def _kept(job: _Job, folder: Any) -> str:
    """Where the run is, what of it may leave, and what may not."""
    shared, kept = (", ".join(names) for names in folder.shared(job.plan))
    return (
        f"The run is in {folder.path}. You may share {shared}. Keep to yourself, as they tell of "
        f"single people: {kept}. The key of the run's noise is gone."
    )
