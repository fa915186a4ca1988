"""The server: it plans over the budgets that clients bring, trains, and prints what each group has spent."""

from pathlib import Path

import torch
from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp

from sartor.data import load
from sartor.federated.flower import PrivateFedAvg, StrategySettings
from sartor.federated.local import accuracy
from sartor.models import build

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Wait for the clients, train over them, keep the model, and print the account."""
    clients, folder = int(context.run_config["clients"]), Path(str(context.run_config["folder"])).expanduser()
    digits = load("digits")
    model = build("logistic", shape=digits.shape, classes=digits.classes)

    def evaluate(number: int, arrays: ArrayRecord) -> MetricRecord:
        model.load_state_dict(arrays.to_torch_state_dict())
        return MetricRecord({"accuracy": accuracy(model, *digits.test.tensors)})

    strategy = PrivateFedAvg(str(folder), StrategySettings(rounds=10, per_round=clients / 2, clip=0.5, min_clients=clients, wait=300))
    result = strategy.start(grid, ArrayRecord(model.state_dict()), evaluate_fn=evaluate)
    torch.save(result.arrays.to_torch_state_dict(), folder / "model.pt")
    print(strategy.ledger.account(), flush=True)
