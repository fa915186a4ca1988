"""CIFAR-10: the published pickles, the published binary files, or a lossless recompression of them.

The pickles are read without trusting them: nothing that a pickle names is imported or called. Names of NumPy's array parts are answered
with inert stand-ins that keep the bytes, and any other name is refused.

The recompressed layout is `train_images.npy.xz` and `test_images.npy.xz`, differences along rows and columns of the planes
G, R-G and B-G as (3, rows, 32, 32) bytes, with `labels.npz` for the labels.
"""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.data.dataset import Data, Folder, Found, Layout, dataset, find, opened, reading
from sartor.data.images import normalised
from sartor.errors import SartorError

Bytes = NDArray[np.uint8]
Part = tuple[Bytes, NDArray[np.generic]]

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)

_BATCHES = tuple(f"data_batch_{i}" for i in range(1, 6))
_LAYOUTS = (
    Layout("pickles", ("cifar-10-batches-py", "."), tuple((name,) for name in (*_BATCHES, "test_batch"))),
    Layout("binary", ("cifar-10-batches-bin", "."), tuple((f"{name}.bin",) for name in (*_BATCHES, "test_batch"))),
    Layout("differences", ("cifar10", "."), (("train_images.npy.xz",), ("test_images.npy.xz",), ("labels.npz",))),
)


def read(folder: Folder = None) -> Data:
    """Small photographs of ten kinds of things: 50,000 and 10,000 images of 3x32x32."""
    found = find("cifar10", folder, _LAYOUTS)
    train, test = {"pickles": _from_batches, "binary": _from_batches, "differences": _from_differences}[found.layout](found)
    parts = [dataset(normalised(pixels, MEAN, STD), labels) for pixels, labels in (train, test)]
    return Data("cifar10", parts[0], parts[1], 10, (3, 32, 32))


def _from_batches(found: Found) -> tuple[Part, Part]:
    read_one = _pickled if found.layout == "pickles" else _binary
    batches = [read_one(path) for path in found.files]
    return _joined(batches[:-1]), batches[-1]


def _joined(batches: Sequence[Part]) -> Part:
    return np.concatenate([pixels for pixels, _ in batches]), np.concatenate([labels for _, labels in batches])


def _binary(path: Path) -> Part:
    with reading(path, "CIFAR-10's binary version"):
        rows = np.frombuffer(path.read_bytes(), np.uint8).reshape(-1, 1 + 3072)
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0]


def _pickled(path: Path) -> Part:
    with reading(path, "a pickle of CIFAR-10"), path.open("rb") as file:
        batch = {_text(key): value for key, value in _Unpickler(file, encoding="bytes").load().items()}
        return batch["data"].as_bytes().reshape(-1, 3, 32, 32), np.array(batch["labels"], np.int64)


def _from_differences(found: Found) -> tuple[Part, Part]:
    with reading(found.files[2], "labels"), np.load(found.files[2], allow_pickle=False) as labels:
        train, test = labels["train"], labels["test"]
    return (_undone(found.files[0]), train), (_undone(found.files[1]), test)


def _undone(path: Path) -> Bytes:
    with reading(path, "compressed images"), opened(path) as file:
        planes: Bytes = np.load(file, allow_pickle=False)
        for axis in (2, 3):
            np.cumsum(planes, axis=axis, dtype=np.uint8, out=planes)
        green = planes[0]
        return np.stack([planes[1] + green, green, planes[2] + green], axis=1)


def _text(key: str | bytes) -> str:
    return key.decode("latin-1") if isinstance(key, bytes) else key


class _Type:
    """Stands in for a data type; pixels are bytes, so which one it names is all that is kept."""

    def __init__(self, name: str | bytes, *_: Any) -> None:
        self.name = _text(name)

    def __setstate__(self, state: Any) -> None:
        return None


class _Array:
    """Stands in for an array while a pickle is read, and keeps its shape, type and bytes."""

    def __init__(self, *_: Any) -> None:
        self.state: tuple[Any, ...] = ()

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.state = state

    def as_bytes(self) -> Bytes:
        _, shape, kind, columns_first, content = self.state
        if not (isinstance(kind, _Type) and kind.name == "u1" and isinstance(content, bytes)):
            raise ValueError("the array does not hold bytes")
        return np.frombuffer(content, np.uint8).reshape(shape, order="F" if columns_first else "C")


def _new_array(*_: Any) -> _Array:
    return _Array()


def _latin1(text: str, encoding: str | bytes) -> bytes:
    if _text(encoding) not in ("latin1", "latin-1"):
        raise ValueError("the text is not Latin-1")
    return text.encode("latin-1")


_STAND_INS: dict[tuple[str, str], Any] = {
    ("numpy", "dtype"): _Type,
    ("numpy", "ndarray"): _Array,
    ("numpy.core.multiarray", "_reconstruct"): _new_array,
    ("numpy._core.multiarray", "_reconstruct"): _new_array,
    ("_codecs", "encode"): _latin1,
}


class _Unpickler(pickle.Unpickler):
    """Builds stand-ins for arrays of bytes, and refuses every other name in a pickle."""

    def find_class(self, module: str, name: str) -> Any:
        try:
            return _STAND_INS[module, name]
        except KeyError:
            raise SartorError(f"the pickle asks for {module}.{name}, which no array of images needs: it was not run.") from None
