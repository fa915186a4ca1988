"""Labels and students of individualized PATE in the settings of the paper, beside its figures.

    python benchmarks/pate_results.py --dataset mnist --data DIR --out docs/results/pate_runs.jsonl --keep FOLDER
    python benchmarks/pate_results.py --dataset adult --data DIR --seed 0 --out docs/results/pate_runs.jsonl --keep FOLDER
    python benchmarks/pate_results.py --dataset adult --by-class --data DIR --out docs/results/pate_runs.jsonl --keep FOLDER

The paper's parameters (Table 4) and its way of stopping: by the data-dependent bound at the orders 2 to 50, so the figures follow the
private votes; they are for comparison, on public data. Budgets are drawn at random, so one ensemble of 250 serves the standard and the
weighting variant in all settings; upsampling needs an ensemble of its own for each. Each ensemble votes three times, with noise and a
student of its own; figures are means. Votes are kept in FOLDER and used again. Runs are seeded.
"""

from __future__ import annotations

import argparse
import json
import re
import time
import warnings
from functools import partial
from math import log
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import sartor
from sartor import pate
from sartor.pate.labelling import Labelling, labelling, usual_estimator, usual_teachers
from sartor.pate.networks import predict
from sartor.pate.usual import usual
from sartor.run.stream import Stream

SURVEYS = {"A": ((1.0, 2.0, 3.0), (0.34, 0.43, 0.23)), "B": ((1.0, 2.0, 3.0), (0.54, 0.37, 0.09))}
HIGHER = {"log 4": log(4), "log 8": log(8), "log 16": log(16)}
RATIOS = (25, 50, 75)
VOTINGS = 3


def settings(dataset: str) -> list[tuple[str, str, tuple[float, ...], tuple[float, ...]]]:
    """Variant, name, epsilons and shares of every run."""
    found: list[tuple[str, str, tuple[float, ...], tuple[float, ...]]] = [("standard", "baseline", (log(2),), (1.0,))]
    if dataset == "mnist":
        for name, (epsilon, share) in SURVEYS.items():
            found += [(variant, name, epsilon, share) for variant in ("standard", "weight", "upsample")]
    for name, higher in HIGHER.items():
        for ratio in RATIOS:
            pair = ((log(2), higher), (1 - ratio / 100, ratio / 100))
            found += [("weight", f"{name}, {ratio} %", *pair)]
            if ratio == 50:
                found += [("upsample", f"{name}, {ratio} %", *pair)]
    return found


def votes_of(work: Labelling, plan: pate.PatePlan, placed: pate.Partition, asked: argparse.Namespace, name: str) -> NDArray[Any]:
    """The ensemble's votes, from a file if they are there."""
    path = Path(asked.keep) / f"{work.name}-{name}-{asked.seed}.npy"
    if not path.exists():
        start = time.perf_counter()
        options: dict[str, Any] = {"workers": asked.workers, "seed": asked.seed, "progress": True}
        epochs = asked.epochs if len(work.shape) > 1 else None
        cast = usual_teachers(work, **options, epochs=epochs).votes(work.private, placed.slices(), work.queries[: asked.queries])
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, cast)
        print(json.dumps({"trained": name, "teachers": plan.teachers, "seconds": time.perf_counter() - start}), flush=True)
    return np.asarray(np.load(path))[: asked.queries]


def measured(work: Labelling, variant: str, name: str, budgets: sartor.Budgets, asked: argparse.Namespace) -> dict[str, Any]:
    """One row: labels, their accuracy, the student's, and that of the teachers."""
    plan = pate.plan(budgets, variant, teachers=250, aggregator=usual(work.name).aggregator)
    # teachers 0 to 249 of one random ensemble stand for any plan with 250 teachers, since budgets say nothing about the records
    common = variant in ("standard", "weight") and not asked.by_class
    placed = pate.partition(pate.plan(budgets, "standard") if common else plan, budgets, b"key %d" % asked.seed)
    cast = votes_of(work, plan, placed, asked, "common" if common else "-".join(re.findall(r"\w+", f"{variant} {name}")))
    proven = pate.aggregate(plan, cast, work.classes, stream=Stream(asked.seed))
    seeds = range(VOTINGS * asked.seed, VOTINGS * (asked.seed + 1))
    found = [voted(work, plan, cast, seed) for seed in seeds]
    return {
        "dataset": work.name,
        "variant": variant,
        "setting": name,
        "seed": asked.seed,
        "teachers": plan.teachers,
        **{key: np.mean([voting[key] for voting in found], axis=0).tolist() for key in found[0]},
        "each_labels": [voting["labels"] for voting in found],
        "each_student_accuracy": [voting["student_accuracy"] for voting in found],
        "teacher_accuracy": float(np.mean(cast == work.truth.numpy()[: len(cast), None])),
        "labels_independent": len(proven),
        "epochs": asked.epochs if len(work.shape) > 1 else None,
    }


def voted(work: Labelling, plan: pate.PatePlan, cast: NDArray[Any], seed: int) -> dict[str, Any]:
    """One voting the paper's way, and a student of its labels."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", pate.DataDependent)
        options: dict[str, Any] = {"bound": "dependent", "accountant": pate.Accountant.paper(), "labels": 2_000}
        found = pate.aggregate(plan, cast, work.classes, stream=Stream(seed), **options)
    if found.asked.all():
        raise SystemExit("the queries did not suffice for where the voting would have stopped: give more --queries.")
    truth, given = work.truth.numpy()[: len(cast)], found.labels >= 0
    images = len(work.shape) > 1
    make = partial(pate.teacher_network, work.shape, work.classes) if images else usual_estimator()
    student = pate.train_student(make, work.queries[: len(cast)], found.labels, work.test, augment=images, seed=seed)
    inputs, labels = work.test.tensors
    guesses = np.asarray(predict(student.model, inputs) if images else student.model.predict(inputs.flatten(1).numpy()))
    return {
        "labels": len(found),
        "queries": int(found.asked.sum()),
        "label_accuracy": float(np.mean(found.labels[given] == truth[given])),
        "student_accuracy": student.accuracy,
        "student_per_class": [float(np.mean(guesses[labels.numpy() == c] == c)) for c in range(work.classes)],
        "spent": found.account.spent.tolist(),
    }


def budgets_by_class(work: Labelling, higher: float, ratio: int, seed: int) -> sartor.Budgets:
    """The higher budget for a share of the high incomes alone (section 6.3)."""
    labels = work.private.tensors[1].numpy()
    drawn = np.random.default_rng(seed).random(len(labels)) < ratio / 100
    return sartor.Budgets(np.where((labels == 1) & drawn, higher, log(2)), delta=1e-5)


def main() -> None:
    """Run what is missing in the file, and add it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dataset", choices=("mnist", "adult"), default="mnist")
    parser.add_argument("--data", required=True)
    parser.add_argument("--by-class", action="store_true", help="adult: budgets that follow the class, by upsampling")
    parser.add_argument("--only", help="settings whose name begins so")
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--queries", type=int, default=4_000, help="teachers answer as many; voting must stop before they are used up")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--keep", required=True, help="folder for votes")
    parser.add_argument("--out", required=True)
    asked = parser.parse_args()
    work = labelling(asked.dataset, asked.data)
    out = Path(asked.out)
    lines = [json.loads(line) for line in out.read_text().splitlines()] if out.exists() else []
    done = {(line["dataset"], line["variant"], line["setting"], line["seed"]) for line in lines}
    runs: list[tuple[str, str, sartor.Budgets]] = []
    if asked.by_class:
        for name, higher in HIGHER.items():
            people = {ratio: budgets_by_class(work, higher, ratio, asked.seed) for ratio in (25, 50, 75, 100)}
            runs += [("upsample", f"by class: {name}, {ratio} %", budgets) for ratio, budgets in people.items()]
    else:
        for variant, name, epsilon, share in settings(asked.dataset):
            drawn = sartor.Budgets.from_shares(epsilon, share, holders=len(work.private), delta=1e-5, seed=asked.seed)
            runs.append((variant, name, drawn))
    shown = ("variant", "setting", "teachers", "labels", "label_accuracy", "student_accuracy")
    for variant, name, budgets in runs:
        if (asked.dataset, variant, name, asked.seed) in done or not name.startswith(asked.only or ""):
            continue
        line = measured(work, variant, name, budgets, asked)
        print(json.dumps({key: line[key] for key in shown}), flush=True)
        with out.open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
