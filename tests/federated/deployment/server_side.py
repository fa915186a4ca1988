"""Three rounds over three clients, and what came out of them."""

import json
import os
from pathlib import Path

import numpy as np
from flwr.app import Array, ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp

from sartor.federated.flower import PrivateFedAvg, StrategySettings

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    folder = Path(str(context.run_config["folder"]))
    (folder / "server.pid").write_text(str(os.getpid()))
    wait = float(str(context.run_config["wait"]))
    strategy = PrivateFedAvg(str(folder / "ledger"), StrategySettings(rounds=3, per_round=3, min_clients=3, wait=wait))
    start = ArrayRecord({"vector": Array(np.zeros(3)), "scalar": Array(np.array(0.0))})
    result = strategy.start(grid, start, timeout=300)
    model = [*result.arrays["vector"].numpy().tolist(), float(result.arrays["scalar"].numpy())]
    (folder / "model.json").write_text(json.dumps(model))
