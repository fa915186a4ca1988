"""`sartor train`: data and budgets in; a model, its account and a page out, in one folder."""

from __future__ import annotations

from contextlib import nullcontext
from itertools import zip_longest
from operator import ne
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

import sartor
from sartor import usual
from sartor.budgets import Budgets
from sartor.cli.options import flat
from sartor.cli.output import initial_weights, print_json, say, show, working
from sartor.cli.rounds import check_form, train_published
from sartor.cli.train_data import read_data
from sartor.cli.train_settings import READINGS, TrainSettings
from sartor.confidential import FEWEST, are_few, lent
from sartor.errors import SartorError

if TYPE_CHECKING:
    from torch import nn

    from sartor.data import Data
    from sartor.report.folder import RunFolder
    from sartor.sgd import Result, Tracking

_EVALUATIONS = 40
_CHECKPOINTS = 20
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
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train a model so that every holder gets the privacy that they asked for."""
    from sartor.report.folder import RunFolder

    with nullcontext() if out is None else RunFolder(out) as folder:
        settings = _resumed(asked, config, folder) if resume else _begun(asked, config, folder)
        check_form(settings.form, settings.unsound, out)
        if settings.form == "published":
            train_published(*_material(settings), settings.of_scheme, settings.seed, json=json)
            return
        job = _prepared(settings, folder if resume else None)
        if not json:
            show(_introduction(job))
            show(job.plan)
        if folder is not None and not resume:  # last of all: whatever went wrong before has left no run behind
            folder.create(job.asked.to_document(job.recipe), job.plan, job.budgets)
        result = _fitted(job, folder, resume)
        if folder is not None:
            _keep(job, folder, result)
        account = result.account.to_json()
        groups = [{key: group[key] for key in ("epsilon", "holders", "spent")} for group in account["groups"]]
        if json:
            figures = {"accuracy": result.accuracy, "seconds": result.seconds, "steps": result.steps}
            people = {"holders": job.data.people, "records": len(job.data.train)}
            shown = job.plan.to_json()
            if job.plan.filter is not None:
                groups = [{**group, "rests_at": row["rests_at"]} for group, row in zip(groups, shown["groups"], strict=True)]
            print_json({**figures, **people, **job.individual(), "plan": shown, "groups": groups})
            return
        show(_conclusion(job, result, folder))


class _Job(NamedTuple):
    """All that training needs: what was asked for, how it is done, and what with."""

    asked: TrainSettings
    recipe: usual.Recipe
    data: Data
    budgets: Budgets
    plan: sartor.Plan
    model: nn.Module

    @property
    def tracking(self) -> Tracking | None:
        """The readings that were asked for; filters are the plan's."""
        from sartor.sgd import Tracking

        kind = self.asked.individual
        return Tracking(kind, self.asked.every(self.recipe, self.data.people)) if kind in READINGS else None

    def individual(self) -> dict[str, Any]:
        """What was asked of individual accounts, as JSON; nothing, where they were not."""
        if self.plan.filter is not None:
            return {"individual": self.plan.filter.to_json()}
        tracking = self.tracking
        if tracking is None:
            return {}
        return {"individual": {"kind": tracking.kind, "refresh": tracking.refresh, "full_steps": self.plan.steps}}


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


def _material(asked: TrainSettings) -> tuple[Data, Budgets, usual.Recipe, nn.Module]:
    """The data, the budgets, how it is trained, and a new model."""
    from sartor.models import registry

    asked.check()
    data = read_data(asked, resumed=False)
    recipe = asked.recipe(data.people)
    with initial_weights(asked.seed):
        model = registry.build(recipe.model, shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)
    return data, _budgets(asked, recipe, data), recipe, model


def _prepared(asked: TrainSettings, resumed: RunFolder | None) -> _Job:
    """Read the data, the budgets and the model, and make the plan; of a run that is continued, budgets and plan as they were."""
    from sartor.models import registry

    asked.check()
    with working("reading the data"):
        data = read_data(asked, resumed=resumed is not None)
    asked.check_records(several=data.ownership is not None)
    recipe = asked.recipe(data.people)
    with initial_weights(asked.seed):
        model = registry.build(recipe.model, shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)
    if resumed is not None:
        job = _Job(asked, recipe, data, resumed.budgets(), resumed.plan(), model)
        _refuse_other_people(job)
        _refuse_other_consent(job)
        return job
    people = _budgets(asked, recipe, data)
    with working("planning"):
        plan = sartor.plan(
            people,
            recipe.scheme,
            steps=recipe.steps,
            batch=recipe.batch,
            clip=recipe.clip,
            accountant=recipe.accountant,
            ownership=data.ownership,
            **asked.of_plan,
            **asked.of_scheme,
            **asked.of_filter(recipe, data.people),
        )
    return _Job(asked.anchored(), recipe, data, people, plan, model)


def _budgets(asked: TrainSettings, recipe: usual.Recipe, data: Data) -> Budgets:
    """What the holders of the training rows allow, each once; in the order of the rows, where each holder has one."""
    from sartor.data.consent import refuse_budget_features
    from sartor.data.people import People

    allowed = asked.allowed()
    if allowed.epsilon is None and data.budgets is not None and (asked.table is not None or allowed.file is None):
        return data.budgets.with_reserve(recipe.reserve)
    if not allowed.is_said and asked.dataset is None:
        raise SartorError("the budgets are missing: give --budget-column, --budgets with a file, or --epsilon with --share.")
    by_name = data.holders is not None and allowed.file is not None
    people = allowed.or_else(usual.ALLOWED).budgets(data.holders if by_name else data.people)
    if asked.arrays is not None and allowed.file is not None:
        rows = people if data.ownership is None else People(None, data.ownership).by_row(people)
        refuse_budget_features(data.train.tensors[0].numpy(), rows)
    return people


def _refuse_other_people(job: _Job) -> None:
    """Refuse to continue on rows that are other people's than when the run began, as far as that is seen here; `fit` compares each row."""
    if not job.plan.by_holder and job.data.ownership is None:
        return
    then, now = job.budgets.names, job.data.holders
    other_names = then is not None and now is not None and then != now
    if len(job.budgets) != job.data.people or job.plan.records != len(job.data.train) or other_names:
        raise SartorError(
            "the rows name other holders than when this run began: a run continues with the same people; bring the column that names them "
            "back as it was."
        )


def _refuse_other_consent(job: _Job) -> None:
    """Refuse to continue where people say otherwise what they allow than when the run began: in the file, the column or the policy.

    Shares are nobody's word, and are not compared.
    """
    allowed = job.asked.allowed()
    if allowed.epsilon is not None:
        return
    now = job.data.budgets if allowed.file is None else allowed.budgets()
    if now is None:
        return
    changed = _changed(job.budgets, now, by_order=job.data.holders is None)
    if changed:
        raise SartorError(
            f"what people allow has changed since this run began, for {_some(changed, len(job.budgets))}: a run continues with the budgets "
            "that it began with; bring them back as they were, or begin another run in another folder, which spends budgets anew."
        )


def _changed(then: Budgets, now: Budgets, *, by_order: bool) -> int:
    """How many holders no longer allow what they did; who is gone does not. Without names, holders are known by their order."""
    before, after = (list(zip(said.epsilon.tolist(), said.delta.tolist(), strict=True)) for said in (then, now))
    if then.names is None or now.names is None:
        return sum(map(ne, before, after)) if len(before) == len(after) else 0  # other rows are other data, which `fit` refuses
    found = dict(zip(now.names, after, strict=True))
    if by_order:  # names are the file's alone: rows take what stands at their place
        known = set(then.names)
        order = [name for name in now.names if name in known]
        return sum(name != other or found[name] != said for name, other, said in zip_longest(then.names, order, before))
    return sum(found.get(name) != said for name, said in zip(then.names, before, strict=True))


def _some(holders: int, everybody: int) -> str:
    """A number of holders, unless it or the number of the others is too small to be shown."""
    if are_few(holders):
        return f"fewer than {FEWEST} of {everybody} holders"
    if holders < everybody and are_few(everybody - holders):
        return f"all but fewer than {FEWEST} of {everybody} holders"
    return f"{holders} of {everybody} holders"


def _fitted(job: _Job, folder: RunFolder | None, resume: bool) -> Result:
    from sartor.sgd import Checkpoints, Evaluation, Execution, NotFinite

    recipe, steps = job.recipe, job.plan.steps
    if job.plan.scheme == "adapdp":
        return _members(job, folder)
    try:
        return sartor.fit(
            job.model,
            job.data.train,
            job.budgets,
            job.plan,
            lr=recipe.lr,
            optimizer=recipe.optimizer,
            momentum=recipe.momentum,
            evaluation=Evaluation(job.data.test if len(job.data.test) else None, every=max(1, steps // _EVALUATIONS)),
            checkpoints=None if folder is None else Checkpoints(folder.checkpoint, max(1, steps // _CHECKPOINTS), resume),
            execution=Execution(max_physical_batch=job.asked.max_physical_batch),
            seed=job.asked.seed,
            ownership=job.data.ownership,
            tracking=job.tracking,
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


def _members(job: _Job, folder: RunFolder | None) -> Result:
    """One model for each round; members of earlier rounds are in no checkpoint, so such a run is taken in one go."""
    from sartor.sgd import Evaluation, Execution, NotFinite, fit_members

    try:
        return fit_members(
            job.model,
            job.data.train,
            job.budgets,
            job.plan,
            lr=job.recipe.lr,
            optimizer=job.recipe.optimizer,
            momentum=job.recipe.momentum,
            evaluation=Evaluation(job.data.test if len(job.data.test) else None),
            execution=Execution(max_physical_batch=job.asked.max_physical_batch),
            seed=job.asked.seed,
            ownership=job.data.ownership,
            tracking=job.tracking,
        )
    except NotFinite as stop:
        if folder is not None:
            folder.write_account({**stop.account.to_json(), "ended": str(stop)})
        raise
    except KeyboardInterrupt:
        say('stopped; a run of scheme "adapdp" has no checkpoint, so it cannot be continued, and nothing of it was released.')
        raise typer.Exit(130) from None


def _keep(job: _Job, folder: RunFolder, result: Result) -> None:
    from sartor.individual.fare import classes_of_holders
    from sartor.report import released
    from sartor.report.training import training_page
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
        page = training_page(
            title=f"{job.data.name}: {job.recipe.model} trained with {job.plan.scheme}",
            facts=_facts(job),
            plan=job.plan,
            steps=result.account.steps,
            seeded=result.account.seeded,
            accuracy=result.accuracy,
            history=result.history,
            notes=job.data.notes,
            released=None if result.reading is None else released.part(folder.releases(job.plan), job.plan, private=result.account.private),
        )
        folder.finish(result.model, result.account.to_json(), page)


def _facts(job: _Job) -> dict[str, str]:
    recipe, data = job.recipe, job.data
    momentum = f", momentum {recipe.momentum:g}" if recipe.momentum else ""
    trained = f"{len(data.train):,} training rows" if data.ownership is None else lent(data.people, len(data.train))
    return {
        "data": f"{data.name}: {trained}, {len(data.test):,} public test rows, {data.classes} classes",
        "model": f"{recipe.model}, {sum(parameter.numel() for parameter in job.model.parameters()):,} parameters",
        "optimizer": f"{recipe.optimizer}, learning rate {recipe.lr:g}{momentum}",
        "one holder": data.one_holder,
    }


def _introduction(job: _Job) -> str:
    return "\n".join(f"{name}: {value}" for name, value in _facts(job).items()) + "\n"


def _conclusion(job: _Job, result: Result, folder: RunFolder | None) -> str:
    from sartor.report.training import NO_FIGURE, SEEDED, meaning

    figure = NO_FIGURE if result.accuracy is None else f"Accuracy on the public test rows: {result.accuracy:.1%}"
    kept = "Nothing was written: --out keeps the model, its account and a report." if folder is None else _kept(job, folder)
    parts = [f"{figure} ({result.steps:,} steps in {result.seconds:.1f} s)", *job.data.notes, "", str(result.account), ""]
    individual = [] if result.reading is None else [_INDIVIDUAL.format(every=job.individual()["individual"]["refresh"])]
    return "\n".join([*parts, meaning(job.plan, result.account.steps), *individual, *([SEEDED] if result.account.seeded else []), kept])


def _kept(job: _Job, folder: RunFolder) -> str:
    """Where the run is, what of it may leave, and what may not."""
    shared, kept = (", ".join(names) for names in folder.shared(job.plan))
    return (
        f"The run is in {folder.path}. You may share {shared}. Keep to yourself, as they tell of "
        f"single people: {kept}. The key of the run's noise is gone."
    )
