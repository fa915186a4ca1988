"""Which files code opens to read: what stands in them may follow from records that nobody replaced.

Python tells of every file that it opens (its audit events). Files that the same code has written before, or has given their name, are its
own, and those of Python, of packages and of the system hold no records; nor does matplotlib's list of fonts.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT
_CODE = (".py", ".pyc", ".so", ".pth")


class Opened:
    """What is opened while somebody listens."""

    def __init__(self) -> None:
        self._written = set[str]()
        self.read = set[str]()
        """Files that were read and not written before."""

    def note(self, path: str, *, writes: bool) -> None:
        """A file was opened."""
        if writes:
            self._written.add(path)
        elif path not in self._written and not (path.endswith(_CODE) or path.startswith((*_elsewhere(), *_fonts())) or os.path.isdir(path)):
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
    if not _LISTENING or event not in ("open", "os.rename") or not isinstance(given[0], str | bytes | os.PathLike):
        return
    if event == "os.rename":
        before, now = (os.path.abspath(os.fsdecode(name)) for name in given[:2])  # type: ignore[arg-type]
        for found in _LISTENING:
            found.renamed(before, now)
        return
    path, mode, flags = os.path.abspath(os.fsdecode(given[0])), given[1], given[2]
    writes = any(letter in mode for letter in "wax+") if isinstance(mode, str) else isinstance(flags, int) and bool(flags & _WRITING)
    for found in _LISTENING:
        found.note(path, writes=writes)


@functools.cache
def _elsewhere() -> tuple[str, ...]:
    """Where nobody's records are."""
    own = {sys.prefix, sys.base_prefix, str(Path(__file__).parent.parent), "/proc", "/sys", "/dev", "/etc", "/usr/share", "/usr/lib"}
    return tuple(f"{os.path.abspath(folder)}{os.sep}" for folder in own)


def _fonts() -> tuple[str, ...]:
    """Where matplotlib keeps its list of fonts, once it is imported."""
    folder = getattr(sys.modules.get("matplotlib"), "get_cachedir", str)()
    return (f"{os.path.abspath(folder)}{os.sep}",) if folder else ()
