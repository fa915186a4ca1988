"""Independent figures to compare with: dp_accounting on ever finer grids, and brute force over exact outcomes.

Fine grids take dp_accounting seconds to minutes each, so its figures are kept in `accounting_reference.json`.
This command makes the file again: `python tests/sartor_testing/accounting_reference.py`.
"""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import NamedTuple

import numpy as np
from dp_accounting.pld import privacy_loss_distribution as pld
from scipy.stats import norm

FILE = Path(__file__).with_suffix(".json")
LOG_LENGTH = 24  # of the longest transform: 16 million points
CORNERS = [
    (1.0, 50.0, 1, 1e-5),
    (1.0, 20.0, 100, 1e-6),
    (1e-6, 0.4, 100_000, 1e-5),
    (0.5, 50.0, 1, 1e-5),
    (0.5, 50.0, 5_000, 1e-5),
    (0.05, 0.4, 1, 1e-5),
    (1e-3, 10.0, 100_000, 1e-5),
    (0.02, 1.0, 1, 1e-3),
]


def random_mechanisms(count: int) -> list[tuple[float, float, int, float]]:
    """Random (rate, noise multiplier, steps, delta) with epsilons that anybody would ask for and a reference that can be had."""
    rng = np.random.default_rng(20)
    out: list[tuple[float, float, int, float]] = []
    while len(out) < count:
        rate, noise = 10 ** rng.uniform(-5, 0), 10 ** rng.uniform(np.log10(0.4), np.log10(50))
        steps, chance = int(10 ** rng.uniform(0, 5)), 10 ** rng.uniform(-8, -3)
        spread = rate * np.sqrt(steps * np.expm1(min(noise**-2, 20)))
        if 0.003 < spread < 0.7 and rate * steps > 10 * chance:
            out.append((float(rate), float(noise), steps, float(chance)))
    return out


class Fine(NamedTuple):
    """dp_accounting's pessimistic epsilon on a grid of 1e-5 or finer, halved until stable to 0.1 %.

    `low` takes off the last change, several times what is still missing to the limit. `rounding` is how far apart two computers may find
    `high`: dp_accounting takes a Fourier transform to the power of the steps, and a transform of N numbers is right to about log2(N) times
    the precision of a double, whose kernels round differently. So delta is known up to steps * log2(N) * 2.2e-16, and epsilon up to what
    such a change of delta changes in it.
    """

    low: float
    high: float
    grid: float
    rounding: float


def fine_epsilon(rate: float, noise: float, steps: int, delta: float) -> Fine:
    """The figure to compare with, as dp_accounting says it here and now."""
    spread = rate * np.sqrt(np.expm1(min(noise**-2, 20.0)))
    grid, last = min(2e-5, spread / 2), np.inf
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            one = pld.from_gaussian_mechanism(noise, sampling_prob=rate, value_discretization_interval=grid, use_connect_dots=True)
            every = one.self_compose(steps)
            value = float(every.get_epsilon_for_delta(delta))
        if abs(last - value) <= 1e-3 * value:
            unsure = steps * LOG_LENGTH * np.finfo(float).eps
            least, most = (float(every.get_epsilon_for_delta(delta + change)) for change in (unsure, -unsure))
            return Fine(value - abs(last - value), value, grid, most - least)
        last, grid = value, grid / 2


def make(count: int = 210) -> None:
    """Write the file, mechanism by mechanism."""
    rows = json.loads(FILE.read_text()) if FILE.exists() else []
    known = {tuple(row["mechanism"]) for row in rows}
    for mechanism in [*CORNERS, *random_mechanisms(count)]:
        if mechanism not in known:
            low, high, grid, _ = fine_epsilon(*mechanism)
            rows.append({"mechanism": list(mechanism), "low": low, "high": high, "grid": grid})
            FILE.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
            print(len(rows), mechanism, low, high, grid, flush=True)


def exact_delta(loss: np.ndarray, mass: np.ndarray, epsilon: float) -> float:
    """The hockey-stick divergence of outcomes with these losses under P."""
    over = loss > epsilon
    return float(np.sum(mass[over] * -np.expm1(epsilon - loss[over])))


def exact_epsilon(loss: np.ndarray, mass: np.ndarray, delta: float) -> float:
    """The smallest epsilon whose divergence is at most delta, by bisection."""
    low, high = 0.0, float(loss.max())
    if exact_delta(loss, mass, 0.0) <= delta:
        return 0.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (low, middle) if exact_delta(loss, mass, middle) <= delta else (middle, high)
    return high


def gaussian_outcomes(mu: float, points: int = 20_001) -> tuple[np.ndarray, np.ndarray]:
    """Masses with the holder (P) and without (Q) of fine bins of one Gaussian output."""
    edges = np.linspace(-7.0, 7.0 + mu, points)
    return np.diff(norm.cdf(edges - mu)), np.diff(norm.cdf(edges))


if __name__ == "__main__":
    make()
