"""Independent figures for holders who own several records: dp_accounting's mixture of Gaussians, and integrals over exact outcomes.

dp_accounting takes up to minutes for each of its figures, so they are kept in `records_reference.json`.
This command makes the file again: `python tests/sartor_testing/records_reference.py`.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.optimize import brentq
from scipy.special import logsumexp
from scipy.stats import binom, norm

FILE = Path(__file__).with_suffix(".json")
EDGES = [  # (records, rate, noise multiplier, steps, delta)
    (2, 0.5, 3.0, 1, 1e-5),
    (2, 0.97, 6.0, 30, 1e-6),
    (20, 0.01, 1.0, 1, 1e-5),
    (20, 0.01, 1.0, 10_000, 1e-5),
    (20, 1e-5, 0.3, 5_000, 1e-6),
    (1_000, 0.001, 2.0, 100, 1e-5),
    (1_000, 0.3, 1e4, 100_000, 1e-5),
    (300, 1e-4, 1.0, 300, 1e-3),
]


def random_mechanisms(count: int) -> list[tuple[int, float, float, int, float]]:
    """Random (records, rate, noise multiplier, steps, delta) with epsilons that somebody might ask for."""
    rng = np.random.default_rng(20)
    out: list[tuple[int, float, float, int, float]] = []
    while len(out) < count:
        records, rate = int(10 ** rng.uniform(0.4, 2.5)), 10 ** rng.uniform(-4, -0.2)
        noise, steps = 10 ** rng.uniform(-0.3, 2), int(10 ** rng.uniform(0, 4))
        ratio = np.sqrt(steps * records * rate * (np.expm1(min(noise**-2, 20)) + records * rate / noise**2))
        if 0.05 < ratio < 3 and records * rate * steps > 0.01:
            out.append((records, float(rate), float(noise), steps, float(10 ** rng.uniform(-8, -3))))
    return out


class Fine(NamedTuple):
    """dp_accounting's pessimistic epsilon, on grids halved until stable to 0.1 %; `low` takes off the last change."""

    low: float
    high: float
    grid: float


def fine_epsilon(records: int, rate: float, noise: float, steps: int, delta: float, grid: float) -> Fine:
    """The figure to compare with, as dp_accounting says it here and now, from this grid on."""
    drawn = np.arange(records + 1)
    chance, last = binom.pmf(drawn, records, rate), np.inf
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = pld.from_mixture_gaussian_mechanism(
                noise, drawn[chance > 0], chance[chance > 0], value_discretization_interval=grid, use_connect_dots=True
            )
            value = float(one.self_compose(steps).get_epsilon_for_delta(delta))
        if abs(last - value) <= 1e-3 * value:
            return Fine(value - abs(last - value), value, grid)
        last, grid = value, grid / 2


def make(count: int = 16) -> None:
    """Write the file, mechanism by mechanism."""
    rows = json.loads(FILE.read_text()) if FILE.exists() else []
    known = {tuple(row["mechanism"]) for row in rows}
    for mechanism in [*EDGES, *random_mechanisms(count)]:
        if mechanism not in known:
            records, rate, noise, steps, _ = mechanism
            low, high, grid = fine_epsilon(*mechanism, records * rate / noise * np.sqrt(steps) / 500)
            rows.append({"mechanism": list(mechanism), "low": low, "high": high, "grid": grid})
            FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            print(len(rows), mechanism, low, high, grid, flush=True)


@dataclass(frozen=True)
class Exact:
    """One step of a holder's records, or two, by the normal distribution and integrals alone."""

    records: int
    rate: float
    noise: float

    @cached_property
    def chance(self) -> np.ndarray:
        return binom.pmf(np.arange(self.records + 1), self.records, self.rate)

    @cached_property
    def shift(self) -> np.ndarray:
        return np.arange(self.records + 1) / self.noise

    def loss(self, g: np.ndarray) -> np.ndarray:
        """log P/Q where the output lies `g` deviations from that without the holder."""
        exponent = np.multiply.outer(np.asarray(g, float), self.shift) - self.shift**2 / 2
        return logsumexp(exponent, b=self.chance, axis=-1)

    def at(self, loss: float) -> float:
        """The output whose loss is this; minus infinity where all losses are larger."""
        if loss <= self.records * np.log1p(-self.rate) + 1e-15:
            return -np.inf
        return float(brentq(lambda g: float(self.loss(g)) - loss, -60.0, 60.0 + self.shift[-1], xtol=1e-13, rtol=1e-13))

    def delta(self, way: str, epsilon: float) -> float:
        """The divergence of one step at epsilon, of either sign."""
        at = self.at(epsilon if way == "remove" else -epsilon)
        if way == "remove":
            return float(self.chance @ norm.sf(at - self.shift) - np.exp(epsilon) * norm.sf(at))
        return float(norm.cdf(at) - np.exp(epsilon) * (self.chance @ norm.cdf(at - self.shift)))

    def delta_of_two(self, way: str, epsilon: float, points: int = 601) -> float:
        """The divergence of two steps: that of the second, given how much the first has told, over all outputs of the first."""
        g = np.linspace(-9.0, 9.0 + self.shift[-1], points)
        density = norm.pdf(g[:, None] - self.shift) @ self.chance if way == "remove" else norm.pdf(g)
        told = self.loss(g) if way == "remove" else -self.loss(g)
        return float(density @ [self.delta(way, epsilon - loss) for loss in told]) * (g[1] - g[0])


if __name__ == "__main__":
    make()
