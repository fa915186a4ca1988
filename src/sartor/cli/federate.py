"""`sartor federate`: clients with budgets of their own train one model, in Flower's simulation or on a fleet.

Both engines deal one data set out to clients. A deployment by this command is a rehearsal of a fleet: the seed of the split and the budgets
go to every client in the run's configuration, so each can work out everybody's rows and budgets. Real clients have data and budgets of
their own, and an app of their own: examples/federated.
"""

from __future__ import annotations

import json as text
import os
import re
import secrets
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from sartor import confidential
from sartor.cli.federate_settings import FederateSettings
from sartor.cli.output import flat, print_json, show, working
from sartor.errors import Infeasible, SartorError
from sartor.run.files import write_private, write_public

if TYPE_CHECKING:
    from sartor.federated import FederatedPlan
    from sartor.federated.enrolment import Enrolled, StrategySettings
    from sartor.federated.task import Settings, Task

_EVALUATIONS = 20
_WAIT = 600.0  # seconds for all clients to be there
LEDGER, SETTINGS = "ledger", "settings.json"


@flat
def federate(
    asked: FederateSettings,
    *,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train one model over clients so that every client gets the privacy that it asked for.

    ADDRESS is for --engine deployment: the host and port of a SuperLink on this machine, or the name of a SuperLink connection in Flower's
    configuration.
    """
    settings = asked.task(secrets.randbits(31) if asked.seed is None else asked.seed)
    if asked.out is not None:
        settings = _of_run(Path(asked.out), settings, asked.seed)
    task, strategy, plan, _ = checked(settings, asked.strategy())
    if asked.out is not None:
        _keep(Path(asked.out), settings)
    with tempfile.TemporaryDirectory(prefix="sartor-") as temporary:
        folder = (Path(asked.out or temporary) / LEDGER).resolve()
        if not json:
            show(_introduction(asked, task))
        start = time.perf_counter()
        job = _Job(settings, strategy, plan, str(folder), every=max(1, asked.rounds // _EVALUATIONS))
        found = _simulated(job) if asked.superlink is None else _deployed(job, asked.superlink)
        found["seconds"] = time.perf_counter() - start
    if json:
        print_json(found)
    else:
        show(_conclusion(found, asked, folder))


@dataclass(frozen=True)
class _Job:
    """All that an engine needs."""

    settings: Settings
    strategy: StrategySettings
    plan: FederatedPlan
    """Over all clients that the settings give a budget that is taken: who is simulated. In a deployment others may enrol."""
    folder: str
    every: int


def _of_run(folder: Path, settings: Settings, seed: int | None) -> Settings:
    """The settings of the run in a folder, where one was begun: who holds which rows under which budget is drawn once.

    Before there is a ledger nothing is charged, and others can be asked for; the seed is kept all the same, as the ledger of a deployment
    can be on another machine. The ledger has them as well, and its server compares.
    """
    from sartor.federated.ledger import Ledger
    from sartor.federated.task import Settings

    begun = Ledger.is_in(folder / LEDGER)
    path = folder / SETTINGS
    if not path.exists():
        if begun:
            raise SartorError(f"the run in {folder} has no settings.json, so it cannot be continued; give a new folder for a new run.")
        return settings
    kept = Settings.read(path)
    if seed is not None and seed != kept.seed:
        raise SartorError(f"the run in {folder} was started with another seed; give a new folder for a new run.")
    asked = replace(settings, seed=kept.seed)
    if begun:
        asked.check_same(kept, folder)
    return asked


def _keep(folder: Path, settings: Settings) -> None:
    """Keep what was asked for last; the split's seed says whose rows are whose, so the file is for its owner alone."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise SartorError(f"{folder} cannot be made: {error.strerror}.") from None
    write_private(folder / SETTINGS, text.dumps(settings.to_json()).encode())


class Checked(NamedTuple):
    """The task of some settings, the strategy that waits for all who take part, the plan over them, and who they are."""

    task: Task
    strategy: StrategySettings
    plan: FederatedPlan
    enrolled: Enrolled


def checked(settings: Settings, asked: StrategySettings) -> Checked:
    """What a run is made of: what is wrong with it is said here.

    A simulation runs under this very plan. The server of a deployment plans once more, over those who really enrol: they may declare other
    budgets in their nodes' configuration.
    """
    import numpy as np

    from sartor.federated.task import task

    asked.server({"any": np.zeros(1)})
    with working("reading the data"):
        found = task(settings)
        found.network()
    with working("planning"):
        allowed = zip(found.budgets.epsilon.tolist(), found.budgets.delta.tolist(), strict=True)
        declared = {str(client): {"epsilon": epsilon, "delta": delta} for client, (epsilon, delta) in enumerate(allowed)}
        enrolled = asked.enrol(declared)
        made = replace(asked, adaptive=None).plan(enrolled.budgets)
        try:
            made = replace(made, adaptive=asked.adaptive)
        except Infeasible as error:
            raise Infeasible(f"{str(error).rstrip('.')} (--count-noise, --per-round, or no --adaptive-clip).") from None
    return Checked(found, replace(asked, min_clients=len(enrolled.keys), wait=_WAIT), made, enrolled)


def _simulated(job: _Job) -> dict[str, Any]:
    """In Flower's simulation engine, on this machine's cores."""
    from importlib.util import find_spec

    from sartor.progress import bar

    _keep_to_ourselves()
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise SartorError("federated learning needs flwr and ray: pip install 'sartor[federated]'.")
    from sartor.federated import app

    with bar("rounds", job.strategy.rounds) as advance:
        return app.simulate(job.settings, job.strategy, job.folder, every=job.every, plan=job.plan, report=advance)


def _keep_to_ourselves() -> None:
    """No telemetry and no checks for updates, where nobody has asked for them."""
    for name, value in {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will have it, which it otherwise says at length


def _deployed(job: _Job, address: str) -> dict[str, Any]:
    """On a SuperLink: the app is sent there, and the run is followed to its end."""
    from importlib.util import find_spec

    from sartor.federated.submit import refusal
    from sartor.progress import bar

    if find_spec("flwr") is None:
        raise SartorError("federated learning needs flwr: pip install 'sartor[federated]'.")
    _keep_to_ourselves()
    from sartor.federated.app import ANNOUNCED

    rounds = job.strategy.rounds
    with tempfile.TemporaryDirectory(prefix="sartor-app-") as folder, bar("rounds", rounds) as advance:
        environment = {**os.environ, **_connection(Path(folder), address)}
        app = Path(folder) / "app"
        _write_app(app, job)
        command = [sys.executable, "-m", "flwr.cli.app", "run", str(app), "sartor" if ":" in address else address, "--stream"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
            assert process.stdout is not None
            last, reason = "", None
            for line in process.stdout:
                rest = line.partition(ANNOUNCED)[2]
                if rest:
                    process.terminate()
                    found: dict[str, Any] = text.loads(rest)
                    return found
                begun = re.search(r"\[ROUND (\d+)/(\d+)\]", line)  # of those that this server has left
                if begun:
                    advance(rounds - int(begun[2]) + int(begun[1]) - 1)
                last, reason = line.strip() or last, refusal(line) or reason
    if reason is not None:
        raise SartorError(reason)
    raise SartorError(f"the deployment at {address} ended without a result; the last line of its log: {last}")


def _connection(folder: Path, address: str) -> dict[str, str]:
    """What tells Flower where the SuperLink is: its own configuration by name, or an address on this machine, which needs no encryption."""
    if ":" not in address:
        return {}
    connection = f'[superlink]\ndefault = "sartor"\n\n[superlink.sartor]\naddress = "{address}"\ninsecure = true\n'
    write_public(folder / "config.toml", connection)
    return {"FLWR_HOME": str(folder)}


def _write_app(folder: Path, job: _Job) -> None:
    """A Flower app with these settings in its configuration."""
    folder.mkdir()
    write_public(
        folder / "sartor_app.py",
        '"""Sartor\'s own client and server."""\n\nfrom sartor.federated.app import client, server\n\n__all__ = ["client", "server"]\n',
    )
    lines = ["[project]", 'name = "sartor-federate"', 'version = "1.0.0"', "dependencies = []", ""]
    lines += ["[tool.flwr.app]", 'publisher = "sartor"', "", "[tool.flwr.app.components]"]
    lines += ['serverapp = "sartor_app:server"', 'clientapp = "sartor_app:client"', "", "[tool.flwr.app.config]"]
    told = {"settings": text.dumps(job.settings.to_json()), "strategy": text.dumps(job.strategy.to_json())}
    lines += [f"{name} = {text.dumps(value)}" for name, value in {**told, "folder": job.folder, "every": job.every}.items()]
    write_private(folder / "pyproject.toml", ("\n".join(lines) + "\n").encode())


def _introduction(asked: FederateSettings, task: Task) -> str:
    sizes = sorted(len(rows) for rows in task.rows)
    return (
        f"data: {task.data.name}, {task.clients} clients with {sizes[0]} to {sizes[-1]} rows ({asked.split})\n"
        f"rounds: {asked.rounds} with {asked.per_round:g} clients expected in each, {asked.epochs} epochs of a client\n"
        f"taken: {asked.limits()}; other clients take no part\n"
        "one holder: a client with all its rows\n"
    )


def _conclusion(found: dict[str, Any], asked: FederateSettings, folder: Path) -> str:
    lines = [f"Accuracy on the public test rows: {found['accuracy']:.1%} ({found['rounds']} rounds in {found['seconds']:.0f} s)", ""]
    lines += [f"{'epsilon':>14} {'clients':>10} {'spent':>14}"]
    for row in found["groups"]:
        lines.append(f"{confidential.text(row['epsilon']):>14} {row['holders']:>10,} {confidential.text(row['spent']):>14}")
    lines.append("")
    if not found["plan"]["noise_multiplier"]:
        lines.append("All clients are public: there was no noise, and the run protects nobody.")
    else:
        lines.append("No client spent more than it allowed, and each can be sent its own account.")
        if not found["private"]:
            lines.append("The run was seeded: its noise can be repeated, so it protects nobody.")
    return "\n".join([*lines, _kept(asked, folder)])


def _kept(asked: FederateSettings, folder: Path) -> str:
    """Where the run is now: in a deployment the folder is one of the server app."""
    if asked.superlink is None:
        return "Nothing was kept: --out keeps the model and the accounts." if asked.out is None else f"The run is in {asked.out}."
    if asked.out is None:
        return f"Nothing was kept on this machine; on the server app's, if it is another, the run is in {folder}."
    return f"The run is in {folder} on the server app's machine; {asked.out} on this one has its settings."
