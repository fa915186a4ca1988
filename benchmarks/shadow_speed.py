"""How fast shadow models are trained together, beside one by one through `sartor.fit`: in one run on one machine.

    python benchmarks/shadow_speed.py --data DIR           # 64 models of the MNIST network on 2,000 images, ten minutes
    python benchmarks/shadow_speed.py --data DIR --busy    # where other programs compute too: the processor's seconds alone

Both ways train the same models from the same seeds under the same plan, and give the signals of their records. One by one, each model is a
run of `sartor.fit`; together, models are stacked eight at a time, in one process of one thread for each core. They take turns, sixteen
models at a time. By the clock, `fit` has torch's own threads. By the processor's seconds, over all processes, it has one thread: as if two
cores halved its time, which threads do not. Threads that wait for each other burn the processor, on a busy machine ten times what they
compute, so only that figure can be had there. Workers start before the clock, as an audit starts them once.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import time
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor
from sartor.audit.shadow_training import Learning, signals_of
from sartor.audit.shadows import seed_of, train_shadows
from sartor.data import load
from sartor.models import build

HOLDERS, AT_A_TIME, LR = 2_000, 16, 0.5


def everything(data: str | None) -> tuple[Callable[[], nn.Module], TensorDataset]:
    """The network and the images."""
    mnist = load("mnist", data)
    records = TensorDataset(*(tensor[:HOLDERS].clone() for tensor in mnist.train.tensors))
    return partial(build, "mnist-cnn", shape=mnist.shape, classes=mnist.classes), records


def one_by_one(make: Callable[[], nn.Module], records: TensorDataset, budgets: sartor.Budgets, plan: sartor.Plan, seed: int) -> Any:
    """Each model by a run of its own, with torch's threads; nobody is out, since `sartor.fit` knows no such thing."""
    found = []
    for number in range(AT_A_TIME):
        torch.manual_seed(seed_of(seed, number))
        model = make()
        sartor.fit(model, records, budgets, plan, lr=LR, seed=seed_of(seed, number), progress=False)
        found.append(signals_of(model, records))
    return np.stack(found)


def on_one_thread(*given: Any) -> Any:
    """The same on one thread."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return one_by_one(*given)
    finally:
        torch.set_num_threads(threads)


def together(make: Callable[[], nn.Module], records: TensorDataset, budgets: sartor.Budgets, plan: sartor.Plan, seed: int) -> Any:
    """The same models by the audit, on all cores; all but one holder are in, as in the other way."""
    found = train_shadows(
        make, records, budgets, plan, models=AT_A_TIME, targets=[0], learning=Learning(lr=LR), seed=seed, workers=None, progress=False
    )
    return found.signals


def processor_seconds() -> float:
    """Of this process and its workers."""
    total, tick = time.process_time(), os.sysconf("SC_CLK_TCK")
    for status in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = status.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == os.getpid():
            total += (int(fields[11]) + int(fields[12])) / tick
    return total


def timed(way: Callable[[], Any]) -> tuple[float, float, Any]:
    """Seconds by the clock and by the processor, and what was found."""
    clock, processor = time.perf_counter(), processor_seconds()
    found = way()
    return time.perf_counter() - clock, processor_seconds() - processor, found


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", help="where MNIST's files are; otherwise $SARTOR_DATA or data")
    parser.add_argument("--models", type=int, default=64)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=float, default=64)
    parser.add_argument("--busy", action="store_true", help="leave out what only an idle machine can tell")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warnings.simplefilter("ignore")
    make, records = everything(asked.data)
    budgets = sartor.Budgets.from_groups([(10.0, HOLDERS // 2), (20.0, HOLDERS // 2)], delta=1e-4)
    plan = sartor.plan(budgets, "sample", steps=asked.steps, batch=asked.batch)
    few = sartor.plan(budgets, "sample", steps=1, batch=asked.batch)
    together(make, records, budgets, few, 0)  # starts the workers
    ways: dict[str, Callable[..., Any]] = {"one by one, one thread": on_one_thread, "together": together}
    if not asked.busy:
        ways["one by one"] = one_by_one
    clocks: dict[str, list[float]] = {name: [] for name in ways}
    processors: dict[str, list[float]] = {name: [] for name in ways}
    for turn in range(max(1, asked.models // AT_A_TIME)):
        signals = {}
        for name, way in ways.items():
            clock, processor, signals[name] = timed(partial(way, make, records, budgets, plan, turn))
            clocks[name].append(clock)
            processors[name].append(processor)
        # the one target is out of half of the models; the others are the same models
        alike = np.abs(signals["one by one, one thread"][:, 0] - signals["together"][:, 0]) < 1e-2
        if alike.sum() < AT_A_TIME // 2:
            raise SystemExit("the two ways train different models")
    by_processor = ratio(processors["one by one, one thread"], processors["together"])
    by_clock = None if asked.busy else ratio(clocks["one by one"], clocks["together"])
    figures = {
        "models": len(clocks["together"]) * AT_A_TIME,
        "examples": HOLDERS,
        "steps": asked.steps,
        "batch": asked.batch,
        "cores": joblib.cpu_count(),
        "clock": {name: sum(turns) for name, turns in clocks.items()},
        "processor": {name: sum(turns) for name, turns in processors.items()},
        "ratio by the clock": by_clock,
        "ratio by the processor": by_processor,
    }
    if asked.json:
        print(json.dumps(figures))
        return
    print(f"{figures['models']} models, {asked.steps} steps of {asked.batch:g} of {HOLDERS} images, {figures['cores']} cores")
    for name in ways:
        print(f"  {name}: {sum(clocks[name]):.0f} s by the clock, {sum(processors[name]):.0f} s of the processor")
    print(f"  together faster by {by_processor:.2f} (processor)" + ("" if by_clock is None else f" and {by_clock:.2f} (clock)"))


def ratio(one: list[float], other: list[float]) -> float:
    """The median over turns of how many times longer one takes than the other."""
    return statistics.median(first / second for first, second in zip(one, other, strict=True))


if __name__ == "__main__":
    main()
