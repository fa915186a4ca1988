"""Random requests for plans at the edges: rates and mixes near 0 and 1, large reserves, tiny budgets, public records with caps.

How long each takes, in seconds of one processor: `python tests/sartor_testing/edge_requests.py 0 2000`.
"""

from __future__ import annotations

import sys
import time
import warnings
from dataclasses import dataclass
from typing import Any

import numpy as np

import sartor

SEED = 77
SCHEMES = ("sample", "hybrid", "hybrid", "sample", "scale", "uniform", "exclude", "sequential")


@dataclass(frozen=True)
class EdgeRequest:
    """Everything that `sartor.plan` is asked with."""

    budgets: sartor.Budgets
    scheme: str
    steps: int
    batch: float
    accountant: str
    options: dict[str, Any]

    def plan(self) -> sartor.Plan:
        return sartor.plan(
            self.budgets, self.scheme, steps=self.steps, batch=self.batch, accountant=self.accountant, clip=1.3, **self.options
        )


def _near_an_end(rng: np.random.Generator) -> float:
    """A number in (0, 1) that is mostly very near 0 or 1."""
    small = float(10 ** rng.uniform(-6, -0.3))
    return 1 - small if rng.random() < 0.5 else small


def edge_request(number: int) -> EdgeRequest:
    """The request of this number, the same in every run."""
    rng = np.random.default_rng([SEED, number])
    groups = int(np.exp(rng.uniform(np.log(2), np.log(16))))
    lowest, width = rng.choice([1e-5, 1e-3, 1e-2, 0.1]), rng.choice([0.1, 2.0, 5.0, 12.0])
    epsilon = np.clip(lowest * np.exp(width * rng.random(groups)), 1e-6, 50.0)
    sizes = np.exp(rng.uniform(0, np.log(5_000), groups)).astype(int) + 1
    delta = 10 ** rng.uniform(-11, -2, groups) if rng.random() < 0.2 else np.full(groups, 10 ** rng.uniform(-11, -2))
    options: dict[str, Any] = {}
    if rng.random() < 0.3:
        epsilon[rng.integers(groups)] = np.inf
        if rng.random() < 0.6:
            options["public_rate"] = float(rng.choice([0.0, 1.0, rng.random()]))
        if rng.random() < 0.6:
            options["public_clip"] = float(10 ** rng.uniform(-3, 3))
    budgets = sartor.Budgets.from_groups(
        list(zip(epsilon, sizes, strict=True)), delta=delta, reserve=float(rng.choice([0, 0, 0.1, 0.9, 0.99]))
    )
    scheme = SCHEMES[rng.integers(len(SCHEMES))]
    rate = float(rng.choice([0.9, 0.999, 1.0, 1 - 10 ** rng.uniform(-12, -1), 10 ** rng.uniform(-5, 0), _near_an_end(rng)]))
    if scheme == "hybrid":
        options["mix"] = _near_an_end(rng) if rng.random() < 0.8 else float(rng.choice([0.0, 0.5, 1.0]))
    if scheme == "exclude":
        options["threshold"] = float(np.exp(rng.uniform(np.log(1e-5), np.log(5))))
    if scheme == "sequential":
        options["order"] = str(rng.choice(["strictest-first", "open-first"]))
    steps = int(10 ** rng.uniform(0, 5.5))
    accountant = "pld" if rng.random() < 0.5 else "rdp"
    return EdgeRequest(budgets, scheme, steps, rate * len(budgets), accountant, options)


def measure(first: int, last: int) -> None:
    """Print of each request what came of it and what it took."""
    warnings.simplefilter("ignore")
    for number in range(first, last):
        asked, begin = edge_request(number), time.process_time()
        try:
            asked.plan()
            outcome = "made"
        except sartor.Infeasible as infeasible:
            outcome = str(infeasible)
        print(f"{number} {time.process_time() - begin:.2f} {asked.scheme} {asked.accountant}: {outcome}", flush=True)


if __name__ == "__main__":
    measure(int(sys.argv[1]), int(sys.argv[2]))
