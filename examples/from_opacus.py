"""The same private training loop in Opacus and in Sartor, side by side.

    python examples/from_opacus.py

Opacus gives everyone one epsilon, so the strictest person's; Sartor gives each person their own. The loop is the same.
"""

from __future__ import annotations

import warnings

import torch
from opacus import PrivacyEngine
from torch.nn.functional import cross_entropy

import sartor
from sartor.data import load
from sartor.models import build
from sartor.sgd import evaluate

STEPS, BATCH, CLIP, LR, DELTA = 300, 256, 0.5, 1.0, 1e-4


def opacus(digits, strictest: float) -> float:  # type: ignore[no-untyped-def]
    """Everyone at the strictest budget."""
    model = build("digits-cnn", shape=digits.shape, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    loader = torch.utils.data.DataLoader(digits.train, batch_size=BATCH)
    model, optimizer, loader = PrivacyEngine().make_private_with_epsilon(
        module=model, optimizer=optimizer, data_loader=loader, target_epsilon=strictest, target_delta=DELTA,
        epochs=round(STEPS / len(loader)), max_grad_norm=CLIP,
    )  # fmt: skip
    done = 0
    while done < STEPS:
        for x, y in loader:
            optimizer.zero_grad()
            cross_entropy(model(x), y).backward()
            optimizer.step()
            done += 1
    return evaluate(model, digits.test)["accuracy"]


def ours(digits, budgets: sartor.Budgets) -> float:  # type: ignore[no-untyped-def]
    """Everyone at their own."""
    model = build("digits-cnn", shape=digits.shape, classes=10)
    optimizer = torch.optim.SGD(model.parameters(), lr=LR)
    plan = sartor.plan(budgets, "scale", steps=STEPS, batch=BATCH, clip=CLIP)
    model, optimizer, loader = sartor.make_private(model, optimizer, digits.train, budgets, plan)
    for x, y in loader:
        optimizer.zero_grad()
        cross_entropy(model(x), y).backward()
        optimizer.step()
    print(optimizer.account())
    return evaluate(model, digits.test)["accuracy"]


def main() -> None:
    """Train both and compare."""
    warnings.simplefilter("ignore")
    digits = load("digits")
    budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=len(digits.train), delta=DELTA)
    print(f"Opacus, everyone at epsilon 1: accuracy {opacus(digits, 1.0):.3f}")
    print(f"Sartor, each at their own:     accuracy {ours(digits, budgets):.3f}")


if __name__ == "__main__":
    main()
