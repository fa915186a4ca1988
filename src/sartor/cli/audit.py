"""`sartor audit`: attack a run's plan on its data, or replay it with holders zeroed, and say whether what is found breaks a promise.

Whatever it trains are fresh, seeded runs from the run's settings: they use neither its key nor its model. What an audit finds is about the
training records themselves, so of data that may not be shown it is told only where `--sensitive` says so.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor.cli.output import print_json, refuse_inputs, show, working
from sartor.cli.train_job import Job, prepared
from sartor.cli.train_settings import TrainSettings
from sartor.errors import SartorError
from sartor.layout import Table

if TYPE_CHECKING:
    from torch import nn

    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed

_FROM_SHADOWS = ("lira", "rmia", "loss")
ATTACKS = (*_FROM_SHADOWS, "canary", "replay")
_PRIVATE = (
    "an audit tells of the training records themselves, and these are people's own: say --sensitive if you may see that, and show what it "
    "prints to nobody."
)
_SENSITIVE = "Sensitive: this is about the training records themselves, and no budget covers it. Show it to nobody."


def audit(
    run: Annotated[str, typer.Argument(metavar="RUN|CONFIG", help="The folder of a run, or TOML with the options of `sartor train`.")],
    attack: Annotated[str, typer.Option(help="replay, canary, lira, rmia or loss.")] = "replay",
    shadows: Annotated[int | None, typer.Option(help="lira, rmia, loss: models that are trained (64).")] = None,
    canaries: Annotated[int | None, typer.Option(help="canary: how many there are in all, spread over the groups (1000).")] = None,
    holders: Annotated[int | None, typer.Option(help="replay: how many holders are zeroed, one after the other (4).")] = None,
    steps: Annotated[int | None, typer.Option(help="replay: after how many steps a run is stopped (50).")] = None,
    confidence: Annotated[float, typer.Option(help="Of the verdict, over all groups.")] = 0.99,
    cache: Annotated[
        str | None, typer.Option(metavar="DIR", help="lira, rmia, loss: keeps what shadow models show, for you alone.")
    ] = None,
    page: Annotated[str | None, typer.Option(metavar="FILE", help="Write a page with ROC curves there.")] = None,
    seed: Annotated[int, typer.Option(help="Of the runs that the audit makes.")] = 0,
    sensitive: Annotated[bool, typer.Option("--sensitive", help="The data are people's own, and you may see what is found.")] = False,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Attack a run's plan on its data, or replay it with holders zeroed, and compare with what was promised."""
    given = {"--shadows": shadows, "--cache": cache, "--canaries": canaries, "--holders": holders, "--steps": steps}
    _check(attack, {name for name, value in given.items() if value is not None}, confidence, seed)
    asked, source = _settings(run)
    if asked.dataset is None and not sensitive:
        raise SartorError(_PRIVATE)
    if page is not None:
        if attack == "replay":
            raise SartorError("--page draws ROC curves, which replay has none of.")
        refuse_inputs(page, run, asked.table, asked.schema, asked.budgets)
    job = prepared(asked, source)
    found: Findings | Replayed
    if attack == "replay":
        found = _replayed(job, seed, 4 if holders is None else holders, 50 if steps is None else steps)
    elif attack == "canary":
        found = _by_canaries(job, seed, 1000 if canaries is None else canaries, confidence)
    else:
        found = _by_shadows(job, attack, seed, 64 if shadows is None else shadows, confidence, cache)
    if page is not None:
        _write(page, found, job, sensitive)
    if json:
        print_json({**found.to_json(), **({"sensitive": True} if sensitive else {})})
        return
    show(_table(found))
    show(_words(found) + (f"\n{_SENSITIVE}" if sensitive else ""))


_OF = {"--shadows": _FROM_SHADOWS, "--cache": _FROM_SHADOWS, "--canaries": ("canary",), "--holders": ("replay",), "--steps": ("replay",)}


def _check(attack: str, said: set[str], confidence: float, seed: int) -> None:
    if attack not in ATTACKS:
        raise SartorError(f'--attack is {", ".join(ATTACKS[:-1])} or {ATTACKS[-1]}, not "{attack}".')
    for option in sorted(said):
        if attack not in _OF[option]:
            raise SartorError(f"{option} goes with --attack {' or '.join(_OF[option])}.")
    if not 0 < confidence < 1:
        raise SartorError(f"--confidence lies between 0 and 1, not at {confidence:g}.")
    if seed < 0:
        raise SartorError(f"--seed is a whole number of 0 or more, not {seed}.")


def _settings(run: str) -> tuple[TrainSettings, Any]:
    """What was asked of the run, and its folder, if it has one."""
    from sartor.report.folder import RunFolder

    path = Path(run)
    if not path.exists():
        raise SartorError(f"there is no {run}: give the folder of a run, or a file of settings.")
    folder = RunFolder(path) if path.is_dir() else None
    asked = TrainSettings.read(run) if folder is None else TrainSettings.from_document(folder.config(), "config.toml")
    if asked.form == "published":
        raise SartorError("the published form makes no promise that holds, so there is none to audit.")
    return replace(asked, seed=None if folder is not None else asked.seed, sensitive=False), folder


def _made(job: Job) -> nn.Module:
    """A new network, by torch's random numbers as they are."""
    from sartor.models import registry

    return registry.build(job.recipe.model, shape=job.data.shape, classes=job.data.classes, vocabulary=job.data.vocabulary)


def _replayed(job: Job, seed: int, holders: int, steps: int) -> Replayed:
    import sartor
    from sartor.audit.replay import replay
    from sartor.sgd import Execution, fit_members

    if holders < 1 or steps < 1:
        raise SartorError("--holders and --steps are 1 or more.")
    recipe, fitter = job.recipe, fit_members if job.plan.scheme == "adapdp" else sartor.fit

    def train(data: Any, seed: int) -> dict[str, Any]:
        result = fitter(
            _made(job),
            data,
            job.budgets,
            job.plan,
            lr=recipe.lr,
            optimizer=recipe.optimizer,
            momentum=recipe.momentum,
            execution=Execution(max_physical_batch=job.asked.max_physical_batch),
            ownership=job.data.ownership,
            tracking=job.tracking,
            seed=seed,
            progress=False,
        )
        return result.account.to_json()

    with working("replaying"):
        return replay(
            train, job.data.train, job.budgets, job.plan, ownership=job.data.ownership, holders=holders, seed=seed, most_steps=steps
        )


def _by_canaries(job: Job, seed: int, canaries: int, confidence: float) -> Findings:
    from sartor.audit.canaries import canary_attack
    from sartor.audit.findings import REPEATED, findings

    recipe = job.recipe
    with working("training with canaries"):
        found = canary_attack(
            lambda: _made(job),
            job.data.train,
            job.budgets,
            job.plan,
            canaries=canaries,
            seed=seed,
            lr=recipe.lr,
            optimizer=recipe.optimizer,
            momentum=recipe.momentum,
            ownership=job.data.ownership,
            max_physical_batch=job.asked.max_physical_batch,
        )
    return findings("canary", found.white_box, job.plan, confidence=confidence, bounds=REPEATED)


def _by_shadows(job: Job, attack: str, seed: int, shadows: int, confidence: float, cache: str | None) -> Findings:
    from sartor.audit.findings import ONE_RUN, findings
    from sartor.audit.lira import lira
    from sartor.audit.losses import losses
    from sartor.audit.rmia import rmia
    from sartor.audit.shadow_training import Learning
    from sartor.audit.shadows import train_shadows

    recipe = job.recipe
    if attack == "rmia" and not len(job.data.test):
        raise SartorError("rmia compares with records that nobody trained on: give public test rows.")
    trained = train_shadows(
        lambda: _made(job),
        job.data.train,
        job.budgets,
        job.plan,
        models=shadows,
        population=job.data.test if attack == "rmia" else None,
        learning=Learning(lr=recipe.lr, optimizer=recipe.optimizer, momentum=recipe.momentum),
        ownership=job.data.ownership,
        signal="loss" if attack == "loss" else "log-odds",
        seed=seed,
        folder=cache,
    )
    score: Any = {"lira": lira, "rmia": rmia, "loss": losses}[attack]
    # figures pool all models; a bound is from one alone, in which everybody's coin was their own
    return findings(attack, score(trained), job.plan, confidence=confidence, bounds=ONE_RUN, counted=score(trained, models=[0]))


def _table(found: Findings | Replayed) -> Table:
    from sartor.audit.replay import Replayed

    if not isinstance(found, Replayed):
        return found.table()
    row = [f"{found.steps:,}", f"{found.holders_tried:,}", f"{found.largest_move:.6f}", found.verdict]
    return Table(["steps", "holders tried", "largest move over the clip", "verdict"], [row], "Replay with one holder zeroed")


def _words(found: Findings | Replayed) -> str:
    from sartor.audit.replay import Replayed

    if not isinstance(found, Replayed):
        return found.sentence()
    if found.faults:
        return "Refuted:\n" + "\n".join(f"- {fault}" for fault in found.faults)
    unseen = f" Records in {', '.join(found.unseen)} could not be replaced." if found.unseen else ""
    return f"Consistent: no sum moved by more than a holder's clip, and nothing else followed a holder's records.{unseen}"


def _write(path: str, found: Any, job: Job, sensitive: bool) -> None:
    from sartor.report.audit import audit_page
    from sartor.run.files import write_private, write_public

    content = audit_page(found, title=f"{job.data.name}: audit of {job.recipe.model} trained with {job.plan.scheme}", sensitive=sensitive)
    try:
        if sensitive:
            write_private(path, content.encode())
        else:
            write_public(path, content)
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
