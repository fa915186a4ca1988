"""Which files code opens to read: what stands in them may follow from records that nobody replaced.

Python tells of every file that it opens, and of every server (its audit events). Files that the same code has made before, or has given
their name, are its own, and those of Python, of packages and of the system hold no records; nor does matplotlib's list of fonts.

Breaks if: code in C opens it, or a program that is started.
"""

from __future__ import annotations

import functools
import os
import socket
import sys
import sysconfig
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CODE = (".py", ".pyc")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom", "/dev/tty")


class Opened:
    """What is opened while somebody listens."""

    def __init__(self) -> None:
        self._written = set[str]()
        self.read = set[str]()
        """Files that were read and not made before, and servers."""

    def note(self, path: str, mode: object, flags: object) -> None:
        """A file is opened."""
        if not os.path.exists(path) or _is_emptied(mode, flags):
            self._written.add(path)
        elif not _is_only_written(mode, flags) and path not in self._written and not _is_elsewhere(path) and not os.path.isdir(path):
            self.read.add(path)

    def renamed(self, path: str, now: str) -> None:
        """A file has another name."""
        if path in self._written:
            self._written.add(now)


_LISTENING: list[Opened] = []


@contextmanager
def listening() -> Iterator[Opened]:
    """Files that are opened inside, by whichever thread of this process."""
    _begin()
    found = Opened()
    _LISTENING.append(found)
    try:
        yield found
    finally:
        _LISTENING.remove(found)


@functools.cache
def _begin() -> None:
    """Ask to be told; that cannot be taken back, so it is done once and is silent where nobody listens."""
    sys.addaudithook(_told)


def _told(event: str, given: tuple[object, ...]) -> None:
    if not _LISTENING:
        return
    if event == "socket.connect":
        if getattr(given[0], "family", None) in (socket.AF_INET, socket.AF_INET6):
            for found in _LISTENING:
                found.read.add(str(given[1]))
    elif event in ("open", "sqlite3.connect", "os.rename") and isinstance(given[0], str | bytes | os.PathLike):
        path = os.path.abspath(os.fsdecode(given[0]))
        for found in _LISTENING:
            if event == "os.rename":
                found.renamed(path, os.path.abspath(os.fsdecode(given[1])))  # type: ignore[arg-type]
            else:
                found.note(path, *(given[1:3] if event == "open" else ("r", 0)))


def _is_emptied(mode: object, flags: object) -> bool:
    return "w" in mode if isinstance(mode, str) else isinstance(flags, int) and bool(flags & os.O_TRUNC)


def _is_only_written(mode: object, flags: object) -> bool:
    """Whether nothing of what stands in a file can be read this time."""
    if isinstance(mode, str):
        return "a" in mode and "+" not in mode
    return isinstance(flags, int) and flags & (os.O_WRONLY | os.O_RDWR) == os.O_WRONLY


def _is_elsewhere(path: str) -> bool:
    """Whether this is where nobody's records are."""
    return path.endswith(_CODE) or path in _DEVICES or path.startswith((*_elsewhere(), *_fonts()))


@functools.cache
def _elsewhere() -> tuple[str, ...]:
    own = {str(Path(__file__).parent.parent), "/proc", "/sys", "/etc", "/usr/share", "/usr/lib"}
    own |= {sysconfig.get_path(kind) for kind in ("stdlib", "platstdlib", "purelib", "platlib")}
    return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in own)


def _fonts() -> tuple[str, ...]:
    """Where matplotlib keeps its list of fonts, once it is imported."""
    folder = getattr(sys.modules.get("matplotlib"), "get_cachedir", str)()
    return (f"{os.path.abspath(folder)}{os.sep}",) if folder else ()
