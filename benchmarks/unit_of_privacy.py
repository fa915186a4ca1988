"""Training by person beside training by record and without privacy, on people who have several records each.

    python benchmarks/unit_of_privacy.py diabetes --data DIR --seed 0 --out docs/results/unit_of_privacy.jsonl
    python benchmarks/unit_of_privacy.py writers --data DIR --seed 0 --out docs/results/unit_of_privacy.jsonl
    python benchmarks/unit_of_privacy.py --table docs/results/unit_of_privacy.jsonl

`diabetes`: readmission within 30 days, from 101,766 encounters of 71,518 patients; a fifth of the patients is tested on, and the third of
their encounters with the highest risk is flagged. `writers`: MNIST by its 539 writers, tested on digits of others. By record every record
is a holder with its person's budget; by person people are drawn, clipped and charged as one. Both have the same clip, steps and expected
number of records in a step; without privacy nothing is clipped. Learning rates and clips were compared on seed 0, which nobody may do with
data that are not public. Runs are seeded so that they can be repeated: they are demonstrations, not releases.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
import warnings
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.metrics import balanced_accuracy_score, roc_auc_score
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.data import load, read_schema, read_table
from sartor.data.images import read_writers
from sartor.models import build
from sartor.plans.persons import spent_by_person

SCHEMA = Path(__file__).parent.parent / "examples" / "diabetes" / "schema.toml"
SHARES = (0.34, 0.43, 0.23)
FLAGGED = 1 / 3
WAYS = ("person", "record", "none")


@dataclass(frozen=True)
class Task:
    """People, their records, what is tested on, and how it is trained."""

    train: TensorDataset
    test: TensorDataset
    ownership: sartor.Ownership
    model: Callable[[], nn.Module]
    figures: Callable[[torch.Tensor, torch.Tensor], dict[str, float]]
    epsilon: tuple[float, float, float]
    delta: float
    rate: float
    steps: int
    clip: float
    lr: dict[str, float]
    most: int | None
    owned: int
    """Records of the person whose real promise is told."""


def diabetes(data: str, seed: int) -> Task:
    """Readmission within 30 days."""
    table = Path(data) / "diabetes130" / "diabetic_data.csv.xz"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        read = read_table(table, **read_schema(SCHEMA), test_share=0.2, seed=seed)
    assert read.ownership is not None
    assert read.held_out is not None
    soon = [TensorDataset(rows.tensors[0], (rows.tensors[1] == 2).long()) for rows in (read.train, read.held_out)]

    def figures(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        chance = outputs.softmax(1)[:, 1].numpy()
        return {
            "auc": float(roc_auc_score(labels.numpy(), chance)),
            "balanced_accuracy": float(balanced_accuracy_score(labels.numpy(), chance > np.quantile(chance, 1 - FLAGGED))),
        }

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(read.shape[0], 2))

    return Task(
        soon[0],
        soon[1],
        read.ownership,
        model,
        figures,
        (1.0, 3.0, 8.0),
        1e-6,
        0.02,
        1_000,
        2.0,
        {"person": 2.0, "record": 2.0, "none": 0.3},
        None,
        10,
    )


def writers(data: str, seed: int) -> Task:
    """MNIST by its writers."""
    digits = load("mnist", data)
    of_record = np.unique(read_writers(data, digits.train.tensors[1].numpy()), return_inverse=True)[1]
    ownership = sartor.Ownership(of_record, int(of_record.max()) + 1)

    def figures(outputs: torch.Tensor, labels: torch.Tensor) -> dict[str, float]:
        return {"accuracy": float((outputs.argmax(1) == labels).double().mean())}

    def model() -> nn.Module:
        return build("mnist-cnn", shape=(1, 28, 28), classes=10)

    return Task(
        digits.train,
        digits.test,
        ownership,
        model,
        figures,
        (4.0, 8.0, 16.0),
        1e-4,
        0.4,
        120,
        0.5,
        {"person": 1.0, "record": 3.0, "none": 0.5},
        8,
        111,
    )


TASKS = {"diabetes": diabetes, "writers": writers}


def planned(task: Task, way: str, people: sartor.Budgets) -> tuple[sartor.Budgets, sartor.Plan, sartor.Ownership | None]:
    """Budgets, plan and ownership of one way to train."""
    owners, count = task.ownership.of_record, len(task.ownership)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.SartorWarning)
        if way == "person":
            batch = task.rate * len(people)
            made = {"ownership": task.ownership, "records_per_holder": task.most}
            return people, sartor.plan(people, steps=task.steps, batch=batch, clip=task.clip, **made), task.ownership  # type: ignore[arg-type]
        epsilon = people.epsilon[owners] if way == "record" else np.full(count, np.inf)
        each = sartor.Budgets(epsilon, delta=task.delta)
        # as many records a step as people lend to one by person
        lent = np.minimum(task.ownership.counts, task.most or count).sum() / count
        return each, sartor.plan(each, steps=task.steps, batch=task.rate * lent * count, clip=task.clip if way == "record" else 1e6), None


def trained(name: str, way: str, data: str, seed: int) -> dict[str, Any]:
    """One run: its figures, and what people with one and with many records really get."""
    task = TASKS[name](data, seed)
    people = sartor.Budgets.from_shares(task.epsilon, SHARES, holders=task.ownership.holders, delta=task.delta, seed=seed)
    budgets, plan, ownership = planned(task, way, people)
    torch.manual_seed(seed)
    model, begin, lr = task.model(), time.perf_counter(), task.lr[way]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.SartorWarning)
        execution = sartor.Execution(max_physical_batch=8_192)
        found = sartor.fit(model, task.train, budgets, plan, ownership=ownership, lr=lr, execution=execution, seed=seed)
    seconds = time.perf_counter() - begin
    model.eval()
    with torch.no_grad():
        outputs = torch.cat([model(x) for x in task.test.tensors[0].split(2_000)])
    real = spent_by_person(plan, task.owned).tolist() if way != "none" else [float("inf")]
    return {
        "task": name,
        "way": way,
        "seed": seed,
        "holders": task.ownership.holders,
        "records": len(task.ownership),
        **task.figures(outputs, task.test.tensors[1]),
        "epsilon": list(task.epsilon),
        "delta": task.delta,
        "owned": task.owned,
        "spent_by_person": [str(value) if value == float("inf") else value for value in real],
        "noise_multiplier": plan.noise_multiplier,
        "rate": task.rate,
        "steps": found.steps,
        "batch": plan.batch,
        "clip": plan.clip,
        "lr": lr,
        "records_per_holder": task.most,
        "seconds": round(seconds, 1),
    }


def table(path: str) -> None:
    """The lines of a file as tables of Markdown, means over seeds."""
    runs: dict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for line in Path(path).read_text().splitlines():
        run = json.loads(line)
        runs[run["task"], run["way"]].append(run)
    for name in TASKS:
        ways = [way for way in WAYS if (name, way) in runs]
        if not ways:
            continue
        figures = [key for key in ("auc", "balanced_accuracy", "accuracy") if key in runs[name, ways[0]][0]]
        owned = runs[name, ways[0]][0]["owned"]
        print(f"| {name} | {' | '.join(figures)} | epsilon of a person with {owned} records | seeds | seconds |")
        print("|---" * (len(figures) + 4) + "|")
        for way in ways:
            mine = runs[name, way]
            cells = []
            for key in figures:
                values = [100 * run[key] for run in mine]
                cells.append(f"{statistics.mean(values):.1f}" + (f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""))
            real = ", ".join(f"{float(value):.4g}" for value in mine[0]["spent_by_person"]) if way != "none" else "no promise"
            seconds = statistics.mean(run["seconds"] for run in mine)
            named = {"person": "by person", "record": "by record", "none": "no privacy"}[way]
            print(f"| {named} | {' | '.join(cells)} | {real} | {len(mine)} | {seconds:.0f} |")
        print()


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", nargs="?", choices=TASKS)
    parser.add_argument("--data")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--out")
    parser.add_argument("--table")
    asked = parser.parse_args()
    if asked.table:
        table(asked.table)
        return
    for way in asked.way or WAYS:
        line = json.dumps(trained(asked.task, way, asked.data, asked.seed))
        print(line, flush=True)
        if asked.out:
            with open(asked.out, "a") as file:
                file.write(line + "\n")


if __name__ == "__main__":
    main()
