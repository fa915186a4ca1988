"""How fast individualized PATE is: training the teachers, and accounting for their votes, in one run on one machine.

    python benchmarks/pate_speed.py --data DIR           # 16 teachers on MNIST by each way, some minutes
    python benchmarks/pate_speed.py --data DIR --full    # also the whole ensemble of the paper: 250 teachers, 20 epochs, 9,000 queries

A user's alternative is to train one teacher after another with torch's own threads: the paper's network and training as one would write
them down. Beside it stand that loop around Sartor's own network and training (which shows what worker processes alone bring), worker
processes of one thread each, and teachers stacked by vmap. All train for as many epochs on the same slices; they take turns, and the best
time of each counts. Workers are started before the clock, as one ensemble starts them once. Measure on an idle machine: threads that wait
for each other suffer far more from other programs than processes do.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.table import Table
from torch import nn

from sartor.data import Data, load
from sartor.pate import bounds
from sartor.pate.networks import Training, augmented, drawing, predict, teacher_network, train
from sartor.pate.teachers import NetworkTeachers, seed_of

TEACHERS, QUERIES, SEED = 250, 9_000, 0

# The teachers


def slices_of(data: Data, teachers: int) -> list[NDArray[np.intp]]:
    """The first `teachers` of 250 equal slices in random order."""
    return np.array_split(np.random.default_rng(SEED).permutation(len(data.train)), TEACHERS)[:teachers]


def plain_network(classes: int) -> nn.Module:
    """The network of the paper for MNIST and its initial weights, in torch's usual layout."""
    model = nn.Sequential(
        nn.Conv2d(1, 32, 3),
        nn.ReLU(),
        nn.BatchNorm2d(32),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * 13 * 13, 100),
        nn.ReLU(),
        nn.BatchNorm1d(100),
        nn.Linear(100, classes),
    )
    for layer in (model[0], model[5]):
        nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
    nn.init.xavier_uniform_(model[8].weight)
    return model


def one_after_another(data: Data, teachers: int, epochs: int) -> NDArray[np.int16]:
    """What a user would write: a loop over teachers, epochs and batches, with torch's own threads."""
    (inputs, labels), queries = data.train.tensors, data.test.tensors[0][:QUERIES]
    votes = []
    for number, part in enumerate(slices_of(data, teachers)):
        generator = torch.Generator().manual_seed(seed_of(SEED, number))
        model = plain_network(data.classes)
        optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
        for _ in range(epochs):
            for batch in torch.from_numpy(part)[torch.randperm(len(part), generator=generator)].split(32):
                optimizer.zero_grad()
                nn.functional.cross_entropy(model(augmented(inputs[batch], generator)), labels[batch]).backward()
                optimizer.step()
        model.eval()
        with torch.no_grad():
            votes.append(torch.cat([model(block).argmax(1) for block in queries.split(1_000)]).numpy().astype(np.int16))
    return np.stack(votes, 1)


def same_code_one_after_another(data: Data, teachers: int, epochs: int) -> NDArray[np.int16]:
    """Sartor's network and training in a plain loop, with torch's own threads."""
    (inputs, labels), queries = data.train.tensors, data.test.tensors[0][:QUERIES]
    votes = []
    for number, part in enumerate(slices_of(data, teachers)):
        seed = seed_of(SEED, number)
        with drawing(seed):
            model = train(teacher_network(data.shape, data.classes), inputs[part], labels[part], Training(epochs), seed)
        votes.append(predict(model, queries))
    return np.stack(votes, 1)


def ours(data: Data, teachers: int, epochs: int, **settings: Any) -> NDArray[np.int16]:
    """Sartor's teachers."""
    make = partial(teacher_network, data.shape, data.classes)
    ensemble = NetworkTeachers(make, epochs=epochs, seed=SEED, **settings)
    return ensemble.votes(data.train, slices_of(data, teachers), data.test.tensors[0][:QUERIES])


def accuracies(data: Data, votes: NDArray[np.int16]) -> NDArray[np.float64]:
    """The share of queries that each teacher gets right."""
    return (votes == data.test.tensors[1][:QUERIES].numpy()[:, None]).mean(0)


def teachers_speed(data: Data, *, teachers: int, epochs: int, repeats: int, workers: int | None) -> dict[str, Any]:
    """Seconds and mean accuracy of each way of training, and how much faster than one after another it is."""
    ways: dict[str, Callable[[], NDArray[np.int16]]] = {
        "one_after_another": lambda: one_after_another(data, teachers, epochs),
        "same_code_one_after_another": lambda: same_code_one_after_another(data, teachers, epochs),
        "processes": lambda: ours(data, teachers, epochs, workers=workers, progress=False),
        "vmap": lambda: ours(data, teachers, epochs, backend="vmap", progress=False),
    }
    ours(data, 8, 1, workers=workers, progress=False)
    seconds, accuracy = dict.fromkeys(ways, math.inf), {}
    for _ in range(repeats):
        for name, way in ways.items():
            start = time.perf_counter()
            votes = way()
            taken = time.perf_counter() - start
            print(f"{name}: {taken:.1f} s", file=sys.stderr, flush=True)
            seconds[name] = min(seconds[name], taken)
            accuracy[name] = float(accuracies(data, votes).mean())
    ratio = {name: seconds["one_after_another"] / value for name, value in seconds.items()}
    return {
        "teachers": teachers,
        "epochs": epochs,
        "threads": torch.get_num_threads(),
        "seconds": seconds,
        "faster": ratio,
        "accuracy": accuracy,
    }


def full_ensemble(data: Data, *, epochs: int, workers: int | None) -> dict[str, Any]:
    """Minutes for the whole ensemble, the start of its workers included, and what its teachers and their plurality get right."""
    start = time.perf_counter()
    votes = ours(data, TEACHERS, epochs, workers=workers)
    minutes = (time.perf_counter() - start) / 60
    counts = np.stack([(votes == label).sum(1) for label in range(data.classes)], 1)
    right = counts.argmax(1) == data.test.tensors[1][:QUERIES].numpy()
    each = accuracies(data, votes)
    return {
        "minutes": minutes,
        "teachers": TEACHERS,
        "epochs": epochs,
        "accuracy": {"mean": float(each.mean()), "least": float(each.min()), "most": float(each.max()), "plurality": float(right.mean())},
    }


def print_teachers(found: dict[str, Any], console: Console) -> None:
    """The teachers' figures as a table."""
    table = Table(title=f"{found['teachers']} teachers, {found['epochs']} epochs, torch on {found['threads']} threads")
    for column in ("way", "seconds", "times faster", "mean accuracy"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, value in found["seconds"].items():
        table.add_row(name.replace("_", " "), f"{value:.1f}", f"{found['faster'][name]:.2f}", f"{100 * found['accuracy'][name]:.2f} %")
    console.print(table)


# The accounting


def accounted() -> float:
    """Seconds for the data-dependent bound of 9,000 queries of 250 teachers for three groups at the paper's 49 orders."""
    rng = np.random.default_rng(SEED)
    votes = rng.multinomial(TEACHERS, [0.91, *[0.01] * 9], QUERIES)
    best = math.inf
    for _ in range(3):
        begin = time.perf_counter()
        log_q = bounds.log_q_of_answers(votes, 40.0)
        tested = bounds.log_q_of_tests(votes.max(1), 200.0, 150.0)
        spent = bounds.answer(bounds.PAPER_ORDERS, 40.0, [0.53, 1.06, 1.59], log_q)
        spent = spent + bounds.comparison(bounds.PAPER_ORDERS, 150.0, [0.53, 1.06, 1.59], tested)
        assert spent.sum(0).shape == (3, 49)
        best = min(best, time.perf_counter() - begin)
    return best


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="the folder with MNIST")
    parser.add_argument("--teachers", type=int, default=16)
    parser.add_argument("--epochs", type=int, default=20)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--workers", type=int, help="processes; all cores by default")
    parser.add_argument("--full", action="store_true", help="also train the paper's whole ensemble")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    data = load("mnist", asked.data)
    console = Console(stderr=asked.json)
    found: dict[str, Any] = {}
    if asked.repeats:
        found["speed"] = teachers_speed(data, teachers=asked.teachers, epochs=asked.epochs, repeats=asked.repeats, workers=asked.workers)
        print_teachers(found["speed"], console)
    if asked.full:
        found["full"] = full_ensemble(data, epochs=asked.epochs, workers=asked.workers)
        accuracy = ", ".join(f"{name} {100 * value:.2f} %" for name, value in found["full"]["accuracy"].items())
        console.print(f"{TEACHERS} teachers in {found['full']['minutes']:.1f} minutes; accuracy: {accuracy}")
    found["accounting"] = {"seconds": accounted()}
    console.print(f"{QUERIES:,} queries, 3 groups, 49 orders accounted in {found['accounting']['seconds']:.2f} s")
    if asked.json:
        print(json.dumps(found))


if __name__ == "__main__":
    main()
