"""What anybody sees of a run beside its releases: what it prints, logs and warns of, what it returns, files that others may read.

Two runs are compared piece by piece: lines, fields, files. Some pieces differ between two runs on the same data, as clocks do; runs with
nobody zeroed tell which, and these say nothing of anybody. Of the others it is asked again, several times, whether they really follow the
holder: a clock that is told in whole seconds is seldom the same all over.

Guarantee: a piece that follows the holder in every run and nothing else is named.
Breaks if: it is written beneath Python's streams, as programs do that are started; by a logger's handler that is bound to a stream of its
    own; or to a file whose path is not returned.

A value's pieces are the place of every part and a digest of what stands there.

Guarantee: values with the same pieces have the same numbers and texts in the same places.
Breaks if: an object keeps what it is to itself; it then counts by its class, and a function by its name. Of a module its state, gradients
    and plain numbers count.
"""

from __future__ import annotations

import io
import logging
import os
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import fields, is_dataclass
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from sartor.individual.readings import Reading
from sartor.sgd.forks import forked
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


_OTHERS, _ENTER = 0o044, 0o011  # who may read a file, and enter a folder, beside its owner
_TIMES = 3  # how often it is asked again
_ONE = threading.RLock()
"""Streams and random numbers are those of the whole process, so one run is looked at at a time."""

KINDS = {
    "printed": "what is printed follows the holder's records.",
    "returned": "what is returned follows the holder's records although the same was released.",
    "written": "a file that others may read follows the holder's records although the same was released.",
    "ended": "whether and how the run comes to its end follows the holder's records.",
}


class Shown:
    """What is seen of one run. Use `looking` around it, then say how it `ended`."""

    def __init__(self) -> None:
        self._out, self._err = io.StringIO(), io.StringIO()
        self._pieces: Pieces = {("ended",): "it did not"}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While the run lasts; handlers of the root logger that the run sets up are gone afterwards."""
        root = logging.getLogger()
        handlers, level = root.handlers[:], root.level
        with _ONE, redirect_stdout(self._out), redirect_stderr(self._err), warnings.catch_warnings():
            warnings.showwarning = _warn  # type: ignore[assignment]
            root.handlers[:] = [logging.StreamHandler()] if handlers else []
            try:
                yield
            finally:
                root.handlers[:] = handlers
                root.setLevel(level)

    @property
    def ended(self) -> bool:
        """Whether the run came to its own end."""
        return self._pieces["ended",] != "stopped"

    @property
    def reached_its_end(self) -> bool:
        """Whether no error ended the run, be it stopped."""
        return self._pieces["ended",] in ("returned", "stopped")

    def stopped(self) -> None:
        """The run was stopped by whoever looks on."""
        self._pieces = {("ended",): "stopped"}

    def failed(self, error: BaseException) -> None:
        """The run ended by an error, or by leaving."""
        self._pieces = {("ended",): f"{type(error).__name__}: {error}"}

    def returned(self, value: object) -> None:
        """The run ended and gave something back; where that is a `Path`, what others may read there is looked at now."""
        self._pieces = {("ended",): "returned", **pieces(value, "returned")}
        for number, path in enumerate(value if isinstance(value, list | tuple) else [value]):
            if isinstance(path, Path):
                self._pieces |= {("written", str(number), name): content for name, content in _read(path)}

    def tell(self) -> None:
        """Let the person at the terminal see what the first run said."""
        sys.stderr.write(self._err.getvalue())

    def pieces(self) -> Pieces:
        """All that was seen, piece by piece, by its kind and place."""
        lines = [line for stream in (self._out, self._err) for line in ["a stream:", *stream.getvalue().splitlines()]]
        printed: Pieces = {("printed", str(place)): line for place, line in enumerate(lines)}
        return {**self._pieces, **printed, ("printed", "lines"): str(len(lines))}

    def unlike(self, other: Shown) -> set[tuple[str, ...]]:
        """The pieces in which two runs differ; of what is printed, if the lines are not as many, all."""
        one, two = self.pieces(), other.pieces()
        found = {piece for piece in {**one, **two} if one.get(piece) != two.get(piece)}
        if ("printed", "lines") in found:
            found |= {piece for piece in {**one, **two} if piece[0] == "printed"}
        return found


def compared(first: Shown, second: Shown, *, control: Callable[[], Shown], again: Callable[[], Shown]) -> tuple[list[str], set[str]]:
    """What follows a holder in what is seen of two runs, and what could not be compared, as it is not the same from run to run.

    `control` is the first run once more, `again` the second; neither is asked for where both are alike.
    """
    unlike = first.unlike(second)
    follows = set(unlike)
    for _ in range(_TIMES):
        if follows:
            follows -= first.unlike(control())
        if follows:
            follows -= second.unlike(again())
    kinds = {piece[0] for piece in follows}
    if "ended" in kinds:
        kinds -= {"returned", "written"}  # of a run that ended otherwise
    faults = [sentence for kind, sentence in KINDS.items() if kind in kinds]
    return faults, {f"what is {piece[0]}, as it differs from run to run" for piece in unlike - follows if piece[0] not in kinds}


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """The usual generators begin at a seed, and are put back where they were."""
    with _ONE, forked(seed):
        yield


def _warn(message: Warning | str, category: type[Warning], *where: Any) -> None:
    sys.stderr.write(f"{category.__name__}: {message}\n")


def _read(path: Path) -> Iterator[tuple[str, str]]:
    """Names of all files at a path, and content of those that others may read."""
    for file in [path] if path.is_file() else sorted(path.rglob("*")):
        if file.is_file():
            inner = [folder for folder in file.parents if path in folder.parents]
            is_open = file.stat().st_mode & _OTHERS and all(folder.stat().st_mode & _ENTER for folder in inner)
            content = blake2b(file.read_bytes(), digest_size=16).hexdigest() if is_open else "for its owner alone"
            yield os.path.relpath(file, path), content
