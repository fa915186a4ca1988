"""What a client does with its own rows in a round: some epochs of SGD from the server's model."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def train_locally(
    model: nn.Module, inputs: Tensor, labels: Tensor, *, epochs: int, batch: int, lr: float, seed: int | None = None
) -> nn.Module:
    """Train a model in place on one client's rows, in an order drawn anew in each epoch."""
    generator = torch.Generator()
    generator.seed() if seed is None else generator.manual_seed(seed)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    model.train()
    for _ in range(epochs):
        for rows in torch.randperm(len(labels), generator=generator).split(batch):
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs[rows]), labels[rows]).backward()
            optimizer.step()
    return model


@torch.no_grad()
def accuracy(model: nn.Module, inputs: Tensor, labels: Tensor, block: int = 1_000) -> float:
    """The share of rows that a model gets right."""
    model.eval()
    right = sum(int((model(x).argmax(1) == y).sum()) for x, y in zip(inputs.split(block), labels.split(block), strict=True))
    return right / len(labels)
