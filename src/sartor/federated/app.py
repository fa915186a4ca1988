"""A Flower app for the tasks of `sartor federate`: settings in, a private model and its accounts out.

`client` and `server` are what Flower loads; both read their settings from the run's configuration. In a deployment a SuperNode says which
client it is by `partition-id`, under which key by `client-key`, and which budget it allows, in its node configuration.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from sartor.errors import SartorError
from sartor.federated.flower import PrivateFedAvg, private
from sartor.federated.plan import AdaptiveClip
from sartor.federated.task import Settings, Task, task

try:
    from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp
    from flwr.serverapp import Grid, ServerApp
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

RESULT = "result.json"
Report = Callable[[int, float], None]


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


def server_app(settings: Settings | None = None, wanted: dict[str, Any] | None = None, report: Report | None = None) -> ServerApp:
    """The server of a task: enrols, trains, and leaves `result.json` in its folder."""
    app = ServerApp()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        made = settings or _settings(context)
        options = dict(wanted if wanted is not None else json.loads(str(context.run_config["strategy"])))
        found = run(grid, task(made), options, report)
        if wanted is None:  # for whoever follows the log
            print(f"sartor-result: {json.dumps(found)}", flush=True)

    return app


def run(grid: Grid, made: Task, options: dict[str, Any], report: Report | None = None) -> dict[str, Any]:
    """Run a task to the end of its plan, and what came of it."""
    folder, every = str(options.pop("folder")), int(options.pop("every", 1))
    timeout = float(options.pop("timeout", 3600))
    if options.get("adaptive") is not None:
        options["adaptive"] = AdaptiveClip(**options["adaptive"])
    strategy = PrivateFedAvg(folder, **options)
    history: list[tuple[int, float]] = []

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord | None:
        # rounds are counted from the first server on, also by one that goes on
        done = strategy.ledger.charged
        if number and number % every and strategy.ledger.left:
            return None
        history.append((done, made.accuracy(arrays.to_torch_state_dict())))
        if report is not None:
            report(*history[-1])
        return MetricRecord({"accuracy": history[-1][1]})

    result = strategy.start(grid, ArrayRecord(made.network().state_dict()), timeout=timeout, evaluate_fn=evaluate)
    account = strategy.ledger.account().to_json()
    found = {
        "accuracy": history[-1][1],
        "history": [{"round": number, "accuracy": value} for number, value in history],
        "rounds": strategy.ledger.charged,
        "private": account["private"],
        "plan": strategy.ledger.plan.to_json(),
        "groups": [{key: group[key] for key in ("epsilon", "holders", "spent")} for group in account["groups"]],
    }
    save_file(result.arrays.to_torch_state_dict(), Path(folder) / "model.safetensors")
    (Path(folder) / RESULT).write_text(json.dumps(found, indent=2))
    return found


def _settings(context: Context) -> Settings:
    if "settings" not in context.run_config:
        raise SartorError("this app reads its settings from the run's configuration, and there are none.")
    read = Settings.read(json.loads(str(context.run_config["settings"])))
    own = context.node_config.get("data")  # a node knows best where its data is
    return replace(read, data=str(own)) if own else read


client = client_app()
server = server_app()
