"""A Flower app for the tasks of `sartor federate`: settings in, a private model and its accounts out.

`client` and `server` are what Flower loads; both read their settings from the run's configuration. In a deployment a SuperNode says which
client it is by `partition-id`, under which key by `client-key`, and which budget it allows, in its node configuration.

It is a rehearsal on shared data: the settings hold the seed of the split, so every client can work out everybody's rows and budgets. Real
clients have data and budgets of their own, and an app of their own: examples/federated.
"""

from __future__ import annotations

import json
import logging
import os
import shlex
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save

from sartor.documents import parse_json
from sartor.errors import LargeDelta, NoNoise, RarelyUsed, SartorError
from sartor.federated.enrolment import StrategySettings
from sartor.federated.flower import PrivateFedAvg, private
from sartor.federated.plan import FederatedPlan
from sartor.federated.task import Settings, Task, task
from sartor.run.files import write_public

try:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

RESULT, HISTORY = "result.json", "history.json"
ANNOUNCED = "sartor-result: "  # what the result follows in a log
Report = Callable[[int], None]


def client_app(settings: Settings | None = None) -> ClientApp:
    """Clients that hold the rows of a task; settings of the run where none are given."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)  # as many clients as cores train side by side
        found = task(settings or _settings(context))
        arrays: ArrayRecord = message.content.array_records["arrays"]
        state = found.trained(int(context.node_config["partition-id"]), arrays.to_torch_state_dict())
        return Message(RecordDict({"arrays": ArrayRecord(state)}), reply_to=message)

    def epsilon(context: Context) -> float:
        return float(task(settings or _settings(context)).budgets.epsilon[int(context.node_config["partition-id"])])

    def delta(context: Context) -> float:
        return float(task(settings or _settings(context)).budgets.delta[int(context.node_config["partition-id"])])

    return private(app, epsilon=epsilon, delta=delta)


def server_app(serve: Callable[[Grid, Context], None]) -> ServerApp:
    """A server that does this when it starts."""
    app = ServerApp()
    app.main()(serve)
    return app


def _serve(grid: Grid, context: Context) -> None:
    """Run the task of the run's configuration, and print what came of it for whoever follows the log."""
    made, config = task(_settings(context)), context.run_config
    strategy = StrategySettings.from_json(json.loads(str(config["strategy"])))
    result = run(grid, made, strategy, str(config["folder"]), every=int(config["every"]))
    print(f"{ANNOUNCED}{json.dumps(result)}", flush=True)


def run(
    grid: Grid,
    made: Task,
    settings: StrategySettings,
    folder: str,
    *,
    every: int = 1,
    plan: FederatedPlan | None = None,
    report: Report | None = None,
) -> dict[str, Any]:
    """Run a task to the end of its plan, and what came of it, which is also left in the folder.

    The model is evaluated after `every` so many rounds. `plan` is one that was made over the very clients that will enrol. `report` is told
    after every round how many are done.
    """
    strategy = PrivateFedAvg(folder, replace(settings, task=made.settings.to_json()), plan=plan)
    history: list[dict[str, Any]] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        if not number:  # before the first round of this server
            history.extend(_earlier(Path(folder) / HISTORY, strategy.ledger.charged))
        # rounds are counted from the first server on, also by one that goes on
        done = strategy.ledger.charged
        if report is not None:
            report(done)
        if number and number % every and strategy.ledger.left:
            return None
        history.append({"round": done, "accuracy": made.accuracy(arrays.to_torch_state_dict())})
        write_public(Path(folder) / HISTORY, json.dumps(history))
        return MetricRecord({"accuracy": history[-1]["accuracy"]})

    result = strategy.start(grid, ArrayRecord(made.network().state_dict()), evaluate_fn=evaluate)
    account = strategy.ledger.account().to_json()
    found = {
        "accuracy": history[-1]["accuracy"],
        "history": history,
        "rounds": strategy.ledger.charged,
        "private": account["private"],
        "plan": strategy.ledger.plan.to_json(),
        "groups": [{key: group[key] for key in ("epsilon", "holders", "spent")} for group in account["groups"]],
    }
    write_public(Path(folder) / "model.safetensors", save(result.arrays.to_torch_state_dict()))
    write_public(Path(folder) / RESULT, json.dumps(found, indent=2))
    return found


def _earlier(path: Path, charged: int) -> list[dict[str, Any]]:
    """Accuracies that servers before this one measured, of models up to the one that it goes on from."""
    try:
        found = parse_json(path.read_text())
        return [{"round": int(point["round"]), "accuracy": float(point["accuracy"])} for point in found if point["round"] < charged]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []  # they are for people to look at, and no reason not to go on


def simulate(
    settings: Settings, strategy: StrategySettings, folder: str, *, every: int = 1, plan: FederatedPlan, report: Report | None = None
) -> dict[str, Any]:
    """Run a task in Flower's simulation engine, on this machine's cores, under the plan over all its clients, and what came of it.

    What planning warns of was said when the plan was made; of Flower's and Ray's own words only errors are shown.
    """
    from flwr.simulation import run_simulation

    found: list[dict[str, Any]] = []

    def serve(grid: Grid, _: Context) -> None:
        found.append(run(grid, task(settings), strategy, folder, every=every, plan=plan, report=report))

    os.environ.setdefault("RAY_RUNTIME_ENV_HOOK", f"{__name__}.with_quoted_interpreter")
    try:
        with _quiet():
            run_simulation(server_app(serve), client_app(settings), num_supernodes=task(settings).clients, backend_config=backend())
    except SartorError:
        raise
    except Exception as error:
        raise SartorError(f"the simulation failed: {error}.") from error
    if not found:
        raise SartorError("the simulation failed: it left no result.")
    return found[0]


def backend() -> dict[str, Any]:
    """How Flower starts Ray: on all cores, a client on each, and quietly."""
    ray = {"num_cpus": os.cpu_count() or 1, "include_dashboard": False, "log_to_driver": False, "logging_level": "ERROR"}
    return {"init_args": ray, "client_resources": {"num_cpus": 1, "num_gpus": 0.0}}


def with_quoted_interpreter(runtime_env: dict[str, Any] | None) -> dict[str, Any]:
    """What Ray starts its workers with: it hands the interpreter's path to a shell as it is, where one with a space would start nothing."""
    return {**(runtime_env or {}), "py_executable": shlex.quote(sys.executable)}


@contextmanager
def _quiet() -> Iterator[None]:
    flower = logging.getLogger("flwr")
    level = flower.level
    flower.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for category in (RarelyUsed, LargeDelta, NoNoise, FutureWarning, DeprecationWarning):
                warnings.simplefilter("ignore", category)
            yield
    finally:
        flower.setLevel(level)


def _settings(context: Context) -> Settings:
    if "settings" not in context.run_config:
        raise SartorError("the run's configuration has no settings; start this app with sartor federate.")
    read = Settings.from_json(json.loads(str(context.run_config["settings"])))
    own = context.node_config.get("data")  # a node knows best where its data is
    return replace(read, data=str(own)) if own else read


client = client_app()
server = server_app(_serve)
