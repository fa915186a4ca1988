"""Trains what the PDP-SGD paper compares, on MNIST and Fashion-MNIST, and adds a line with its figures to a file.

    python benchmarks/pdp_results.py --dataset mnist --data DIR --way rounds --skew 0 --seed 0 --out docs/results/pdp_runs.jsonl
    python benchmarks/pdp_results.py --what intervals --interval 0.3 --way sample --data DIR --out docs/results/pdp_runs.jsonl
    python benchmarks/pdp_results.py --what pretrained --shares 0.34,0.43,0.23 --way rounds --data DIR --out docs/results/pdp_runs.jsonl
    python benchmarks/pdp_tables.py docs/results/pdp_runs.jsonl --plots docs/results

The network, batch, clip and budgets are the paper's: 20 groups with epsilon from 0.5 to 1, or other intervals. `pretrained` (section 5.4)
begins with a network trained on 9,000 public digits and their labels, and has epsilon 1, 2 and 3. Runs are seeded, so that they can be
repeated: they are demonstrations, not releases, and `published` keeps no promise anyway.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.baselines import fit_published
from sartor.data import load
from sartor.models import build
from sartor.plans.published import published
from sartor.sgd import fit_members

DELTA, STEPS, BATCH, CLIP, ROUNDS, LR = 1e-5, 9_375, 64, 1.0, 10, 0.1
MEMBERS = 2  # models of AdaPDP: the paper's Table 2 has 1.92 times the parameters of one, on average
SOUND = ("uniform", "jorgensen", "adapdp", "onion", "even", "search", "sample", "scale")
WAYS = (*SOUND, "published", "published-adaptive", "published-adapdp")
PUBLIC = 9_000  # of the test digits are PATE's public ones; the other thousand measure


def relu_network(shape: Any, classes: int) -> nn.Module:
    """The paper's network for 28x28 images (its Table 5): that of the IDP-SGD paper with ReLU. Both have 26,010 parameters."""
    model = build("mnist-cnn", shape=shape, classes=classes)
    for part in (model.features, model.classifier):
        for name, layer in part.named_children():
            if isinstance(layer, nn.Tanh):
                setattr(part, name, nn.ReLU())
    return model.to(memory_format=torch.channels_last)  # type: ignore[call-overload,no-any-return]


def pretrain(model: nn.Module, public: TensorDataset, epochs: int = 10) -> None:
    """Plain SGD on public digits."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    for _ in range(epochs):
        for part in torch.randperm(len(public)).split(64):
            optimizer.zero_grad()
            functional.cross_entropy(model(public.tensors[0][part]), public.tensors[1][part]).backward()
            optimizer.step()


def accuracy(model: nn.Module, test: TensorDataset) -> float:
    """On public rows."""
    model.eval()
    with torch.no_grad():
        found = torch.cat([model(part).argmax(1) for part in test.tensors[0].split(1_000)])
    return float((found == test.tensors[1]).double().mean())


def budgets_for(asked: argparse.Namespace, holders: int) -> sartor.Budgets:
    """Those of Table 1, of Figure 5, or of section 5.4."""
    if asked.what == "pretrained":
        shares = [float(part) for part in asked.shares.split(",")]
        return sartor.Budgets.from_shares((1.0, 2.0, 3.0), shares, holders=holders, delta=DELTA, seed=asked.seed)
    if asked.what == "intervals":
        epsilons = np.linspace(0.5, 0.5 + asked.interval, 20)
        return sartor.Budgets.from_shares(epsilons.tolist(), [1 / 20] * 20, holders=holders, delta=DELTA, seed=asked.seed)
    return sartor.Budgets.from_skew(asked.skew, holders=holders, delta=DELTA, seed=asked.seed)


def trained(
    asked: argparse.Namespace, model: nn.Module, train: TensorDataset, test: TensorDataset, budgets: sartor.Budgets
) -> dict[str, Any]:
    """One run, planned and trained by one way."""
    common = {"steps": asked.steps, "batch": BATCH, "clip": CLIP}
    rule = {} if asked.weight is None else {"threshold": f"fixed:{asked.weight:g}"}
    how: dict[str, Any] = {"lr": asked.lr, "seed": asked.seed, "progress": False}
    start = time.process_time()
    if asked.way.startswith("published"):
        scheme = "adapdp" if asked.way == "published-adapdp" else "rounds"
        rule = {"threshold": "adaptive"} if asked.way == "published-adaptive" else rule
        count = MEMBERS if scheme == "adapdp" else asked.rounds
        form = published(budgets, scheme, rounds=count, seed=asked.seed, **rule, **common)
        planned = time.process_time()
        result = fit_published(model, train, budgets, form, unsound=True, **how)
        found = {
            "rounds": len(form.rounds),
            "thresholds": [one.threshold for one in form.rounds],
            "noise": [one.noise_multiplier for one in form.rounds],
            "most_over_promise": float(np.max(form.really_spends / form.promised)),
            "steps": form.steps,
        }
    else:
        spread = {"spread": asked.way} if asked.way in ("onion", "even", "search") else {}
        scheme = "rounds" if spread else asked.way
        count = {"rounds": MEMBERS if scheme == "adapdp" else asked.rounds} if scheme in ("rounds", "adapdp") else {}
        plan = sartor.plan(budgets, scheme, **common, **spread, **count, **(rule if asked.way in ("onion", "even") else {}))
        planned = time.process_time()
        result = (fit_members if scheme == "adapdp" else sartor.fit)(model, train, budgets, plan, **how)
        found = {
            "rounds": len(plan.stages),
            "thresholds": plan.options.get("thresholds", []),
            "noise": [stage.noise_multiplier for stage in plan.stages],
            "most_over_promise": float(np.max(plan.spent / plan.epsilon)),
            "steps": plan.steps,
        }
    end = time.process_time()
    found |= {"planning_seconds": round(planned - start, 2), "cpu_seconds": round(end - planned, 1)}
    found["parameters"] = sum(parameter.numel() for parameter in result.model.parameters())
    return {**found, "accuracy": accuracy(result.model, test)}


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--what", choices=("table1", "weights", "intervals", "pretrained"), default="table1")
    parser.add_argument("--dataset", choices=("mnist", "fashion-mnist"), default="mnist")
    parser.add_argument("--data", required=True)
    parser.add_argument("--way", choices=WAYS, required=True)
    parser.add_argument("--skew", type=float, default=0.0)
    parser.add_argument("--weight", type=float, help="of what coins leave unused, in the fixed loss")
    parser.add_argument("--interval", type=float, default=0.5)
    parser.add_argument("--shares", default="0.34,0.43,0.23")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--lr", type=float, default=LR)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(asked.seed)
    data = load(asked.dataset, asked.data)
    model, test = relu_network(data.shape, data.classes), data.test
    line = {key: value for key, value in vars(asked).items() if key not in ("data", "out", "rounds", "steps") and value is not None}
    if asked.what == "pretrained":
        pretrain(model, TensorDataset(*(tensor[:PUBLIC] for tensor in test.tensors)))
        test = TensorDataset(*(tensor[PUBLIC:] for tensor in test.tensors))
        line["accuracy_before"] = accuracy(model, test)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.SartorWarning)
        line |= trained(asked, model, data.train, test, budgets_for(asked, len(data.train)))
    print(json.dumps({key: line[key] for key in ("what", "dataset", "way", "seed", "accuracy", "cpu_seconds")}), flush=True)
    if asked.out:
        with Path(asked.out).open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
