"""Trains what the papers on individual accounts show, on MNIST, and adds a line with its figures to a file.

    python benchmarks/individual_results.py readings --kind estimate --exact 1000 --data DIR --seed 0 --out runs.jsonl
    python benchmarks/individual_results.py table4 --way filter --data DIR --seed 0 --out runs.jsonl
    python benchmarks/individual_results.py ladder --way ladder --data DIR --seed 0 --out runs.jsonl
    python benchmarks/individual_tables.py runs.jsonl

`readings`: individual accounting (Yu et al. 2023) at epsilon 2.4: what gradients cost by class, beside the loss, and, with --exact, beside
norms of so many examples that are looked at in every step. `table4`: a quarter of everybody in each step, at epsilon 0.3 for all, with
and without a filter, and with epsilon 0.6 for one half (IDP-SGD, section 5). `ladder`: the ladder beside plain plans at epsilon 1, 2 and
3. Clips, learning rates and steps were compared on seed 0. MNIST is public, so figures that would be sensitive are shown; runs are seeded,
so that they can be repeated.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

import sartor
from sartor.accounting import rdp
from sartor.data import load
from sartor.individual import release
from sartor.individual.costs import Costs
from sartor.individual.readings import Readings
from sartor.individual.request import QUANTILES, Figures, Request
from sartor.models import build
from sartor.run.stream import Stream
from sartor.sgd.gradients import PerExample
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.stretches import Stretches
from sartor.sgd.training import by_holder

Array = NDArray[np.float64]
DELTA = 1e-5

READINGS = {"epsilon": 2.4, "steps": 1_200, "batch": 1_024, "clip": 4.5, "lr": 0.2, "refresh": 20}
"""The clip is the median norm of gradients at the first model, as in the paper, but on the public test digits."""
RATES = {"3 an epoch": 20, "1 an epoch": 60, "1 in two epochs": 120}
COMPARED = 30  # of the examples that are looked at in every step, by direct computation at all orders

TABLE4 = {"epsilon": 0.3, "open": 0.6, "full_steps": 30, "steps": 36, "longest": 108, "refresh": 6}
TABLE4 |= {"batch": 15_000, "clip": 2.0, "lr": 1.0, "momentum": 0.8}
"""30 steps at full norm are paid for by epsilon 0.3, and 108 under the same noise by epsilon 0.6."""
LADDER = {"full_steps": 3_120, "steps": 4_056, "batch": 512, "clip": 0.2, "lr": 0.6, "refresh": 312}
SHARES = (0.34, 0.43, 0.23)


def losses(outputs: Tensor, targets: Tensor) -> Tensor:
    """One number for each example."""
    return functional.cross_entropy(outputs, targets, reduction="none")


def trained(
    model: nn.Module,
    data: TensorDataset,
    budgets: sartor.Budgets,
    plan: sartor.Plan,
    *,
    lr: float,
    momentum: float = 0.0,
    tracking: sartor.Tracking | None = None,
    seed: int,
    before: Callable[[int, Stretches | None], object] = lambda step, stretches: None,
    after: Callable[[int], object] = lambda step: None,
) -> PrivateLoader:
    """Trains in a loop of its own, so that `before` and `after` each step things can be looked at that `fit` shows nobody."""
    optimizer = torch.optim.SGD(model.parameters(), lr=lr, momentum=momentum)
    tracked = tracking is not None or plan.filter is not None
    made = {"loss": losses if tracked else None, "tracking": tracking, "max_physical_batch": 2_048, "seed": seed}
    model, private, loader = sartor.make_private(model, optimizer, data, budgets, plan, reduction="sum", **made)
    model.train()
    begun = -1
    for inputs, targets in loader:
        done = private.run.steps
        if begun < done:
            before(done, loader.draws.stretches)
            begun = done
        private.zero_grad()
        losses(model(inputs), targets).sum().backward()
        private.step()
        if private.run.steps > done:
            after(private.run.steps)
    return loader


class Watched:
    """Norms of some examples at the model of every step, by an engine of their own."""

    def __init__(self, model: nn.Module, data: TensorDataset, count: int, seed: int) -> None:
        self.places = np.sort(np.random.default_rng(seed).choice(len(data), count, replace=False))
        self._inputs, self._targets = (tensor[self.places] for tensor in data.tensors)
        self._model, self._twin = model, copy.deepcopy(model)
        self._engine = PerExample(self._twin)
        self.norms: list[Array] = []
        self.fractions: list[Array] = []

    def look(self, step: int, stretches: Stretches | None) -> None:
        """Before a step: everybody's norm at the model that it starts from, and the part of the clip up to which they take part."""
        self._twin.load_state_dict(self._model.state_dict())
        with self._engine.batch(torch.ones(len(self.places))):
            losses(self._twin(self._inputs), self._targets).sum().backward()
            self.norms.append(self._engine.norms(1.0).double().numpy())
        if stretches is not None:
            self.fractions.append(stretches.state()[1]["fraction"].numpy()[self.places])


def read(plan: sartor.Plan, kind: str, fractions: Array, refresh: int) -> Array:
    """Readings of holders from their norms over the clip in every step (steps, holders), if looked at every `refresh` steps."""
    count = fractions.shape[1]
    budgets = sartor.Budgets(np.full(count, plan.epsilon[0]), delta=DELTA)
    alike = sartor.plan(budgets, "uniform", steps=plan.steps, batch=float(plan.rate[0]) * count, clip=plan.clip)
    readings = Readings(Costs(alike), budgets, kind)  # type: ignore[arg-type]
    for begin in range(0, len(fractions), refresh):
        readings.add(readings.levels(fractions[begin] * plan.clip), min(refresh, len(fractions) - begin))
    return readings.reading().accounts(sensitive=True)


def direct(plan: sartor.Plan, fractions: Array) -> Array:
    """Epsilon from norms over the clip in every step (steps, holders), by the Rényi divergence of each at all orders."""
    total = np.zeros((fractions.shape[1], len(rdp.ORDERS)))
    for row in np.minimum(fractions, 1.0):
        total += rdp.sampled_gaussian(np.full(len(row), plan.rate[0]), plan.noise_multipliers[0] / np.maximum(row, 1e-9), rdp.ORDERS)
    return np.minimum(rdp.to_epsilon(total, rdp.ORDERS, np.full(len(total), DELTA)), plan.spent[0])


def compared(plan: sartor.Plan, kind: str, watched: Watched, own: Array) -> dict[str, Any]:
    """What was read of the watched examples beside what their norms of every step say."""
    norms = np.stack(watched.norms) / plan.clip
    entered = np.minimum(norms, np.stack(watched.fractions)) if kind == "strict" else np.minimum(norms, 1.0)
    exact = read(plan, "estimate", entered, 1)
    order = np.argsort(exact)
    some = order[np.linspace(0, len(order) - 1, COMPARED).astype(int)]
    whole = direct(plan, entered[:, some])
    found: dict[str, Any] = {
        "examples": len(watched.places),
        "read": np.round(own, 5).tolist(),
        "exact": np.round(exact, 5).tolist(),
        "table_over_direct": [float((exact[some] / whole).min()), float((exact[some] / whole).max())],
        "read_over_direct": [float((own[some] / whole).min()), float((own[some] / whole).max())],
        "below_exact": int(np.sum(own < exact)),
    }
    if kind == "estimate":
        found["rates"] = {}
        for name, refresh in RATES.items():
            estimate = read(plan, "estimate", norms, refresh)
            error = np.abs(estimate - exact)
            found["rates"][name] = {
                "pearson": float(np.corrcoef(estimate, exact)[0, 1]),
                "mean_error": float(error.mean()),
                "worst_error": float(error.max()),
            }
    return found


def by_class(values: Array, labels: Tensor) -> list[float]:
    """Means by class."""
    return [float(values[labels.numpy() == label].mean()) for label in range(10)]


def readings(asked: argparse.Namespace) -> dict[str, Any]:
    """A run at epsilon 2.4 with readings of one kind, or with none."""
    data, model = network(asked)
    setting = {**READINGS, "steps": asked.steps or READINGS["steps"], "refresh": asked.refresh or READINGS["refresh"]}
    budgets = sartor.Budgets(np.full(len(data.train), setting["epsilon"]), delta=DELTA)
    plan = sartor.plan(budgets, "uniform", steps=int(setting["steps"]), batch=setting["batch"], clip=setting["clip"])
    tracking = None if asked.kind == "none" else sartor.Tracking(asked.kind, refresh=int(setting["refresh"]))
    watched = Watched(model, data.train, asked.exact, asked.seed) if asked.exact else None
    before = watched.look if watched else lambda step, stretches: None
    history: list[list[float]] = []
    look = looking(model, data.test, max(1, plan.steps // 10), history)
    loader = trained(
        model, data.train, budgets, plan, lr=asked.lr or setting["lr"], tracking=tracking, seed=asked.seed, before=before, after=look
    )
    correct, loss = by_holder(model, data.test)
    line: dict[str, Any] = {**setting, "kind": asked.kind, "noise_multiplier": plan.noise_multiplier, "history": history}
    line |= {"accuracy": float(correct.mean()), "accuracy_by_class": by_class(correct, data.test.tensors[1])}
    if tracking is not None:
        own = loader.reading().accounts(sensitive=True)
        hits, loss = by_holder(model, data.train)
        line["reading"] = {
            "mean": float(own.mean()),
            "quantiles": np.quantile(own, QUANTILES).tolist(),
            "at_the_guarantee": float(np.mean(own >= 0.999 * plan.spent[0])),
            "histogram": np.histogram(own, np.linspace(0, setting["epsilon"], 25))[0].tolist(),
            "by_class": by_class(own, data.train.tensors[1]),
            "train_accuracy_by_class": by_class(hits, data.train.tensors[1]),
            "released_error": released_error(plan, own),
            "pearson_with_log_loss": float(np.corrcoef(own, np.log(np.maximum(loss, 1e-12)))[0, 1]),
        }
        some = np.random.default_rng(0).choice(len(own), 1_000, replace=False)
        line["reading"]["scatter"] = [np.round(own[some], 4).tolist(), np.round(np.log(np.maximum(loss[some], 1e-12)), 3).tolist()]
        if watched is not None:
            line["exact"] = compared(plan, asked.kind, watched, own[watched.places])
    return line


def released_error(plan: sartor.Plan, own: Array) -> dict[str, float]:
    """By how much the mean and each quantile of Table 2 miss the truth on average, if all are released together at epsilon 0.1."""
    errors, at = [], QUANTILES
    truth = np.array([own.mean(), *np.quantile(own, at)])
    for seed in range(20):
        found = release.released(plan, Figures(own), Request(quantiles=at), epsilon=0.1, delta=1e-6, stream=Stream(seed=seed))
        assert found.mean is not None
        assert found.quantiles is not None
        errors.append(np.abs(np.array([found.mean, *found.quantiles.values()]) / truth - 1))
    return dict(zip(("mean", *map(str, at)), np.mean(errors, axis=0).tolist(), strict=True))


def table4(asked: argparse.Namespace) -> dict[str, Any]:
    """Large batches at epsilon 0.3: everybody at full norm, with a filter, and with a filter and twice the budget for one half."""
    data, model = network(asked)
    setting, way = TABLE4, asked.way
    holders = len(data.train)
    second = np.random.default_rng(asked.seed).permutation(holders) % 2 == 1
    epsilon = np.where(second & (way == "assigned"), setting["open"], setting["epsilon"])
    budgets = sartor.Budgets(epsilon, delta=DELTA)
    full = int(setting["full_steps"])
    common = {"batch": setting["batch"], "clip": setting["clip"]}
    if way == "uniform":
        plan = sartor.plan(budgets, "uniform", steps=full, **common)
    elif way == "longer":
        plan = sartor.plan(budgets, "uniform", steps=int(setting["longest"]), **common)
    else:
        steps, full = (int(setting["longest"]),) * 2 if way == "assigned" else (int(setting["steps"]), full)
        made = {"filter": "ladder", "refresh": int(setting["refresh"]), "full_steps": full}
        plan = sartor.plan(budgets, "equal", steps=steps, **made, **common)
    return filtered(asked, data, model, budgets, plan, {**setting, "way": way}, every=6)


def ladder(asked: argparse.Namespace) -> dict[str, Any]:
    """The ladder beside plain plans of as many steps as full norm pays for, and of as many as the ladder has."""
    data, model = network(asked)
    setting, way = LADDER, asked.way
    budgets = sartor.Budgets.from_shares((1.0, 2.0, 3.0), SHARES, holders=len(data.train), delta=DELTA, seed=asked.seed)
    steps = int(setting["full_steps"] if way == "plain" else setting["steps"])
    made = {"filter": "ladder", "refresh": int(setting["refresh"]), "full_steps": int(setting["full_steps"])} if way == "ladder" else {}
    plan = sartor.plan(budgets, "scale", steps=steps, batch=setting["batch"], clip=setting["clip"], **made)
    return filtered(asked, data, model, budgets, plan, {**setting, "way": way}, every=int(setting["refresh"]))


def filtered(
    asked: argparse.Namespace, data: Any, model: nn.Module, budgets: sartor.Budgets, plan: sartor.Plan, setting: dict[str, Any], every: int
) -> dict[str, Any]:
    """A run, its accuracy over the steps, and how many holders of each group take part in each stretch."""
    groups, active, history = plan.groups_of(budgets), [], []

    def count(step: int, stretches: Stretches | None) -> None:
        if stretches is not None and step % setting["refresh"] == 0:
            fraction = stretches.state()[1]["fraction"].numpy()
            active.append([step, *np.bincount(groups[fraction > 0], minlength=len(plan)).tolist(), float(fraction.mean())])

    look = looking(model, data.test, every, history)
    how = {"lr": asked.lr or setting["lr"], "momentum": setting.get("momentum", 0.0), "seed": asked.seed}
    trained(model, data.train, budgets, plan, **how, before=count, after=look)
    found = {"noise_multiplier": plan.noise_multiplier, "clips": plan.clips.tolist(), "spent": plan.spent.tolist()}
    found |= {"rests_at": plan.rests_at.tolist()} if plan.filter is not None else {}
    return {**setting, "planned_steps": plan.steps, **found, "accuracy": history[-1][1], "history": history, "active": active}


def looking(model: nn.Module, test: TensorDataset, every: int, history: list[list[float]]) -> Callable[[int], None]:
    """Notes accuracy on public digits every so many steps."""

    def look(step: int) -> None:
        if step % every == 0:
            mode = model.training
            model.eval()
            with torch.no_grad():
                found = torch.cat([model(part).argmax(1) for part in test.tensors[0].split(1_000)])
            model.train(mode)
            history.append([step, float((found == test.tensors[1]).double().mean())])

    return look


def network(asked: argparse.Namespace) -> tuple[Any, nn.Module]:
    """MNIST and a new network for it."""
    data = load("mnist", asked.data)
    torch.manual_seed(asked.seed)
    model = build("mnist-cnn", shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)
    return data, model.to(memory_format=torch.channels_last)  # the same numbers; pooling is quicker so


def main() -> None:
    """Train and report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("readings", "table4", "ladder"))
    parser.add_argument("--data", required=True)
    parser.add_argument("--kind", choices=("none", "estimate", "strict"), default="estimate")
    parser.add_argument("--exact", type=int, default=0, help="examples whose norms are looked at in every step")
    parser.add_argument("--way", help="uniform, longer, filter or assigned (table4); plain, longer or ladder (ladder)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--refresh", type=int)
    parser.add_argument("--lr", type=float)
    parser.add_argument("--out")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sartor.SartorWarning)
        line = {"what": asked.what, "seed": asked.seed, **{"readings": readings, "table4": table4, "ladder": ladder}[asked.what](asked)}
    line["seconds"] = round(time.perf_counter() - start, 1)
    print(json.dumps({key: line[key] for key in ("what", "seed", "kind", "way", "accuracy", "seconds") if key in line}))
    if asked.out:
        with Path(asked.out).open("a") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
