"""The simplest network: a linear layer on everything."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor, nn


class Logistic(nn.Module):
    """Logistic regression on the flattened input."""

    def __init__(self, width: int, classes: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, classes)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits of a batch."""
        out: Tensor = self.linear(inputs.flatten(1))
        return out


def logistic(*, shape: Sequence[int], classes: int) -> nn.Module:
    """Logistic regression for inputs of any shape."""
    return Logistic(math.prod(shape), classes)
