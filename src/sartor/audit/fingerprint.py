"""Values as pieces: the place of every part and a digest of what stands there, by which two runs are compared.

Guarantee: values with the same pieces have the same numbers and texts in the same places.
Breaks if: an object keeps what it is to itself; it then counts by its class, and a function by its name. Of a module its state, gradients
    and plain numbers count.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from torch import nn

from sartor.individual.readings import Reading
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.training import Result, Sensitive

Pieces = dict[tuple[str, ...], str]

_DEEP = 20
_WRITTEN_OUT = (type(None), str, bytes, int, float, complex, os.PathLike)
_SHOWN_TO_NOBODY = (Reading, Sensitive, PrivateLoader)


def digest(value: object) -> str:
    """Return one digest of all pieces of a value.

    >>> digest({"x": np.ones(2)}) == digest({"x": np.ones(2)}), digest({"x": np.ones(2)}) == digest({"x": np.ones(3)})
    (True, False)
    """
    return blake2b(repr(sorted(pieces(value).items())).encode(), digest_size=16).hexdigest()


def pieces(value: object, *place: str) -> Pieces:
    """Return the pieces of a value, each under its place.

    Readings and figures marked as sensitive count by their class, as nobody is shown these; a private optimizer by its account and state.
    """
    found: Pieces = {}
    _take(value, place, found, ())
    return found


def _take(value: Any, place: tuple[str, ...], found: Pieces, above: tuple[int, ...]) -> None:
    if isinstance(value, torch.Tensor | np.ndarray | np.generic):
        found[place] = _array(value)
    elif isinstance(value, _WRITTEN_OUT):
        found[place] = repr(value)
    else:
        inner = None if id(value) in above or len(above) > _DEEP else _parts(value)
        found[place] = f"{getattr(value, '__qualname__', type(value).__qualname__)} of {None if inner is None else sorted(inner)}"
        for name, part in (inner or {}).items():
            _take(part, (*place, name), found, (*above, id(value)))


def _parts(value: Any) -> dict[str, Any] | None:
    """What a value is made of, by names; None of what has no parts."""
    if isinstance(value, (*_SHOWN_TO_NOBODY, type)):
        return None
    if isinstance(value, nn.Module):
        return _of_module(value)
    if isinstance(value, PrivateOptimizer):
        return {"account": value.account(), "optimizer": value.inner.state_dict()}
    if isinstance(value, Mapping):
        return {str(name): part for name, part in value.items()}
    if isinstance(value, Collection):
        items = sorted(value, key=repr) if isinstance(value, set | frozenset) else value
        return {str(number): part for number, part in enumerate(items)}
    if isinstance(value, partial):
        return {"function": value.func, "given": value.args, **value.keywords}
    if is_dataclass(value):
        clock = {"seconds"} if isinstance(value, Result) else set()  # never the same
        return {field.name: getattr(value, field.name) for field in fields(value) if field.name not in clock}
    return None if callable(value) else getattr(value, "__dict__", None)


def _of_module(model: nn.Module) -> dict[str, Any]:
    found = {**dict(model.named_buffers()), **model.state_dict()}
    found |= {f"gradient of {name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    for name, inner in model.named_modules():
        found |= {f"{name}.{key}": part for key, part in vars(inner).items() if isinstance(part, int | float | str)}
    return found


def _array(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        dense = value.detach().to_dense() if value.layout is not torch.strided else value.detach()
        content = dense.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
    else:
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    return f"{value.dtype} {tuple(value.shape)} {blake2b(content, digest_size=16).hexdigest()}"
