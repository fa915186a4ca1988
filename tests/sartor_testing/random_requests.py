"""Random requests for plans: all schemes, 1 to 50 groups, epsilons from 0.05 to 50 and infinite, rates up to 1."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

import sartor

SCHEMES = ("uniform", "sample", "scale", "hybrid", "exclude", "sequential")


@dataclass(frozen=True)
class Request:
    budgets: sartor.Budgets
    scheme: str
    steps: int
    batch: float
    options: dict[str, Any]

    def plan(self, accountant: str) -> sartor.Plan:
        return sartor.plan(self.budgets, self.scheme, steps=self.steps, batch=self.batch, accountant=accountant, **self.options)


def request(rng: np.random.Generator, *, most_groups: int = 50, steps: tuple[int, int] = (1, 20_000), most_width: float = 7.0) -> Request:
    """`most_width` is how far apart, in logarithms, epsilons of one population may lie from their middle."""
    groups = int(np.exp(rng.uniform(0, np.log(most_groups + 1))))
    middle, width = rng.uniform(np.log(0.05), np.log(50)), rng.choice([width for width in (0.0, 0.5, 1.5, 7.0) if width <= most_width])
    epsilon = np.exp(np.clip(middle + width * rng.uniform(-1, 1, groups), np.log(0.05), np.log(50)))
    if groups > 1 and rng.random() < 0.15:
        epsilon[rng.integers(groups)] = np.inf
    sizes = np.exp(rng.uniform(0, np.log(5_000), groups)).astype(int) + 1
    delta = 10 ** rng.uniform(-7, -4, groups) if rng.random() < 0.3 else 10 ** rng.uniform(-7, -4)
    budgets = sartor.Budgets.from_groups(list(zip(epsilon, sizes, strict=True)), delta=delta)
    scheme = SCHEMES[rng.integers(len(SCHEMES))]
    rate = 1.0 if rng.random() < 0.05 else float(np.exp(rng.uniform(np.log(1e-3), 0)))
    options: dict[str, Any] = {}
    if scheme == "hybrid":
        options["mix"] = float(rng.choice([0.0, 0.25, 0.5, 0.75, 1.0, rng.random()]))
    if scheme == "exclude":
        options["threshold"] = float(np.exp(rng.uniform(np.log(0.05), np.log(20))))
    if scheme == "sequential":
        options["order"] = str(rng.choice(["strictest-first", "open-first"]))
    count = int(np.exp(rng.uniform(np.log(steps[0]), np.log(steps[1]))))
    return Request(budgets, scheme, max(count, 1), rate * len(budgets), options)
