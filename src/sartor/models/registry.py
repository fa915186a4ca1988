"""Models by name; which one is usual for a data set is in `sartor.usual`."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from torch import Tensor, nn

from sartor.errors import SartorError
from sartor.models import images, text


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


_DENSE: dict[str, Callable[..., nn.Module]] = {
    "cifar-cnn": images.cifar_cnn,
    "digits-cnn": images.digits_cnn,
    "logistic": logistic,
    "mnist-cnn": images.mnist_cnn,
    "resnet18-gn": images.resnet18_gn,
}
_TOKENS: dict[str, Callable[..., nn.Module]] = {
    "char-lstm": text.char_lstm,
    "embedding": text.embedding,
    "transformer": text.transformer,
}


def available() -> tuple[str, ...]:
    """The names that `build` knows."""
    return tuple(sorted((*_DENSE, *_TOKENS)))


def build(name: str, *, shape: Sequence[int], classes: int, vocabulary: int | None = None) -> nn.Module:
    """A fresh model for inputs of this shape; `vocabulary` is the number of tokens, where inputs are tokens.

    Example:
        >>> model = build("mnist-cnn", shape=(1, 28, 28), classes=10)
        >>> sum(parameter.numel() for parameter in model.parameters())
        26010
    """
    if name not in available():
        raise SartorError(f'there is no model "{name}"; there are {", ".join(available())}.')
    if classes < 2 or any(size < 1 for size in shape) or not shape:
        raise SartorError(f"a model needs at least two classes and a shape of positive sizes, not {classes} and {tuple(shape)}.")
    if name in _DENSE:
        if vocabulary is not None:
            raise SartorError(f"{name} reads numbers, and these inputs are tokens; choose {', '.join(_TOKENS)}.")
        return _DENSE[name](shape=shape, classes=classes)
    if vocabulary is None:
        raise SartorError(f"{name} reads tokens and needs the size of their vocabulary; for numbers choose {', '.join(_DENSE)}.")
    return _TOKENS[name](shape=shape, classes=classes, vocabulary=vocabulary)
