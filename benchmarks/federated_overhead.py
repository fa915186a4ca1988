"""What the private strategy costs beside Flower's own FedAvg, in Flower's simulation engine: seconds per round, in turns, the best of each.

python benchmarks/federated_overhead.py --data DIR
"""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from collections.abc import Mapping
from statistics import median
from typing import Any

import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg, Strategy
from flwr.simulation import run_simulation

from sartor.federated.flower import PrivateFedAvg, StrategySettings, private
from sartor.federated.task import Settings, task


class Both(ClientApp):
    """One fleet for both strategies: as it is for FedAvg, which needs what clients measured, and with the line that makes it private."""

    def __init__(self, plain: ClientApp, epsilon: float) -> None:
        super().__init__()
        self._plain, self._private = plain, private(plain, epsilon=epsilon, delta=1e-3)

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer the strategy that asks, which says so in its configuration."""
        config: Mapping[str, Any] = message.content.config_records.get("config", {})
        return (self._plain if config.get("plain") else self._private)(message, context)


def clients(settings: Settings) -> ClientApp:
    """Clients as a user of FedAvg writes them."""
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


class Clock:
    """When the rounds of a strategy begin, and how long it is at work itself: choosing, adding up, charging and saving."""

    def __init__(self, strategy: Strategy) -> None:
        self._begun: list[float] = []
        self._work: list[float] = []
        configure, aggregate = strategy.configure_train, strategy.aggregate_train

        def configured(*given: Any, **more: Any) -> Any:
            start = time.perf_counter()
            self._begun.append(start)
            messages = list(configure(*given, **more))
            self._work.append(time.perf_counter() - start)
            return messages

        def aggregated(number: int, replies: Any) -> Any:
            answers = list(replies)
            start = time.perf_counter()
            found = aggregate(number, answers)
            self._work[-1] += time.perf_counter() - start
            return found

        strategy.configure_train, strategy.aggregate_train = configured, aggregated  # type: ignore[method-assign,assignment]

    def medians(self) -> tuple[float, float]:
        """Seconds from one round to the next, and seconds of work in a round."""
        return median(after - before for before, after in itertools.pairwise(self._begun)), median(self._work)


def measured(settings: Settings, rounds: int, repeats: int, epsilon: float, clip: float) -> dict[str, Any]:
    """Seconds per round of both strategies, which take turns over the same simulated clients."""
    turns: dict[str, list[tuple[float, float]]] = {"FedAvg": [], "PrivateFedAvg": []}

    def server(grid: Grid, context: Context) -> None:
        arrays = ArrayRecord(task(settings).network().state_dict())
        everyone = settings.clients  # drawn in every round of both, so that both train as many clients
        for turn in range(repeats):
            with tempfile.TemporaryDirectory() as folder:
                strategies: list[Strategy] = [
                    FedAvg(fraction_train=1.0, fraction_evaluate=0.0, min_available_nodes=everyone),
                    PrivateFedAvg(
                        folder,
                        StrategySettings(rounds=rounds, per_round=everyone, min_clients=everyone, wait=300, accountant="rdp", clip=clip),
                    ),
                ]
                for strategy in strategies[:: 1 if turn % 2 else -1]:
                    clock, plain = Clock(strategy), isinstance(strategy, FedAvg)
                    strategy.start(grid, arrays, num_rounds=rounds, train_config=ConfigRecord({"plain": plain}))
                    turns[type(strategy).__name__].append(clock.medians())

    app = ServerApp()
    app.main()(server)
    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(app, Both(clients(settings), epsilon), num_supernodes=settings.clients, backend_config=resources)  # type: ignore[arg-type]
    best = {name: min(found)[0] for name, found in turns.items()}
    work = {name: min(own for _, own in found) for name, found in turns.items()}
    return {"seconds_per_round": best, "ratio": best["PrivateFedAvg"] / best["FedAvg"], "own_work": work, "turns": turns}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--repeats", type=int, default=3)
    # so wide that noise hardly moves the model, and both strategies have clients train the same one
    parser.add_argument("--epsilon", type=float, default=1e6)
    parser.add_argument("--clip", type=float, default=10.0)
    asked = parser.parse_args()
    settings = Settings("mnist", asked.data, clients=asked.clients, epochs=1, batch=50)
    print(json.dumps(measured(settings, asked.rounds, asked.repeats, asked.epsilon, asked.clip)))


if __name__ == "__main__":
    main()
