"""What records hold, as digests: tensors, arrays, numbers and text, wherever in mappings, sequences and objects they lie.

Guarantee: two records with the same digest hold the same values in the same places, of the same types and shapes.
Proof: every part goes into the hash with its class, its key and its length, down to values that are written out in full. A value that
    shows neither its content nor its parts is `Unseen`: it is never passed over, nor counted by its class alone.
Breaks if: an object shows other attributes than those it computes with, or pickles into less than it is.
"""

from __future__ import annotations

import functools
import types
import weakref
from collections import UserDict
from collections.abc import Iterator, Mapping
from decimal import Decimal
from enum import Enum
from fractions import Fraction
from hashlib import blake2b
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sartor.sgd.digests import attributes, digest
from sartor.sgd.packages import package_of
from sartor.sgd.trees import is_seen

_WRITTEN_OUT = (
    *(type(None), type(...), bool, int, float, complex, str, bytes, bytearray, range, slice, Decimal, Fraction, PurePath),
    *(np.generic, np.dtype, torch.dtype, torch.device, torch.layout),
)
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_HANDLES = (types.GeneratorType, types.FrameType, types.ModuleType)

Named = Iterator[tuple[Any, Any]]


class Unseen(Exception):
    """Something in a record does not show what it holds; its class is what is told of it."""


def content(value: Any) -> bytes:
    """The digest of a record.

    >>> content({"x": 1}) == content({"x": 1}), content({"x": 1}) == content({"x": 2}), content(1) == content(True)
    (True, False, False)
    """
    return _content(value, ())


def _content(value: Any, above: tuple[int, ...]) -> bytes:
    if id(value) in above:
        return _hash(value, b"again", str(len(above) - above.index(id(value))).encode())
    inside = (*above, id(value))
    if isinstance(value, Tensor):
        return _hash(value, str(value.dtype).encode(), str(tuple(value.shape)).encode(), _numbers(value), *_named(_beside(value), inside))
    if isinstance(value, np.ndarray):
        parts = map(functools.partial(_content, above=inside), value.ravel().tolist()) if value.dtype.hasobject else (_bytes(value),)
        return _hash(value, str(value.dtype).encode(), str(value.shape).encode(), *parts, *_named(_beside(value), inside))
    if isinstance(value, _WRITTEN_OUT) and not isinstance(value, Enum):
        return _hash(value, repr(value).encode(errors="surrogatepass"), *_named(_beside(value), inside))
    if isinstance(value, _CODE):
        return _hash(value, digest(value).encode())
    if isinstance(value, weakref.ref):
        return _hash(value, _content(value(), inside))
    if isinstance(value, Enum):
        return _hash(value, value.name.encode())
    if isinstance(value, Mapping):
        return _hash(value, *_named(iter(value.items()), inside), *_named(_beside(value), inside))
    if isinstance(value, list | tuple):
        return _hash(value, *_named(enumerate(value), inside), *_named(_beside(value), inside))
    if isinstance(value, set | frozenset):
        return _hash(value, *sorted(_content(part, inside) for part in value), *_named(_beside(value), inside))
    return _object(value, inside)


def _object(value: Any, inside: tuple[int, ...]) -> bytes:
    """An object by its attributes; where one of them keeps its content to itself, or there is none, by what it would be pickled into."""
    if isinstance(value, _HANDLES):
        raise Unseen(type(value).__qualname__)
    held = attributes(value)
    if held:
        try:
            return _hash(value, *_named(iter(sorted(held.items())), inside))
        except Unseen:
            pass  # an image, say, whose pixels lie in an object of C
    try:
        made = value.__reduce_ex__(4)
    except Exception:  # whatever an object does that cannot be pickled
        raise Unseen(type(value).__qualname__) from None
    if isinstance(made, str):  # the name of something that there is once
        return _hash(value, made.encode())
    parts = [list(part) if i in (3, 4) and part is not None else part for i, part in enumerate(made[:5])]
    return _hash(value, *_named(enumerate(parts), inside))


def _named(parts: Named, inside: tuple[int, ...]) -> Iterator[bytes]:
    for key, part in parts:
        yield _content(key, inside)
        yield _content(part, inside)


def _beside(value: Any) -> Named:
    """What a collection, a tensor or a text of some class carries beside itself; what is a package's class's own business is left out."""
    ours = package_of(type(value)) is None
    for name, part in sorted(getattr(value, "__dict__", {}).items()):
        if (ours or not name.startswith("_")) and not (isinstance(value, UserDict) and name == "data"):
            yield name, part


def _numbers(value: Tensor) -> memoryview:
    if value.layout in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc):
        value = value.to_dense()
    if not is_seen(value) or value.is_quantized or value.device.type == "meta":
        raise Unseen(type(value).__qualname__)
    return _bytes(value.detach().resolve_conj().resolve_neg().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())


def _bytes(value: np.ndarray[Any, Any]) -> memoryview:
    return np.ascontiguousarray(value).reshape(-1).view(np.uint8).data


def _hash(value: Any, *parts: bytes | memoryview) -> bytes:
    found = blake2b(type(value).__qualname__.encode(), digest_size=16)
    for part in parts:
        found.update(b"%d:" % len(part))
        found.update(part)
    return found.digest()
