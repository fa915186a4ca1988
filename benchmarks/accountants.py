"""How much noise the tight accountant saves in the papers' settings: the table of the README's accounting paragraph.

python benchmarks/accountants.py
"""

from __future__ import annotations

import numpy as np
from rich.console import Console
from rich.table import Table

import sartor

SETTINGS = {  # IDP-SGD, table 5: holders, batch, steps
    "MNIST": (60_000, 512, 9_375),
    "SVHN": (73_257, 1_024, 2_146),
    "CIFAR-10": (50_000, 1_024, 1_465),
}
SETUPS = {"A": [0.34, 0.43, 0.23], "B": [0.54, 0.37, 0.09]}


def main() -> None:
    """Plan each setting by both accountants and print the noise multipliers."""
    table = Table(title="noise multiplier for epsilon 1, 2, 3 at delta 1e-5")
    for name in ("setting", "shares", "scheme", "Rényi", "PLD", "less noise"):
        table.add_column(name, justify="right")
    for setting, (holders, batch, steps) in SETTINGS.items():
        for setup, shares in SETUPS.items():
            budgets = sartor.Budgets.from_shares([1, 2, 3], shares, holders=holders, delta=1e-5, seed=0)
            for scheme in ("scale", "sample"):
                rdp, pld = (
                    sartor.plan(budgets, scheme, steps=steps, batch=batch, accountant=accountant).noise_multiplier
                    for accountant in ("rdp", "pld")
                )
                text = "-".join(f"{100 * share:.0f}" for share in np.array(shares))
                table.add_row(setting, f"{setup} ({text} %)", scheme, f"{rdp:.4f}", f"{pld:.4f}", f"{1 - pld / rdp:.1%}")
    Console(width=100).print(table)


if __name__ == "__main__":
    main()
