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
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor import confidential, usual
from sartor.allowed import Allowed
from sartor.cli.output import print_json, show, working
from sartor.errors import Infeasible, SartorError
from sartor.federated.enrolment import Limits
from sartor.run.files import write_private, write_public

if TYPE_CHECKING:
    from sartor.federated.task import Settings

_NO_CLIP = 1e9  # of a run without privacy: no update is as long
_EVALUATIONS = 20
_WAIT = 600.0  # seconds for all clients to be there
_RESULT = "sartor-result: "
_LEDGER, _SETTINGS = "ledger", "settings.json"
_PATHS = ("data", "budgets", "policy")


def federate(
    dataset: Annotated[str, typer.Option(help="digits, mnist or fashion-mnist.")] = "digits",
    data: Annotated[str | None, typer.Option(help="Where the data set's files are; otherwise $SARTOR_DATA or data.", metavar="DIR")] = None,
    clients: Annotated[int, typer.Option(help="Number of clients (writers are as many as there are).")] = usual.FEDERATION.clients,
    per_round: Annotated[float, typer.Option(help="Expected number of clients in a round.")] = usual.FEDERATION.per_round,
    rounds: Annotated[int, typer.Option(help="Number of rounds.")] = usual.FEDERATION.rounds,
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas; inf marks public clients.")] = None,
    share: Annotated[str | None, typer.Option(help="Share of the clients in each group, separated by commas.")] = None,
    delta: Annotated[str, typer.Option(help="Delta, one for all or one per group.")] = usual.FEDERATION.delta,
    budgets: Annotated[str | None, typer.Option(help="CSV of holder,epsilon[,delta] or holder,level by client.", metavar="FILE")] = None,
    policy: Annotated[str | None, typer.Option(help="TOML that maps levels to numbers.", metavar="FILE")] = None,
    floor: Annotated[float, typer.Option(help="Clients with an epsilon below this take no part.")] = Limits.floor,
    ceiling: Annotated[float, typer.Option(help="Nor do those above this, unless theirs is inf.")] = Limits.ceiling,
    delta_floor: Annotated[float, typer.Option(help="Clients with a delta below this take no part.")] = Limits.delta_floor,
    delta_ceiling: Annotated[float, typer.Option(help="Nor do those above this.")] = Limits.delta_ceiling,
    scheme: Annotated[str, typer.Option(help="sample, scale, hybrid, uniform, or none (no privacy).")] = "sample",
    mix: Annotated[float | None, typer.Option(help="hybrid: share of sampling, in [0, 1].")] = None,
    public_rate: Annotated[float | None, typer.Option(help="Rate of public clients.")] = None,
    public_clip: Annotated[float | None, typer.Option(help="Clip of public clients.")] = None,
    accountant: Annotated[str, typer.Option(help="pld (tight) or rdp.")] = "pld",
    clip: Annotated[float, typer.Option(help="Clip norm of an update; its mean, where clips are personal.")] = usual.FEDERATION.clip,
    adaptive_clip: Annotated[float | None, typer.Option(help="Let the clip follow this quantile of norms.", metavar="QUANTILE")] = None,
    count_noise: Annotated[
        float | None, typer.Option(help="With --adaptive-clip: noise on the count of short updates; otherwise a twentieth of --per-round.")
    ] = None,
    split: Annotated[str, typer.Option(help="iid, dirichlet:0.3, pachinko:0.1:10 or writer.")] = usual.FEDERATION.split,
    model: Annotated[str | None, typer.Option(help="Model by name; otherwise the usual one for the data.")] = None,
    epochs: Annotated[int, typer.Option(help="Epochs of a client in a round.")] = usual.FEDERATION.epochs,
    batch: Annotated[int, typer.Option(help="Size of a client's batches.")] = usual.FEDERATION.batch,
    lr: Annotated[float, typer.Option(help="Learning rate of clients.")] = usual.FEDERATION.lr,
    server_optimizer: Annotated[str, typer.Option(help="sgd or adam.")] = usual.FEDERATION.server_optimizer,
    server_lr: Annotated[float, typer.Option(help="Learning rate of the server.")] = usual.FEDERATION.server_lr,
    server_momentum: Annotated[float, typer.Option(help="Momentum of the server's sgd.")] = usual.FEDERATION.server_momentum,
    engine: Annotated[
        str,
        typer.Option(
            help="simulation on this machine, or deployment at ADDRESS: a rehearsal on shared data, as every client is sent the seed of "
            "the split and all budgets; for real clients write an app (examples/federated)."
        ),
    ] = "simulation",
    superlink: Annotated[str | None, typer.Argument(metavar="ADDRESS", help="deployment: where the SuperLink is.")] = None,
    out: Annotated[
        str | None,
        typer.Option(
            help="Folder to keep the run in; an interrupted run in it goes on. In a deployment it is one on the server app's machine.",
            metavar="RUN",
        ),
    ] = None,
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None,
    json: Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")] = False,
) -> None:
    """Train one model over clients so that every client gets the privacy that it asked for.

    ADDRESS is for --engine deployment: the host and port of a SuperLink on this machine, or the name of a SuperLink connection in Flower's
    configuration.
    """
    given = dict(locals())
    _check_together(given)
    settings, options = _asked(given)
    if out is not None:
        settings = _of_run(Path(out), settings, seed)
    task, taken = _checked(settings, options)
    if out is not None:
        _keep(Path(out), settings)
    with tempfile.TemporaryDirectory(prefix="sartor-") as temporary:
        folder = (Path(out or temporary) / _LEDGER).resolve()
        options.update(folder=str(folder), min_clients=taken, wait=_WAIT)
        if not json:
            show(_introduction(given, task))
        start = time.perf_counter()
        run = _simulated if superlink is None else _deployed
        found = run(settings, options, task.clients, superlink)
        found["seconds"] = time.perf_counter() - start
    if json:
        print_json(found)
    else:
        show(_conclusion(found, given, folder))


def _check_together(given: dict[str, Any]) -> None:
    """Refuse options that contradict each other, before anything is read."""
    none = given["scheme"] == "none"
    if given["engine"] not in ("simulation", "deployment"):
        raise SartorError(f'an engine is "simulation" or "deployment", not "{given["engine"]}".')
    if (given["engine"] == "deployment") != (given["superlink"] is not None):
        raise SartorError("--engine deployment is followed by the address of a SuperLink, and only that.")
    if given["superlink"] is not None:
        _check_address(given["superlink"])
    _allowed(given)
    if none and (given["epsilon"] is not None or given["budgets"] is not None):
        raise SartorError("--scheme none trains without privacy: leave out the budgets.")
    if none and given["adaptive_clip"] is not None:
        raise SartorError("--scheme none clips nothing: leave out --adaptive-clip.")
    if given["count_noise"] is not None and given["adaptive_clip"] is None:
        raise SartorError("--count-noise goes with --adaptive-clip.")
    if given["server_momentum"] and given["server_optimizer"] == "adam":
        raise SartorError("--server-momentum goes with --server-optimizer sgd.")


def _check_address(address: str) -> None:
    """An address on this machine, or the name of a connection, which Flower knows more of."""
    if not address.strip():
        raise SartorError("the address of the SuperLink is empty: give its host and port, as in 127.0.0.1:9093.")
    host, colon, port = address.rpartition(":")
    if not colon:
        return
    if host not in ("127.0.0.1", "localhost", "[::1]"):
        raise SartorError(
            "an address alone has no certificates, so it is for this machine; elsewhere give the name of a SuperLink connection in "
            "Flower's configuration."
        )
    if not re.fullmatch("[0-9]{1,5}", port) or not 0 < int(port) < 2**16:
        raise SartorError(f'an address ends with a port from 1 to 65535, as in 127.0.0.1:9093, not with "{port}".')


def _asked(given: dict[str, Any]) -> tuple[Settings, dict[str, Any]]:
    """The task and the strategy that the options describe."""
    from sartor.federated.task import Settings

    none = given["scheme"] == "none"
    allowed = Allowed(epsilon="inf") if none else _allowed(given).or_else(usual.ALLOWED)
    people = {"epsilon": allowed.epsilon or "", "share": allowed.share or ""}
    named = {name: os.path.abspath(given[name]) if given[name] is not None else "" for name in _PATHS}
    plain: dict[str, Any] = {name: given[name] for name in ("dataset", "clients", "split", "delta", "epochs", "batch", "lr")}
    chosen = secrets.randbits(31) if given["seed"] is None else given["seed"]
    settings = Settings(**{**plain, **people, **named, "model": given["model"] or "", "seed": chosen})
    options: dict[str, Any] = {
        "rounds": given["rounds"],
        "per_round": given["per_round"],
        "scheme": "uniform" if none else given["scheme"],
        "clip": _NO_CLIP if none else given["clip"],
        "accountant": given["accountant"],
        "adaptive": None if given["adaptive_clip"] is None else {"quantile": given["adaptive_clip"], "noise": given["count_noise"]},
        "limits": asdict(Limits(given["floor"], given["ceiling"], given["delta_floor"], given["delta_ceiling"])),
        "optimizer": given["server_optimizer"],
        "lr": given["server_lr"],
        "momentum": given["server_momentum"],
        "every": max(1, given["rounds"] // _EVALUATIONS),
        "seed": given["seed"],
    }
    options.update({name: given[name] for name in ("mix", "public_rate", "public_clip") if given[name] is not None})
    return settings, options


def _allowed(given: dict[str, Any]) -> Allowed:
    """What the options say that clients allow."""
    said = {name: given[name] for name in ("epsilon", "share", "delta", "policy", "seed")}
    return Allowed(**said, file=given["budgets"])


def _of_run(folder: Path, settings: Settings, seed: int | None) -> Settings:
    """The settings of the run in a folder, where one was begun: who holds which rows under which budget is drawn once.

    Before there is a ledger nothing is charged, and others can be asked for; the seed is kept all the same, as the ledger of a deployment
    can be on another machine. The ledger has them as well, and its server compares.
    """
    from sartor.federated.ledger import Ledger
    from sartor.federated.task import Settings

    begun = Ledger.is_in(folder / _LEDGER)
    path = folder / _SETTINGS
    if not path.exists():
        if begun:
            raise SartorError(f"the run in {folder} does not say how it was begun, so it cannot go on; a new run needs a new folder.")
        return settings
    kept = Settings.read(path)
    if seed is not None and seed != kept.seed:
        raise SartorError(f"the run in {folder} has another seed; a new run needs a new folder.")
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
    write_private(folder / _SETTINGS, text.dumps(settings.to_json()).encode())


def _checked(settings: Settings, options: dict[str, Any]) -> tuple[Any, int]:
    """The task of these settings and how many clients take part, planned once here: what is wrong is said before an engine starts."""
    import numpy as np

    from sartor.federated.enrolment import enrol
    from sartor.federated.plan import AdaptiveClip, plan
    from sartor.federated.server import ServerOptimizer
    from sartor.federated.task import task

    ServerOptimizer({"any": np.zeros(1)}, options["optimizer"], lr=options["lr"], momentum=options["momentum"])
    with working("reading the data"):
        found = task(settings)
        found.network()
    left_out = ("optimizer", "lr", "momentum", "every", "seed", "adaptive", "limits")
    wanted = {name: value for name, value in options.items() if name not in left_out}
    with working("planning"):
        allowed = zip(found.budgets.epsilon.tolist(), found.budgets.delta.tolist(), strict=True)
        declared = {str(client): {"epsilon": epsilon, "delta": delta} for client, (epsilon, delta) in enumerate(allowed)}
        enrolled = enrol(declared, limits=Limits(**options["limits"]))
        made = plan(enrolled.budgets, **wanted)
        if options["adaptive"] is not None:
            try:
                replace(made, adaptive=AdaptiveClip(**options["adaptive"]))
            except Infeasible as error:
                raise Infeasible(f"{str(error).rstrip('.')} (--count-noise, --per-round, or no --adaptive-clip).") from None
    return found, len(enrolled.keys)


def _simulated(settings: Settings, options: dict[str, Any], clients: int, _: str | None) -> dict[str, Any]:
    """In Flower's simulation engine, on this machine's cores."""
    from importlib.util import find_spec

    from sartor.progress import bar

    _keep_to_ourselves()
    if find_spec("flwr") is None or find_spec("ray") is None:
        raise SartorError("federated learning needs flwr and ray: pip install 'sartor[federated]'.")
    from sartor.federated import app

    with bar("rounds", options["rounds"]) as advance:
        return app.simulate(settings, options, clients, advance)


def _keep_to_ourselves() -> None:
    """No telemetry and no checks for updates, where nobody has asked for them."""
    for name, value in {"FLWR_TELEMETRY_ENABLED": "0", "FLWR_DISABLE_UPDATE_CHECK": "1", "RAY_USAGE_STATS_ENABLED": "0"}.items():
        os.environ.setdefault(name, value)
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # as Ray will have it, which it otherwise says at length


def _deployed(settings: Settings, options: dict[str, Any], clients: int, address: str | None) -> dict[str, Any]:
    """On a SuperLink: the app is sent there, and the run is followed to its end."""
    assert address is not None
    from importlib.util import find_spec

    from sartor.progress import bar

    if find_spec("flwr") is None:
        raise SartorError("federated learning needs flwr: pip install 'sartor[federated]'.")
    _keep_to_ourselves()
    with tempfile.TemporaryDirectory(prefix="sartor-app-") as folder, bar("rounds", options["rounds"]) as advance:
        environment = {**os.environ, **_connection(Path(folder), address)}
        app = Path(folder) / "app"
        _write_app(app, settings, options)
        command = [sys.executable, "-m", "flwr.cli.app", "run", str(app), "sartor" if ":" in address else address, "--stream"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment) as process:
            assert process.stdout is not None
            last = ""
            for line in process.stdout:
                rest = line.partition(_RESULT)[2]
                if rest:
                    process.terminate()
                    found: dict[str, Any] = text.loads(rest)
                    return found
                begun = re.search(r"\[ROUND (\d+)/(\d+)\]", line)  # of those that this server has left
                if begun:
                    advance(options["rounds"] - int(begun[2]) + int(begun[1]) - 1)
                last = line.strip() or last
    raise SartorError(f"the deployment at {address} gave no result; its last words: {last}")


def _connection(folder: Path, address: str) -> dict[str, str]:
    """What tells Flower where the SuperLink is: its own configuration by name, or an address on this machine, which needs no encryption."""
    if ":" not in address:
        return {}
    connection = f'[superlink]\ndefault = "sartor"\n\n[superlink.sartor]\naddress = "{address}"\ninsecure = true\n'
    write_public(folder / "config.toml", connection)
    return {"FLWR_HOME": str(folder)}


def _write_app(folder: Path, settings: Settings, options: dict[str, Any]) -> None:
    """A Flower app with these settings in its configuration."""
    folder.mkdir()
    write_public(
        folder / "sartor_app.py",
        '"""Sartor\'s own client and server."""\n\nfrom sartor.federated.app import client, server\n\n__all__ = ["client", "server"]\n',
    )
    lines = ["[project]", 'name = "sartor-federate"', 'version = "1.0.0"', "dependencies = []", ""]
    lines += ["[tool.flwr.app]", 'publisher = "sartor"', "", "[tool.flwr.app.components]"]
    lines += ['serverapp = "sartor_app:server"', 'clientapp = "sartor_app:client"', "", "[tool.flwr.app.config]"]
    lines += [f"settings = {text.dumps(text.dumps(settings.to_json()))}", f"strategy = {text.dumps(text.dumps(options))}"]
    write_private(folder / "pyproject.toml", ("\n".join(lines) + "\n").encode())


def _introduction(given: dict[str, Any], task: Any) -> str:
    sizes = sorted(len(rows) for rows in task.rows)
    return (
        f"data: {task.data.name}, {task.clients} clients with {sizes[0]} to {sizes[-1]} rows ({given['split']})\n"
        f"rounds: {given['rounds']} with {given['per_round']:g} clients expected in each, {given['epochs']} epochs of a client\n"
        f"taken: {Limits(given['floor'], given['ceiling'], given['delta_floor'], given['delta_ceiling'])}; other clients take no part\n"
        "one holder: a client with all its rows\n"
    )


def _conclusion(found: dict[str, Any], given: dict[str, Any], folder: Path) -> str:
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
    return "\n".join([*lines, _kept(given, folder)])


def _kept(given: dict[str, Any], folder: Path) -> str:
    """Where the run is now: in a deployment the folder is one of the server app."""
    if given["superlink"] is None:
        return "Nothing was kept: --out keeps the model and the accounts." if given["out"] is None else f"The run is in {given['out']}."
    if given["out"] is None:
        return f"Nothing was kept on this machine; on the server app's, if it is another, the run is in {folder}."
    return f"The run is in {folder} on the server app's machine; {given['out']} on this one has its settings."
