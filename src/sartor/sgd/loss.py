"""Losses as one number per example."""

from __future__ import annotations

import copy
import functools
import hashlib
import inspect
import types
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils._pytree import tree_map

from sartor.errors import SartorError

_DEEPEST = 8


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

    @property
    def name(self) -> str:
        """A fingerprint of what the loss computes: its code, settings and weights, as far as they can be seen."""
        text = f"{_identity(self._given)} {self._mean} {self._keywords}"
        return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

    def __call__(self, outputs: Any, targets: Any) -> Tensor:
        """One loss per example."""
        value = self._given(outputs, targets, **self._keywords)
        if not value.dim() or len(value) != len(targets):
            raise SartorError(
                "the loss gives one number for the whole batch, which may mix examples: give one number per example (reduction='none'), or "
                "a loss of torch.nn, which can be asked to."
            )
        if not self._checked and len(value) > 1:
            self._refuse_mixing(value, outputs, targets)
            self._checked = True
        flat = value.reshape(len(value), -1)
        return flat.mean(1) if self._mean else flat.sum(1)

    def _refuse_mixing(self, value: Tensor, outputs: Any, targets: Any) -> None:
        """An example's loss must be the same whoever else is in the batch; a shape that broadcasts (n, 1) against (n) is not."""
        for begin, end in ((0, 1), (len(value) - 1, len(value))):

            def cut(given: Any, rows: slice = slice(begin, end)) -> Any:
                return given[rows] if isinstance(given, Tensor) and given.dim() and len(given) == len(value) else given

            mine = tree_map(cut, (outputs, targets))
            with torch.no_grad():
                alone = self._given(*mine, **self._keywords)
            if alone.shape[1:] != value.shape[1:] or not torch.allclose(alone, value[begin:end], rtol=1e-3, atol=1e-5, equal_nan=True):
                raise SartorError(
                    "an example's loss depends on the others in its batch, so no one's influence can be bounded; compare the shapes of "
                    "outputs and targets: (n, 1) against (n) makes n x n losses."
                )


def _identity(value: Any, depth: int = 0) -> str:
    """What tells one loss from another, as a text that is the same in another process."""
    if depth > _DEEPEST or value is None or isinstance(value, bool | int | float | complex | str | bytes):
        return repr(value) if depth <= _DEEPEST else type(value).__qualname__

    def inner(part: Any) -> str:
        return _identity(part, depth + 1)

    if isinstance(value, Tensor):
        return f"{value.dtype} {tuple(value.shape)} {hashlib.blake2b(value.detach().contiguous().view(-1).numpy().tobytes()).hexdigest()}"
    if isinstance(value, nn.Module):
        plain = {name: part for name, part in vars(value).items() if not name.startswith("_") and name != "training"}
        return f"{type(value).__qualname__} {inner(plain)} {inner(dict(value.state_dict()))} {[inner(m) for m in value.children()]}"
    if isinstance(value, dict):
        return str({str(key): inner(part) for key, part in sorted(value.items(), key=lambda pair: str(pair[0]))})
    if isinstance(value, list | tuple | set | frozenset):
        return str([inner(part) for part in value])
    if isinstance(value, functools.partial):
        return f"partial {inner(value.func)} {inner(value.args)} {inner(value.keywords)}"
    if isinstance(value, types.CodeType):
        return f"{value.co_code.hex()} {value.co_names} {inner(value.co_consts)}"
    if isinstance(value, types.FunctionType):
        cells = [cell.cell_contents for cell in value.__closure__ or ()]
        return f"{value.__qualname__} {inner(value.__code__)} {inner(value.__defaults__)} {inner(value.__kwdefaults__)} {inner(cells)}"
    if isinstance(value, types.MethodType):
        return f"{inner(value.__func__)} {inner(value.__self__)}"
    name = getattr(value, "__qualname__", type(value).__qualname__)
    return f"{name} {inner(vars(value)) if hasattr(value, '__dict__') and not isinstance(value, type) else ''}"


def _parameters(function: Callable[..., Any]) -> Mapping[str, inspect.Parameter]:
    try:
        return inspect.signature(function).parameters
    except (TypeError, ValueError):
        return {}
