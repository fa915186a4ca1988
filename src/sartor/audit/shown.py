"""What anybody sees of a run beside its releases: what it prints, logs and warns of, what it returns, files that others may read.

Two runs are compared piece by piece: lines, fields, files. Some pieces differ between two runs on the same data, as clocks do; runs with
nobody zeroed tell which, and these say nothing of anybody. Of the others it is asked again, several times, whether they really follow the
holder: a clock that is told in whole seconds is seldom the same all over.

Guarantee: a piece that follows the holder in every run and nothing else is named.
Breaks if: it is written beneath Python's streams, as programs do that are started; by a logger's handler that is bound to a stream of its
    own; or to a file whose path is not returned.
"""

from __future__ import annotations

import io
import logging
import os
import random
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch

from sartor.audit.fingerprint import Pieces, pieces

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
    with _ONE, torch.random.fork_rng(devices=[]):
        before, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
        try:
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
        finally:
            random.setstate(before)
            np.random.set_state(numbers)  # noqa: NPY002


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
