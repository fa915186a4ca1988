"""Federated MNIST with budgets by client: accuracy by distribution of budgets and scheme, beside the paper's order.

    python benchmarks/federated_results.py --data DIR --out docs/results/federated_runs.jsonl
    python benchmarks/federated_results.py --data DIR --out docs/results/federated_runs.jsonl --part 0/2     # half of them, for one core

The parts of `sartor.federated` around a plain loop over the drawn clients, in one process and thread: what Flower adds is transport.
Runs are seeded; what is in the file already is left out.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

import sartor
from sartor import federated
from sartor.federated.rounds import Round
from sartor.federated.task import Settings, Task
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream

SETUPS: dict[str, tuple[str, str]] = {
    "none": ("inf", ""),
    "weakest for all": ("3", ""),
    "A": ("1,2,3", "0.34,0.43,0.23"),
    "B": ("1,2,3", "0.54,0.37,0.09"),
    "strictest for all": ("1", ""),
}
ALDAGHRI = ("0.6,inf", "0.95,0.05")
PUBLIC: dict[
    str, dict[str, float]
] = {  # caps under which public clients weigh the same in expectation: drawn nine times as often, or nine times as long
    "sample": {"public_rate": 0.5, "public_clip": 0.15},
    "scale": {"public_clip": 1.35},
}


def runs(settings: Settings) -> list[tuple[str, str, str, int, Settings, dict[str, Any]]]:
    """Split, setup, scheme, seed, task and plan options of every run."""
    wanted: list[tuple[str, str, str, int, Settings, dict[str, Any]]] = []
    for seed in (0, 1):
        for split in ("iid", "writer"):
            for setup, (epsilon, share) in SETUPS.items():
                for scheme in ("sample", "scale") if setup in "AB" else ("uniform",):
                    own = replace(settings, split=split, epsilon=epsilon, share=share, seed=seed)
                    wanted.append((split, setup, scheme, seed, own, {}))
        for scheme, caps in PUBLIC.items():
            own = replace(settings, split="writer", epsilon=ALDAGHRI[0], share=ALDAGHRI[1], seed=seed)
            wanted.append(("writer", "95 % at 0.6, 5 % public", scheme, seed, own, caps))
        wanted.append(("writer", "0.6 for all", "uniform", seed, replace(settings, split="writer", epsilon="0.6", share="", seed=seed), {}))
    return wanted


def run(task: Task, scheme: str, seed: int, asked: argparse.Namespace, options: dict[str, Any]) -> dict[str, Any]:
    """Train to the end of the plan; accuracy on the test digits every ten rounds."""
    none = bool(np.isinf(task.budgets.epsilon).all())
    clip = 1e9 if none else asked.clip
    adaptive = None if none or asked.quantile is None else federated.AdaptiveClip(asked.quantile)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.SartorWarning)
        how: dict[str, Any] = {"rounds": asked.rounds, "per_round": asked.per_round, "clip": clip, "accountant": "rdp", **options}
        plan = federated.plan(task.budgets, scheme, adaptive=adaptive, **how)
    stream = Stream(seed)
    sampler = PoissonSampler(plan.accounted, task.budgets, stream)
    begin = {name: value.numpy() for name, value in task.network().state_dict().items()}
    server = federated.ServerOptimizer(begin, momentum=asked.momentum, lr=asked.server_lr)
    model, history = server.model, []
    for step in range(plan.rounds):
        current = Round(plan, sampler.draw(step), model, clip)
        state = {name: torch.from_numpy(np.array(part)) for name, part in model.items()}
        for client in current.drawn:
            trained = task.trained(client, state, seed=hash((seed, step, client)) % 2**31)
            current.add(client, {name: value.numpy() for name, value in trained.items()})
        released = current.release(stream)
        model, clip = server.step(released.mean), released.clip
        if (step + 1) % 10 == 0 or step + 1 == plan.rounds:
            state = {name: torch.from_numpy(np.array(part)) for name, part in model.items()}
            history.append((step + 1, task.accuracy(state)))
    return {
        "accuracy": history[-1][1],
        "history": history,
        "noise_multiplier": plan.accounted.noise_multiplier,
        "rate": plan.accounted.rate.tolist(),
        "epsilon": [str(value) for value in plan.accounted.epsilon],
        "spent": [str(value) for value in plan.accounted.spent],
        "last_clip": clip,
    }


def main() -> None:
    """Run what is missing in the file, and add it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", help="setups whose name begins so")
    parser.add_argument("--split", help="this split alone")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--per-round", type=float, default=30)
    parser.add_argument("--clients", type=int, default=1_000)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch", type=int, default=20)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--clip", type=float, default=0.15)
    parser.add_argument("--quantile", type=float)
    parser.add_argument("--server-lr", type=float, default=1.0)
    parser.add_argument("--momentum", type=float, default=0.0)
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    out = Path(asked.out)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(line["split"], line["setup"], line["scheme"], line["seed"]) for line in lines}
    settings = Settings("mnist", asked.data, asked.clients, epochs=asked.epochs, batch=asked.batch, lr=asked.lr, delta="1e-4")
    part, parts = map(int, asked.part.split("/"))
    for number, (split, setup, scheme, seed, own, options) in enumerate(runs(settings)):
        if (split, setup, scheme, seed) in done or number % parts != part or seed >= asked.seeds:
            continue
        if not setup.startswith(asked.only or "") or asked.split not in (None, split):
            continue
        start = time.perf_counter()
        found = run(Task(own), scheme, seed, asked, options)
        names = ("rounds", "per_round", "epochs", "batch", "lr", "clip", "quantile", "server_lr", "momentum")
        shown = {name: getattr(asked, name) for name in names}
        line = {"split": split, "setup": setup, "scheme": scheme, "seed": seed, **shown, **options, **found}
        line["seconds"] = time.perf_counter() - start
        print(json.dumps({key: line[key] for key in ("split", "setup", "scheme", "seed", "accuracy", "seconds")}), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
