"""Losses as one number per example."""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from sartor.errors import SartorError
from sartor.sgd.batches import cut, has_rows, leaves

_SEEDS = 4


class Loss:
    """A loss as one number per example, however the one given reduces over a batch.

    A mean over a batch may divide by others' data (class weights, ignored targets), so it is never undone: the loss is asked not to reduce.
    """

    def __init__(self, given: Callable[..., Tensor] | None) -> None:
        self._given: Callable[..., Tensor] = functional.cross_entropy if given is None else given
        self._mean, self._checked = True, False
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
        if not self._checked and len(value) > 1:
            self._refuse_mixing(value, outputs, targets)
            self._checked = True
        flat = value.reshape(len(value), -1)
        if not self._mean:
            return flat.sum(1)
        if self._ignored is None or not isinstance(targets, Tensor) or targets.shape != value.shape or targets.is_floating_point():
            return flat.mean(1)
        # over an example's own positions: how far a batch is padded follows the longest record of others
        own: Tensor = (targets != self._ignored).reshape(len(value), -1).sum(1)
        return flat.sum(1) / own.clamp_min(1)

    def _refuse_mixing(self, value: Tensor, outputs: Any, targets: Any) -> None:
        """An example's loss must be the same whoever else is in the batch; a shape that broadcasts (n, 1) against (n) is not.

        An early test with a sentence of its own. What it cannot tell (outputs that cannot be cut, losses that cannot take one example or
        draw random numbers) is left to `sartor.sgd.property`.
        """
        rows = len(value)
        if not any(has_rows(leaf, rows) for leaf in leaves(outputs)):
            return
        for begin in (0, rows - 1):
            try:
                alone = self._again(*cut((outputs, targets), begin, begin + 1, rows))
            except Exception:
                return
            if not isinstance(alone, Tensor) or not alone.dim() or len(alone) != 1:
                return
            same_shape = alone.shape[1:] == value.shape[1:]
            if same_shape and (_close(alone, value[begin : begin + 1]) or self._is_random(outputs, targets)):
                continue
            raise SartorError(
                "an example's loss depends on the others in its batch, so no one's influence can be bounded; compare the shapes of "
                "outputs and targets: (n, 1) against (n) makes n x n losses."
            )

    def _again(self, outputs: Any, targets: Any, seed: int = 0) -> Any:
        with torch.no_grad(), torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            return self._given(outputs, targets, **self._keywords)

    def _is_random(self, outputs: Any, targets: Any) -> bool:
        """Whether the loss draws random numbers; one that differs under the same ones remembers what it has seen, and is refused."""
        first, again, *others = (self._again(outputs, targets, seed) for seed in (0, *range(_SEEDS)))
        if not _close(first, again):
            raise SartorError(
                "the loss gives other numbers for the same outputs and targets when it is asked again: it remembers what it has seen "
                "(a moving average), or draws random numbers that are not torch's; let it follow outputs and targets alone."
            )
        return not all(_close(first, other) for other in others)


def pair(batch: Any) -> tuple[Any, Any]:
    """Inputs and targets of a batch."""
    if not isinstance(batch, list | tuple) or len(batch) != 2:
        raise SartorError("fit needs records that are pairs of input and target; for others, write the loop around make_private.")
    return batch[0], batch[1]


def _refuse_unless_per_example(value: Tensor, outputs: Any, targets: Any) -> None:
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


def _close(one: Tensor, two: Tensor) -> bool:
    return one.shape == two.shape and torch.allclose(one, two, rtol=1e-3, atol=1e-5, equal_nan=True)


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
