"""What anybody sees of a run beside its releases: what it prints, logs and warns of, what it returns, files that others may read.

Two runs are compared piece by piece: lines, fields, files. Some pieces differ between two runs on the same data, as clocks do; runs with
nobody zeroed tell which, and these say nothing of anybody. Of the others it is asked again, several times, whether they really follow the
holder: a clock that is told in whole seconds is seldom the same all over.

Guarantee: a piece that follows the holder in every run and nothing else is named.
Breaks if: what is shown is an object that keeps what it is to itself; it then counts by its text (`repr`), if that.
"""

from __future__ import annotations

import functools
import io
import json
import logging
import os
import sys
import tempfile
import threading
import types
import warnings
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import fields, is_dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, ParamSpec, TypeVar
from unittest import mock

import numpy as np
import torch
from torch import nn

from sartor.individual.readings import Reading
from sartor.sgd.loader import PrivateLoader
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.training import Result, Sensitive

_OTHERS = 0o044  # who may read a file beside its owner
_ENTER = 0o011
_DEEP, _MOST = 20, 100_000  # levels of what is returned, and parts
_TIMES = 3  # how often it is asked again
_OWN = __name__.partition(".")[0]
_OF_MODULES = frozenset(vars(nn.Module()))
_CODE = (type, types.FunctionType, types.BuiltinFunctionType, types.MethodType, functools.partial)
_STREAMS = (1, 2)  # of the process, to which programs and code that knows no `sys.stdout` write
_ONE = threading.RLock()
"""Streams and random numbers are those of the whole process, so one run is looked at at a time."""

KINDS = {
    "printed": "what is printed follows the holder's records.",
    "logged": "what is logged follows the holder's records.",
    "warned": "what is warned of follows the holder's records.",
    "returned": "what is returned follows the holder's records although the same was released.",
    "written": "a file that others may read follows the holder's records although the same was released.",
    "ended": "whether and how the run comes to its end follows the holder's records.",
}

Pieces = dict[tuple[str, ...], str]
Given = ParamSpec("Given")
Found = TypeVar("Found")


def alone(look: Callable[Given, Found]) -> Callable[Given, Found]:
    """One after the other, whichever threads call it."""

    @functools.wraps(look)
    def looking(*given: Given.args, **more: Given.kwargs) -> Found:
        with _ONE:
            return look(*given, **more)

    return looking


class Shown:
    """What is seen of one run. Use `looking` around it, then say how it `ended`."""

    def __init__(self) -> None:
        self._out, self._err = _stream(), _stream()
        self._beneath = _stream(), _stream()
        weakref.finalize(self, lambda *streams: [stream.close() for stream in streams], self._out, self._err, *self._beneath)
        self._logged: list[str] = []
        self._warned: list[str] = []
        self._pieces: Pieces = {("ended",): "it did not"}
        self._kept: Pieces = {}

    @contextmanager
    def looking(self) -> Iterator[None]:
        """While the run lasts."""
        root, before = logging.getLogger(), threading.enumerate()
        handlers, level = root.handlers[:], root.level
        elsewhere = {thread.ident for thread in before if thread is not threading.current_thread()}
        right = logging.Logger.callHandlers

        def heard(logger: logging.Logger, record: logging.LogRecord) -> None:
            if record.thread not in elsewhere:
                self._logged.append(f"{record.levelname} {record.name}: {record.getMessage()}")
            right(logger, record)

        try:
            with _ONE, _below(self._beneath), redirect_stdout(self._out), redirect_stderr(self._err), warnings.catch_warnings():
                warnings.showwarning = self._warn  # type: ignore[assignment]
                with mock.patch.object(logging.Logger, "callHandlers", heard):
                    yield
        finally:
            root.handlers[:] = handlers  # whatever the run set up would write where the next one does not look
            root.setLevel(level)

    def _warn(self, message: Warning | str, category: type[Warning], *where: Any) -> None:
        self._warned.append(f"{category.__name__}: {message}")

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
        """The run ended and gave something back; where that is a path, what others may read there is looked at now."""
        self._pieces = {("ended",): "returned"}
        _Parts(self._pieces).take(value, ("returned",), _DEEP)

    def keeps(self, model: nn.Module) -> None:
        """What is trained keeps something beside parameters and buffers, which whoever releases it as a whole would release too."""
        parts = {name: value for name, value in _of_module(model).items() if name.endswith(_BESIDE)}
        _Parts(self._kept).take(parts, (str(len(self._kept)),), _DEEP)

    def keeps_otherwise(self, other: Shown) -> bool:
        """Whether what is kept so differs in another run."""
        return self._kept != other._kept

    def tell(self) -> None:
        """Let the person at the terminal see what the first run said."""
        for stream in (self._err, self._beneath[1]):
            sys.stderr.write(_read_back(stream))
        for line in self._warned:
            sys.stderr.write(f"{line}\n")

    def pieces(self) -> Pieces:
        """All that was seen, piece by piece, by its kind and place."""
        found = dict(self._pieces)
        printed = [line for stream in (self._out, self._err, *self._beneath) for line in ["a stream:", *_read_back(stream).splitlines()]]
        for kind, said in {"printed": printed, "logged": self._logged, "warned": self._warned}.items():
            found |= {(kind, str(place)): line for place, line in enumerate(said)}
            found[kind, "lines"] = str(len(said))
        return found

    def unlike(self, other: Shown) -> set[tuple[str, ...]]:
        """The pieces in which two runs differ; of a kind whose lines are not as many, all."""
        one, two = self.pieces(), other.pieces()
        found = {piece for piece in {**one, **two} if one.get(piece) != two.get(piece)}
        for kind in ("printed", "logged", "warned"):
            if (kind, "lines") in found:
                found |= {piece for piece in {**one, **two} if piece[0] == kind}
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
def _below(instead: tuple[io.TextIOWrapper, io.TextIOWrapper]) -> Iterator[None]:
    """What is written to the process's own streams, as programs do that it starts, goes elsewhere; nowhere, where it has none."""
    _flush()
    before: list[tuple[int, int]] = []
    with suppress(OSError):
        for number, other in zip(_STREAMS, instead, strict=True):
            before.append((number, os.dup(number)))
            os.dup2(other.fileno(), number)
    try:
        yield
    finally:
        _flush()
        for number, known in before:
            os.dup2(known, number)
            os.close(known)


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        with suppress(Exception):  # whatever a stream makes of being asked
            stream.flush()


def _stream() -> io.TextIOWrapper:
    """What can be written to like a terminal's stream, by whatever way, and has no name that anybody could find."""
    return io.TextIOWrapper(tempfile.TemporaryFile(), encoding="utf-8", errors="replace", write_through=True)


def _read_back(stream: io.TextIOWrapper) -> str:
    stream.flush()
    size = os.fstat(stream.fileno()).st_size
    return os.pread(stream.fileno(), size, 0).decode(errors="replace")


class _Parts:
    """All that can be compared in a value, each under its place."""

    def __init__(self, found: Pieces) -> None:
        self._found, self._met = found, dict[int, Any]()

    def take(self, value: Any, place: tuple[str, ...], deep: int) -> None:
        """Note a value and what it is made of; of one that was met before, that it was."""
        if isinstance(value, torch.Tensor | np.ndarray | np.generic):
            self._found[place] = _fingerprint(value)
        elif isinstance(value, Reading | Sensitive):  # by their type nobody is shown these
            self._found[place] = type(value).__name__
        elif (path := _path(value)) is not None:
            self._found[place] = os.fspath(path)
            _read(path, place, self._found)
        elif value is None or isinstance(value, str | bytes | int | float | complex):
            self._found[place] = repr(value)
        elif id(value) in self._met or not deep or len(self._met) > _MOST:
            self._found[place] = type(value).__name__
        else:
            self._met[id(value)] = value
            self._take_parts(value, place, deep - 1)

    def _take_parts(self, value: Any, place: tuple[str, ...], deep: int) -> None:
        document = _document(value)
        if document is not None:
            self.take(document, place, deep)
        elif isinstance(value, PrivateOptimizer):  # its run is the library's own affair
            self._take_named({"account": value.account(), "optimizer": value.inner.state_dict()}, place, deep)
        elif isinstance(value, PrivateLoader):
            self._found[place] = type(value).__name__
        elif isinstance(value, functools.partial):
            self._take_named({"function": value.func, "given": value.args, "by name": value.keywords}, place, deep)
        elif isinstance(value, weakref.ref):  # as recurrent layers have to their parameters
            self.take(value(), place, deep)
        elif isinstance(value, nn.Module):
            self._take_named(_of_module(value), place, deep)
        elif isinstance(value, Mapping):
            self._take_named({str(name): part for name, part in value.items()} | _beside(value), place, deep)
        elif isinstance(value, set | frozenset):
            self._found[place] = repr(sorted(map(repr, value)))
        elif isinstance(value, Collection):
            self._take_named({str(number): part for number, part in enumerate(value)} | _beside(value), place, deep)
        else:
            held = {field.name: getattr(value, field.name) for field in fields(value)} if is_dataclass(value) else _held(value)
            if isinstance(value, Result):
                del held["seconds"]  # a clock, which is never the same
            self._take_named(held, place, deep)
            if not held:
                self._found[place] = repr(value)

    def _take_named(self, parts: Mapping[str, Any], place: tuple[str, ...], deep: int) -> None:
        for name, part in parts.items():
            self.take(part, (*place, name), deep)
        self._found[(*place, _NAMES)] = json.dumps(list(parts))


def _beside(value: Any) -> dict[str, Any]:
    """What a collection of a class of its own has beside its items."""
    return {f"{name}{_BESIDE}": part for name, part in vars(value).items()} if hasattr(value, "__dict__") else {}


def _document(value: Any) -> Any:
    """What an object says of itself, if it does without being asked for more."""
    if isinstance(value, type) or not hasattr(value, "to_json"):
        return None
    try:
        return value.to_json()
    except Exception:  # whatever another class's method of this name asks for
        return None


def _held(value: Any) -> dict[str, Any]:
    named = dict(getattr(value, "__dict__", {}))
    slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
    return {**named, **{name: getattr(value, name) for name in slots if hasattr(value, name)}}


_BESIDE, _NAMES = " beside", "\0names"
_HOOKS = tuple(name for name in sorted(_OF_MODULES) if name.endswith("_hooks"))


def _of_module(model: nn.Module) -> dict[str, Any]:
    """Parameters, buffers, gradients, and what modules and their hooks keep beside them: all that whoever has the model has."""
    found: dict[str, Any] = dict([*model.named_parameters(), *model.named_buffers()])
    found |= {f"gradient of {name}": value.grad for name, value in model.named_parameters() if value.grad is not None}
    for name, module in model.named_modules():
        own = {key: part for key, part in vars(module).items() if key not in _OF_MODULES}
        hooks = {f"{kind}.{place}": hook for kind in _HOOKS for place, hook in enumerate((getattr(module, kind) or {}).values())}
        for key, part in {**own, **hooks}.items():
            if not isinstance(part, (nn.Module, *_CODE)) and type(part).__module__.partition(".")[0] != _OWN:
                found[f"{name}.{key}{_BESIDE}"] = part
    return found


def _fingerprint(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        if value.layout is not torch.strided:
            value = value.to_dense()
        try:
            content = value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        except (RuntimeError, NotImplementedError, TypeError):  # whatever a class of tensors does not know
            content = repr(value).encode()
    else:
        content = repr(value.tolist()).encode() if value.dtype.hasobject else np.ascontiguousarray(value).tobytes()
    return f"{value.dtype} {tuple(value.shape)} {blake2b(content, digest_size=16).hexdigest()}"


def _path(value: Any) -> Path | None:
    """The file or folder that something names, or that it is open on; a text without a separator names files alone."""
    name = getattr(value, "name", None) if isinstance(value, io.IOBase) else value
    if not isinstance(name, str | bytes | os.PathLike):
        return None
    try:
        path = Path(os.fsdecode(name))
        named = isinstance(name, os.PathLike) or os.sep in str(path) or path.is_file()
        return path if named and (path.exists() or isinstance(name, os.PathLike)) else None
    except (ValueError, OSError):
        return None


def _read(path: Path, place: tuple[str, ...], found: Pieces) -> None:
    """Names of all files of a run, and content of those that others may read."""
    for folder, file in _files(path):
        name = str(file.relative_to(path)) if file != path else file.name
        mode = file.stat().st_mode
        is_open = mode & _OTHERS and all(one.stat().st_mode & _ENTER for one in (folder, *folder.parents) if path in one.parents)
        found["written", *place, name] = blake2b(file.read_bytes(), digest_size=16).hexdigest() if is_open else "for its owner alone"


def _files(path: Path) -> Iterator[tuple[Path, Path]]:
    """Every file and its folder; folders that are linked are entered once."""
    if path.is_file():
        yield path.parent, path
        return
    met = set[str]()
    for folder, inner, names in os.walk(path, followlinks=True):
        real = os.path.realpath(folder)
        if real in met:
            inner.clear()
            continue
        met.add(real)
        for name in sorted(names):
            file = Path(folder, name)
            if file.is_file():
                yield Path(folder), file
