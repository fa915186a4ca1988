"""Finished teachers in a folder, so that a run that was killed goes on where it was. Private, like the votes in it."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load, save
from torch import Tensor
from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.files import write_private

Votes = NDArray[np.int16]
Weights = dict[str, NDArray[Any]]

_MANIFEST = "ensemble.json"


class Kept:
    """The votes of finished teachers, in memory and, if there is a folder, one file for each teacher that only its owner can read."""

    def __init__(self, path: Path | None, seed: int, teachers: int) -> None:
        self.path, self.seed, self.teachers = path, seed, teachers
        self.done: dict[int, Votes] = {}

    @classmethod
    def opened(
        cls,
        folder: str | os.PathLike[str] | None,
        seed: int | None,
        settings: Mapping[str, Any],
        dataset: TensorDataset,
        slices: list[NDArray[np.intp]],
        queries: Tensor,
    ) -> Kept:
        """A folder of these settings, records and queries, new or begun; one of others is refused."""
        if folder is None:
            return cls(None, secrets.randbits(128) if seed is None else seed, len(slices))
        path = Path(folder)
        of = {
            "settings": digest([json.dumps(settings, sort_keys=True, default=str).encode()]),
            "slices": digest(part for indices in slices for part in (str(len(indices)).encode(), np.ascontiguousarray(indices))),
            "data": digest(bytes_of(tensor) for tensor in dataset.tensors),
            "queries": digest([bytes_of(queries)]),
        }
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        if (path / _MANIFEST).exists():
            found = _manifest(path)
            for what, name in {"settings": "settings", "slices": "slices", "data": "data", "queries": "queries"}.items():
                if found["of"].get(what) != of[what]:
                    raise SartorError(f"{path} holds teachers of other {name}: give another folder, or the same {name}.")
            if seed is not None and found["seed"] != str(seed):
                raise SartorError(f"{path} holds teachers of another seed: give another folder, or the same seed.")
            self = cls(path, int(found["seed"]), len(slices))
        else:
            if any(path.iterdir()):
                raise SartorError(f"{path} holds other files and no teachers: give an empty folder or a new one.")
            path.chmod(0o700)
            self = cls(path, secrets.randbits(128) if seed is None else seed, len(slices))
            write_private(path / _MANIFEST, json.dumps({"of": of, "seed": str(self.seed)}).encode())
        self._read(len(queries))
        return self

    def add(self, number: int, votes: Votes, weights: Weights) -> None:
        """Keep a finished teacher."""
        if self.path is not None:
            tensors = {"votes": votes, **{f"weights.{name}": np.ascontiguousarray(value) for name, value in weights.items()}}
            write_private(self._file(number), save(tensors))
        self.done[number] = votes

    def _file(self, number: int) -> Path:
        assert self.path is not None
        return self.path / f"teacher-{number:05d}.safetensors"

    def _read(self, queries: int) -> None:
        for number in range(self.teachers):
            file = self._file(number)
            if file.exists():
                try:
                    votes = load(file.read_bytes())["votes"]
                except (SafetensorError, KeyError):
                    votes = np.zeros(0, np.int16)
                if votes.shape != (queries,) or votes.dtype != np.int16:
                    raise SartorError(f"{file} is damaged: remove it, and its teacher is trained again.")
                self.done[number] = votes


def _manifest(path: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((path / _MANIFEST).read_bytes())
        int(found["seed"]), dict(found["of"])
    except (ValueError, KeyError, TypeError):
        raise SartorError(f"{path / _MANIFEST} is damaged: give another folder.") from None
    return found


def digest(chunks: Iterable[Any]) -> str:
    """A fingerprint of some bytes."""
    hashed = hashlib.blake2b(digest_size=16)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def bytes_of(tensor: Tensor) -> Any:
    """A tensor with its shape and type."""
    return f"{tuple(tensor.shape)} {tensor.dtype}".encode() + tensor.detach().contiguous().numpy().tobytes()
