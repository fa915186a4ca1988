"""What the published form of PDP-SGD promises and what it really spends, over rounds: docs/results/pdp-sgd-flaw.svg and a table.

python benchmarks/pdp_flaw.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from sartor.accounting import noise_for, rounds
from sartor.accounting.coins import Law, published

TAU, BUDGET, STRICT, DELTA, MOST = 0.8, 0.5, 0.1, 1e-5, 10
SHARE = 0.02  # of the logarithm of a ratio: the grid of ratios
OUT = Path(__file__).parent.parent / "docs" / "results" / "pdp-sgd-flaw.svg"
WIDTH, HEIGHT, LEFT, BOTTOM = 560, 320, 60, 50


def spends() -> dict[str, list[float]]:
    """By what is inside a round, the true epsilon after 1, 2, ... rounds."""
    true = np.exp(TAU) / (1 + np.exp(TAU))
    response = Law.of([true, 1 - true], [1 - true, true])
    grid = rounds.Grid(0.005, DELTA, MOST)
    gaussian = Law.of_losses(rounds.gaussian(1 / float(noise_for(TAU, DELTA, rate=1.0, steps=1)), grid))
    counts = range(1, MOST + 1)
    return {
        "randomised response, delta 0": [published([response] * k, [TAU] * k, BUDGET).epsilon(0.0) for k in counts],
        "Gaussian, inner delta": [published([gaussian] * k, [TAU] * k, BUDGET, SHARE).epsilon(DELTA) for k in counts],
        "Gaussian, promised delta": [published([gaussian] * k, [TAU] * k, BUDGET, SHARE).epsilon(k * DELTA) for k in counts],
    }


def drawn(lines: dict[str, list[float]]) -> str:
    """The figure."""
    colours = ("#c0392b", "#2471a3", "#7fb3d5")

    def at(rounds: float, epsilon: float) -> str:
        x = LEFT + (rounds - 1) / (MOST - 1) * (WIDTH - LEFT - 20)
        return f"{x:.1f},{HEIGHT - BOTTOM - (epsilon - 0.3) / 0.6 * (HEIGHT - BOTTOM - 20):.1f}"

    parts = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" font-size="12">']
    parts.append('<rect width="100%" height="100%" fill="white"/>')
    for epsilon in (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9):
        x, y = at(1, epsilon).split(",")
        parts.append(f'<text x="{float(x) - 32}" y="{float(y) + 4}">{epsilon:.1f}</text>')
    for count in range(1, MOST + 1):
        x, y = at(count, 0.3).split(",")
        parts.append(f'<text x="{float(x) - 4}" y="{float(y) + 18}">{count}</text>')
    parts.append(f'<polyline points="{at(1, BUDGET)} {at(MOST, BUDGET)}" fill="none" stroke="black" stroke-dasharray="5 4"/>')
    x, y = at(MOST, BUDGET).split(",")
    parts.append(f'<text x="{float(x) - 70}" y="{float(y) - 8}">promised</text>')
    for (name, values), colour, row in zip(lines.items(), colours, range(3), strict=True):
        points = " ".join(at(count, value) for count, value in enumerate(values, 1))
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{LEFT + 20}" y="{18 + 15 * row}" fill="{colour}">{name}</text>')
    parts.append(f'<text x="{WIDTH / 2 - 20}" y="{HEIGHT - 8}">rounds</text></svg>')
    return "\n".join(parts) + "\n"


def strict() -> list[float]:
    """The same of a smaller budget, with a Gaussian inside, at the promised delta."""
    grid = rounds.Grid(0.005, DELTA, MOST)
    gaussian = Law.of_losses(rounds.gaussian(1 / float(noise_for(TAU, DELTA, rate=1.0, steps=1)), grid))
    return [published([gaussian] * k, [TAU] * k, STRICT, SHARE).epsilon(k * DELTA) for k in range(1, MOST + 1)]


if __name__ == "__main__":
    found = spends()
    OUT.write_text(drawn(found))
    found[f"Gaussian, promised delta, of a budget of {STRICT:g}"] = strict()
    print("| rounds | " + " | ".join(found) + " |")
    for count in (1, 2, 3, 5, 10):
        print(f"| {count} | " + " | ".join(f"{values[count - 1]:.3f}" for values in found.values()) + " |")
