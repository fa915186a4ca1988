"""`sartor train`: data and budgets in; a model, its account and a page out, in one folder."""

from __future__ import annotations

import json as text
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import sartor
from sartor.cli.options import flat
from sartor.cli.output import print_json, say, show, working
from sartor.cli.rounds import check_form, train_published
from sartor.cli.train_job import Job, material, prepared
from sartor.cli.train_settings import TrainSettings
from sartor.confidential import lent
from sartor.errors import SartorError
from sartor.run.files import write_public

if TYPE_CHECKING:
    from sartor.individual.answers import Release
    from sartor.report.folder import RunFolder
    from sartor.sgd import Checkpoints, Result

_EVALUATIONS = 40
_INDIVIDUAL = (
    "What each holder's gradients really cost was read every {every:,} steps: sartor account RUN --holder ID tells one of them their own, "
    "and --release tells everybody what is safe to tell. A reading is no guarantee; that is the budget's."
)


@flat
def train(
    asked: TrainSettings,
    *,
    config: Annotated[str | None, typer.Option(metavar="FILE", help="TOML with any of these options; the command line wins.")] = None,
    out: Annotated[str | None, typer.Option(metavar="RUN", help="Folder to keep the run in.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the interrupted run in --out.")] = False,
    restarts: Annotated[int, typer.Option("--restarts", metavar="N", help="How often a run may go on after crashes.")] = 20,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train a model so that every holder gets the privacy that they asked for."""
    from sartor.report.folder import RunFolder

    with nullcontext() if out is None else RunFolder(out) as folder:
        settings = _resumed(asked, config, folder) if resume else _begun(asked, config, folder)
        check_form(settings.form, settings.unsound, out)
        if settings.form == "published":
            train_published(*material(settings), settings.of_scheme, settings.seed, json=json)
            return
        job = prepared(settings, folder if resume else None)
        if not json:
            show(_introduction(job))
            show(job.plan)
        result = carried_out(job, folder, resume, restarts)
        account = result.account.to_json()
        groups = [{key: group[key] for key in ("epsilon", "holders", "spent")} for group in account["groups"]]
        if json:
            figures = {"accuracy": result.accuracy, "seconds": job.seconds(result), "steps": result.steps}
            people = {"holders": job.data.people, "records": len(job.data.train)}
            shown = job.plan.to_json()
            if job.plan.filter is not None:
                groups = [{**group, "rests_at": row["rests_at"]} for group, row in zip(groups, shown["groups"], strict=True)]
            print_json({**figures, **people, **job.individual(), "plan": shown, "groups": groups})
            return
        show(_conclusion(job, result, folder))


def carried_out(job: Job, folder: RunFolder | None, resume: bool, restarts: int = 20) -> Result:
    """Train, and leave in the folder what a run leaves there."""
    if folder is not None and not resume:  # last of all: whatever went wrong before has left no run behind
        folder.create(job.asked.to_document(job.recipe), job.plan, job.budgets)
    if folder is not None:
        folder.releases(job.plan)  # which the page will need: read now, so that no step is taken for a run that could not end
    result = _fitted(job, folder, resume, restarts)
    if folder is not None:
        _keep(job, folder, result)
    return result


def shown_of(job: Job, folder: Path) -> Result:
    """Train, and write into a folder what others may read of a run, without its model: for an audit, whose models are on no disk."""
    job.plan.save(folder / "plan.json")
    result = _fit(job, None)
    write_public(folder / "account.json", text.dumps(result.account.to_json()))
    write_public(folder / "report.html", _page(job, result, ()))
    return result


def _begun(asked: TrainSettings, config: str | None, folder: RunFolder | None) -> TrainSettings:
    """The settings of a new run; the command line wins over the file."""
    if folder is not None:
        folder.check_new()
    settings = asked if config is None else asked.over(TrainSettings.read(config))
    if settings.sensitive and folder is None:
        raise SartorError("--sensitive writes to a file for you alone in the run's folder: give that with --out.")
    return settings


def _resumed(asked: TrainSettings, config: str | None, folder: RunFolder | None) -> TrainSettings:
    """The settings of the run in a folder, which nobody changes."""
    if folder is None:
        raise SartorError("--resume continues the run in a folder: give it with --out.")
    named = [*asked.said(), *(["--config"] if config is not None else [])]
    if named:
        raise SartorError(f"--resume reads the settings from {folder.path / 'config.toml'}: leave out {', '.join(named)}.")
    return TrainSettings.from_document(folder.resume(), "config.toml")


def _fitted(job: Job, folder: RunFolder | None, resume: bool, restarts: int) -> Result:
    from sartor.sgd import Checkpoints, NotFinite

    try:
        return _fit(job, None if folder is None or _has_members(job) else Checkpoints(folder.checkpoint, resume=resume, restarts=restarts))
    except NotFinite as stop:
        if folder is not None:
            folder.write_account({**stop.account.to_json(), "ended": str(stop)})
        raise
    except KeyboardInterrupt:
        if _has_members(job):
            say('stopped; a run of scheme "adapdp" has no checkpoint, so it cannot be continued, and nothing of it was released.')
        elif folder is None:
            say("stopped; nothing was kept, because there is no --out.")
        else:
            say(f"stopped; sartor train --resume --out {folder.path} goes on from the step that it was stopped at.")
        raise typer.Exit(130) from None


def _has_members(job: Job) -> bool:
    """Whether there is one model for each round: those of earlier rounds are in no checkpoint, so such a run is taken in one go."""
    return job.plan.scheme == "adapdp"


def _fit(job: Job, checkpoints: Checkpoints | None) -> Result:
    from sartor.sgd import Evaluation, Execution, fit_members

    members = _has_members(job)
    return (fit_members if members else sartor.fit)(
        job.model,
        job.data.train,
        job.budgets,
        job.plan,
        lr=job.recipe.lr,
        optimizer=job.recipe.optimizer,
        momentum=job.recipe.momentum,
        evaluation=Evaluation(
            job.data.test if len(job.data.test) else None, every=None if members else max(1, job.plan.steps // _EVALUATIONS)
        ),
        checkpoints=checkpoints,
        execution=Execution(max_physical_batch=job.asked.max_physical_batch),
        seed=job.asked.seed,
        ownership=job.data.ownership,
        tracking=job.tracking,
    )


def _keep(job: Job, folder: RunFolder, result: Result) -> None:
    from sartor.individual.fare import classes_of_holders
    from sartor.sgd import evaluate
    from sartor.sgd.training import by_holder

    with working("writing the report"):
        if result.reading is not None:
            data = job.data
            label = classes_of_holders(data.train, data.ownership)
            rows = data.fingerprint() if job.asked.table is not None else ""  # of others no further column can be read
            folder.write_reading(result.reading, *by_holder(result.model, data.train, data.ownership), label, data.names_of_classes, rows)
        if job.asked.sensitive:
            held_out = job.data.held_out
            assert held_out is not None
            folder.write_held_out({"accuracy": evaluate(result.model, held_out)["accuracy"], "rows": len(held_out)})
        folder.finish(result.model, result.account.to_json(), _page(job, result, folder.releases(job.plan)))


def _page(job: Job, result: Result, releases: tuple[Release, ...]) -> str:
    from sartor.report import released
    from sartor.report.training import training_page

    return training_page(
        title=f"{job.data.name}: {job.recipe.model} trained with {job.plan.scheme}",
        facts=_facts(job),
        plan=job.plan,
        steps=result.account.steps,
        seeded=result.account.seeded,
        accuracy=result.accuracy,
        history=result.history,
        notes=job.data.notes,
        released=None if result.reading is None else released.part(releases, job.plan, private=result.account.private),
    )


def _facts(job: Job) -> dict[str, str]:
    recipe, data = job.recipe, job.data
    momentum = f", momentum {recipe.momentum:g}" if recipe.momentum else ""
    trained = f"{len(data.train):,} training rows" if data.ownership is None else lent(data.people, len(data.train))
    return {
        "data": f"{data.name}: {trained}, {len(data.test):,} public test rows, {data.classes} classes",
        "model": f"{recipe.model}, {sum(parameter.numel() for parameter in job.model.parameters()):,} parameters",
        "optimizer": f"{recipe.optimizer}, learning rate {recipe.lr:g}{momentum}",
        "one holder": data.one_holder,
    }


def _introduction(job: Job) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(job).items()) + "\n"


def _conclusion(job: Job, result: Result, folder: RunFolder | None) -> str:
    from sartor.report.training import NO_FIGURE, SEEDED, meaning

    figure = NO_FIGURE if result.accuracy is None else f"Accuracy on the public test rows: {result.accuracy:.1%}"
    kept = "Nothing was written: --out keeps the model, its account and a report." if folder is None else _kept(job, folder)
    seconds = job.seconds(result)
    took = f"{result.steps:,} steps" if seconds is None else f"{result.steps:,} steps in {seconds:.1f} s"
    parts = [f"{figure} ({took})", *job.data.notes, "", str(result.account), ""]
    individual = [] if result.reading is None else [_INDIVIDUAL.format(every=job.individual()["individual"]["refresh"])]
    return "\n".join([*parts, meaning(job.plan, result.account.steps), *individual, *([SEEDED] if result.account.seeded else []), kept])


def _kept(job: Job, folder: RunFolder) -> str:
    """Where the run is, what of it may leave, and what may not."""
    shared, kept = (", ".join(names) for names in folder.shared(job.plan))
    return (
        f"The run is in {folder.path}. You may share {shared}. Keep to yourself, as they tell of "
        f"single people: {kept}. The key of the run's noise is gone."
    )
