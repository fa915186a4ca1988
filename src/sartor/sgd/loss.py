"""Losses as one number per example."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.nn import functional

from sartor.errors import SartorError
from sartor.sgd.batches import leaves


class Loss:
    """A loss as one number per example, however the one given reduces over a batch.

    A mean over a batch may divide by others' data (class weights, ignored targets), so it is never undone: the loss is asked not to reduce.
    """

    def __init__(self, given: Callable[..., Tensor] | None) -> None:
        self._given: Callable[..., Tensor] = functional.cross_entropy if given is None else given
        self._mean = True
        self._keywords: dict[str, str] = {}
        reduction = getattr(self._given, "reduction", None)
        if isinstance(self._given, nn.Module) and isinstance(reduction, str):
            self._given = copy.copy(self._given)
            setattr(self._given, "reduction", "none")  # noqa: B010 - modules type their attributes as tensors
            self._mean = reduction == "mean"
        elif not isinstance(self._given, nn.Module) and "reduction" in _parameters(self._given):
            self._keywords = {"reduction": "none"}
            self._mean = _parameters(self._given)["reduction"].default == "mean"
        self._ignored = _ignored(self._given)

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """One loss per example."""
        value = self._given(outputs, targets, **self._keywords)
        _refuse_unless_per_example(value, outputs, targets)
        flat = value.reshape(len(value), -1)
        if not self._mean:
            return flat.sum(1)
        if self._ignored is None or not isinstance(targets, Tensor) or targets.shape != value.shape or targets.is_floating_point():
            return flat.mean(1)
        # over an example's own positions: how far a batch is padded follows the longest record of others
        own: Tensor = (targets != self._ignored).reshape(len(value), -1).sum(1)
        return flat.sum(1) / own.clamp_min(1)


def pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise SartorError("fit and loss= are for records that are pairs of input and target; for others give make_private no loss.")
    return batch[0], batch[1]


def _refuse_unless_per_example(value: Tensor, outputs: Any, targets: Any) -> None:
    tensors = isinstance(outputs, Tensor) and isinstance(targets, Tensor)
    if tensors and value.numel() > max(outputs.numel(), targets.numel()):
        raise SartorError(
            "the loss makes more numbers than there are outputs, so it mixes examples; compare the shapes of outputs and targets: (n, 1) "
            "against (n) makes n x n losses."
        )
    counts = _counts(outputs, targets)
    if value.dim() and len(value) in counts:
        return
    if value.dim() and any(count and len(value) > count and len(value) % count == 0 for count in counts):
        raise SartorError(
            "the loss gives several numbers for each example in one long row, which does not tell whose is whose; give it the shape "
            "(examples, positions), or one number per example."
        )
    raise SartorError(
        "the loss gives one number for the whole batch, which may mix examples: give one number per example (reduction='none'), or "
        "a loss of torch.nn, which can be asked to."
    )


def _counts(outputs: Any, targets: Any) -> set[int]:
    """How many examples there may be: as many as both targets and outputs have rows, or, where they agree in none, as either has."""
    if isinstance(targets, Tensor):
        return {len(targets)} if targets.dim() else set()
    given, wanted = _lengths(outputs), _lengths(targets)
    return (given & wanted) or (given | wanted)


def _lengths(value: Any) -> set[int]:
    own = {len(value)} if isinstance(value, list) else set()
    return own | {len(leaf) for leaf in leaves(value) if isinstance(leaf, Tensor | np.ndarray) and leaf.ndim}


def _ignored(loss: Callable[..., Any]) -> int | None:
    """The class that a loss leaves out, if it has one."""
    parameter = _parameters(loss).get("ignore_index")
    own = getattr(loss, "ignore_index", None if parameter is None else parameter.default)
    return own if isinstance(own, int) else None


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
