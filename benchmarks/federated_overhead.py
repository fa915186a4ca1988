"""What the private strategy costs beside Flower's own FedAvg, in Flower's simulation engine: seconds per round, in turns, the best of each.

python benchmarks/federated_overhead.py --data DIR
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import tempfile
import time
from typing import Any

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from sartor.federated.flower import PrivateFedAvg, private
from sartor.federated.task import Settings, task


def clients(settings: Settings) -> ClientApp:
    """Clients as a user of FedAvg writes them, with the one line that makes them private ones."""
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        torch.set_num_threads(1)
        found = task(settings)
        client = int(context.node_config["partition-id"])
        arrays: ArrayRecord = message.content.array_records["arrays"]
        state = found.trained(client, arrays.to_torch_state_dict())
        measured = MetricRecord({"num-examples": len(found.rows[client])})
        return Message(RecordDict({"arrays": ArrayRecord(state), "metrics": measured}), reply_to=message)

    return app


def measured(settings: Settings, rounds: int, per_round: int, repeats: int) -> dict[str, Any]:
    """Seconds per round of both strategies, which take turns over the same simulated clients."""
    best = {"FedAvg": math.inf, "PrivateFedAvg": math.inf}

    def timed(strategy: Strategy) -> Strategy:
        """The same strategy, which notes when its rounds begin."""
        right = strategy.configure_train
        strategy.times = []  # type: ignore[attr-defined]

        def configure(number: int, *given: Any, **more: Any) -> Any:
            strategy.times.append(time.perf_counter())  # type: ignore[attr-defined]
            return right(number, *given, **more)

        strategy.configure_train = configure  # type: ignore[method-assign]
        return strategy

    def server(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(task(settings).network().state_dict())
        for _ in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                # everyone is drawn in every round of both, so that both train as many clients
                plain = timed(FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=settings.clients))
                private_ = timed(PrivateFedAvg(folder, rounds=rounds, per_round=per_round, min_clients=settings.clients, wait=300))
                for name, strategy in (("FedAvg", plain), ("PrivateFedAvg", private_)):
                    strategy.start(grid, arrays, num_rounds=rounds)
                    times: list[float] = strategy.times  # type: ignore[attr-defined]
                    each = sorted(after - before for before, after in itertools.pairwise(times))
                    best[name] = min(best[name], each[len(each) // 2])

    app = ServerApp()
    app.main()(server)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, private(clients(settings), epsilon=3.0, delta=1e-3), num_supernodes=settings.clients, backend_config=resources)  # type: ignore[arg-type]
    return {"seconds_per_round": best, "ratio": best["PrivateFedAvg"] / best["FedAvg"]}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    asked = parser.parse_args()
    settings = Settings("mnist", asked.data, clients=asked.clients, epochs=1, batch=50)
    print(json.dumps(measured(settings, asked.rounds, asked.clients, asked.repeats)))


if __name__ == "__main__":
    main()
