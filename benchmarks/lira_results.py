"""Membership inference by LiRA, group by group: what IDP-SGD's Figures 2, 8 and 10 and Table 12 show, on a task that one core can carry.

    python benchmarks/lira_results.py --data DIR --out docs/results/lira_runs.jsonl --table docs/results/lira.md
    python benchmarks/lira_results.py --data DIR --only dense                    # the small network alone, 40 minutes
    python benchmarks/lira_results.py --tables docs/results/lira_runs.jsonl --plots docs/results    # of runs that were made

The first images of MNIST, half of them at random at epsilon 10 and half at 20, as in the paper (which has CIFAR-10, 25,000 images and
512 models on a GPU); delta 1e-4. Two networks: *dense*, one hidden layer of 32 (4,000 images, 512 shadow models), and *mnist-cnn*, that of
the paper for MNIST (2,000 images, 128 models). Each is trained by Sample, by Scale, and by plain DP-SGD in which everybody has epsilon 10,
or everybody 20; records stay in the group that they have where budgets are personal. Every shadow model in turn is the target, attacked by
all others but its pair.

Significance is of the difference between groups. One figure for each record, its mean score in models that it was in less that in models
that it was out of, is one observation, for records are what budgets are drawn for; scores of one record are not independent. Welch's t and
a permutation of records between groups (9,999 times) test it. For five target models alone, as in Table 12, the scores of members are the
observations.
"""

from __future__ import annotations

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from individual_tables import written
from sartor.audit.lira import lira, losses, offline_lira, threshold_success
from sartor.audit.rmia import rmia
from sartor.audit.scores import Scores, auc, permutation, roc, tpr_at, welch
from sartor.audit.shadow_training import Learning
from sartor.audit.shadows import Shadows, train_shadows
from sartor.data import load
from sartor.models import build
from sartor.report import plots

POPULATION, DELTA, EPSILONS, TARGETS = 1_000, 1e-4, (10.0, 20.0), 5
LOW = (0.001, 0.01)
RATES = np.logspace(-4, 0, 81)  # false positive rates of the curves
WAYS = ("sample", "scale", "uniform-10", "uniform-20")
PERMUTATIONS = 9_999


def dense() -> nn.Module:
    """One hidden layer: 25,450 parameters."""
    return nn.Sequential(nn.Flatten(), nn.Linear(784, 32), nn.Tanh(), nn.Linear(32, 10))


# network: how it is made, holders, shadow models, steps, batch, learning rate
NETWORKS: dict[str, tuple[Callable[[], nn.Module], int, int, int, float, float]] = {
    "dense": (dense, 4_000, 512, 400, 400, 1.0),
    "mnist-cnn": (partial(build, "mnist-cnn", shape=(1, 28, 28), classes=10), 2_000, 128, 300, 200, 1.0),
}


def attacked(network: str, way: str, data: str | None, seed: int) -> dict[str, Any]:
    """The figures of one network trained in one way."""
    make, holders, models, steps, batch, lr = NETWORKS[network]
    mnist = load("mnist", data)
    records = TensorDataset(*(tensor[:holders].clone() for tensor in mnist.train.tensors))
    public = TensorDataset(*(tensor[:POPULATION].clone() for tensor in mnist.test.tensors))
    personal = sartor.Budgets.from_shares(EPSILONS, (0.5, 0.5), holders=holders, delta=DELTA, seed=seed)
    group = personal.groups.of_holder
    begin = time.process_time()
    if way.startswith("uniform"):
        budgets, scheme = sartor.Budgets(np.full(holders, float(way.partition("-")[2])), delta=DELTA), "uniform"
    else:
        budgets, scheme = personal, way
    plan = sartor.plan(budgets, scheme, steps=steps, batch=batch)
    shadows = train_shadows(
        make, records, budgets, plan, models=models, population=public, learning=Learning(lr=lr), seed=seed, progress=False
    )
    shadows = replace(shadows, groups=np.asarray(group))
    trained = time.process_time() - begin
    scores, few = lira(shadows), list(range(0, 2 * TARGETS, 2))
    own = advantages(shadows)
    by_welch, permuted = tested(own[group == 0], own[group == 1])
    return {
        "network": network,
        "way": way,
        "seed": seed,
        "models": models,
        "steps": steps,
        "batch": batch,
        "holders": holders,
        "epsilon": list(EPSILONS),
        "spent": plan.spent[plan.groups_of(budgets)[[int(np.argmax(group == place)) for place in range(2)]]].tolist(),
        "accuracy": float((shadows.population > 0).mean()),
        "seconds": trained,
        "auc": [auc(scores[place]) for place in range(2)],
        "roc": [curve(scores[place]) for place in range(2)],
        "roc of all": curve(Scores(*(np.concatenate([getattr(one, side) for one in scores.values()]) for side in ("inside", "outside")))),
        "tpr": {f"{rate:g}": [tpr_at(scores[place], rate) for place in range(2)] for rate in LOW},
        "offline": [auc(one) for one in offline_lira(shadows).values()],
        "rmia": [auc(one) for one in rmia(shadows).values()],
        "rmia, 4 references": [auc(one) for one in rmia(shadows, references=4).values()],
        "loss": [auc(one) for one in losses(shadows).values()],
        "loss, accuracy": [threshold_success(one, seed=seed).accuracy for one in losses(shadows).values()],
        "welch": by_welch,
        "permuted": permuted,
        "targets": [one_target(shadows, model) for model in few],
    }


def advantages(shadows: Shadows) -> NDArray[np.float64]:
    """For each record: its mean score in models that it was in, less that in models that it was out of."""
    found = np.empty(shadows.inside.shape)
    everyone = replace(shadows, groups=np.zeros_like(shadows.groups))
    for model in range(len(shadows)):
        scores, inside = lira(everyone, models=[model])[0], shadows.inside[model]
        found[model, inside], found[model, ~inside] = scores.inside, scores.outside
    present, absent = (np.where(side, found, 0.0).sum(axis=0) / side.sum(axis=0) for side in (shadows.inside, ~shadows.inside))
    return np.asarray(present - absent)


def tested(strict: NDArray[np.float64], open_: NDArray[np.float64]) -> tuple[float, float]:
    """One-sided p-values that the open group has the higher mean: by Welch's t, and by permutation of records."""
    return welch(open_, strict).p, permutation(open_, strict, permutations=PERMUTATIONS).p


def curve(scores: Scores) -> list[float]:
    """The share of members found at each of the rates."""
    found = roc(scores)
    return [float(found.tpr[found.fpr <= rate][-1]) for rate in RATES]


def one_target(shadows: Shadows, model: int) -> dict[str, Any]:
    """A single target model, as in Table 12: the scores of its members in both groups."""
    found = lira(shadows, models=[model])
    test = welch(found[1].inside, found[0].inside)
    return {"auc": [auc(found[0]), auc(found[1])], "roc": [curve(found[0]), curve(found[1])], "t": test.t, "p": 2 * min(test.p, 1 - test.p)}


def row(*cells: str) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(cells)} |"


def head(*cells: str) -> list[str]:
    """Its first two lines."""
    return [row(*cells), row(*["---"] * len(cells))]


def tables(runs: list[dict[str, Any]]) -> str:
    """All runs as Markdown: the groups, the other attacks, single target models."""
    low = ("0.001", "0.01")
    figures = ("accuracy", "AUC at 10", "AUC at 20", "TPR at 0.1 % FPR, 10 / 20", "TPR at 1 % FPR, 10 / 20", "Welch p", "permutation p")
    lines = head("network", "training", *figures)
    for run in runs:
        rates = [f"{100 * run['tpr'][rate][0]:.2f} / {100 * run['tpr'][rate][1]:.2f} %" for rate in low]
        tests = [f"{run[name]:.2g}" for name in ("welch", "permuted")]
        aucs = [f"{value:.3f}" for value in run["auc"]]
        lines.append(row(run["network"], run["way"], f"{100 * run['accuracy']:.1f} %", *aucs, *rates, *tests))
    attacks = {"auc": "LiRA", **{name: name for name in ("offline", "rmia", "rmia, 4 references", "loss")}}
    lines += ["", *head("AUC at 10 / 20", "training", *attacks.values())]
    lines += [row(run["network"], run["way"], *(f"{run[name][0]:.3f} / {run[name][1]:.3f}" for name in attacks)) for run in runs]
    lines += ["", *head("one target model", "training", "AUC at 10", "AUC at 20", "t", "p")]
    for run in runs:
        for place, target in enumerate(run["targets"] if not run["way"].startswith("uniform") else (), 1):
            aucs = [f"{value:.3f}" for value in target["auc"]]
            lines.append(row(f"{run['network']}, {place}", run["way"], *aucs, f"{target['t']:.2f}", f"{target['p']:.2g}"))
    return "\n".join(lines) + "\n"


def drawn(folder: Path, runs: list[dict[str, Any]]) -> None:
    """For each network: who is found under `sample` and `scale`, by all models and by one, and under personal and common budgets."""
    for network in NETWORKS:
        by_way = {run["way"]: run for run in runs if run["network"] == network}
        for way in set(by_way) & {"sample", "scale"}:
            run = by_way[way]
            groups = {f"epsilon {epsilon:g}": tpr for epsilon, tpr in zip(run["epsilon"], run["roc"], strict=True)}
            roc_of(folder, f"lira_{network}_{way}.svg", {**groups, "everybody": run["roc of all"]})
            one = {f"epsilon {epsilon:g}": tpr for epsilon, tpr in zip(run["epsilon"], run["targets"][0]["roc"], strict=True)}
            roc_of(folder, f"lira_{network}_{way}_target.svg", one)
        if set(WAYS) <= set(by_way):
            ways = {f"{epsilon:g}, personal": tpr for epsilon, tpr in zip(EPSILONS, by_way["sample"]["roc"], strict=True)}
            ways |= {f"{epsilon:g}, everybody": by_way[f"uniform-{epsilon:g}"]["roc of all"] for epsilon in EPSILONS}
            roc_of(folder, f"lira_{network}_uniform.svg", ways)


def roc_of(folder: Path, name: str, curves: dict[str, list[float]]) -> None:
    """Curves on log axes, from the least rate at which all of them found somebody."""
    seen = np.all([np.asarray(tpr) > 0 for tpr in curves.values()], axis=0)
    lines = [plots.Line(name, RATES[seen], np.asarray(tpr)[seen]) for name, tpr in curves.items()]
    lines.append(plots.Line("guessing", RATES[seen], RATES[seen]))
    written(str(folder), name, plots.lines(lines, x="false positive rate", y="true positive rate", logarithmic=True, logarithmic_x=True))


def main() -> None:
    """Attack, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="where MNIST's files are; otherwise $SARTOR_DATA or data")
    parser.add_argument("--only", choices=NETWORKS, action="append")
    parser.add_argument("--way", choices=WAYS, action="append")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, help="a file to which a line is added for each run")
    parser.add_argument("--table", type=Path, help="a file for the tables, which are printed otherwise")
    parser.add_argument("--tables", type=Path, help="a file of runs, of which tables are made without attacking anything")
    parser.add_argument("--plots", type=Path, help="a folder for the figures")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    runs = [] if asked.tables is None else [json.loads(line) for line in asked.tables.read_text().splitlines()]
    for network in asked.only or NETWORKS if asked.tables is None else ():
        for way in asked.way or WAYS:
            runs.append(attacked(network, way, asked.data, asked.seed))
            if asked.out is not None:
                with asked.out.open("a") as file:
                    file.write(json.dumps(runs[-1]) + "\n")
    if asked.plots is not None:
        drawn(asked.plots, runs)
    if asked.table is None:
        print(tables(runs))
    else:
        asked.table.write_text(tables(runs))


if __name__ == "__main__":
    main()
