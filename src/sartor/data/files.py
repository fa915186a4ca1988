"""Where files lie and how they are opened: the layouts in which a data set is handed around, and one clear error when none is there."""

from __future__ import annotations

import contextlib
import gzip
import lzma
import os
import pickle
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

from sartor.errors import SartorError

Folder = str | os.PathLike[str] | None

_BROKEN = (
    OSError,
    EOFError,
    ValueError,
    KeyError,
    IndexError,
    TypeError,
    AttributeError,
    lzma.LZMAError,
    zlib.error,
    pickle.UnpicklingError,
)


class Layout(NamedTuple):
    """One way in which a data set is stored: folders that may hold it, and its files, each under any of several names."""

    name: str
    places: tuple[str, ...]
    files: tuple[tuple[str, ...], ...]


class Found(NamedTuple):
    """The layout that was found, its folder, and its files in the order of the layout."""

    layout: str
    folder: Path
    files: tuple[Path, ...]


def root(folder: Folder) -> Path:
    """The folder given, otherwise the one that the environment variable SARTOR_DATA names, otherwise `data` in the working folder."""
    return Path(folder if folder is not None else os.environ.get("SARTOR_DATA") or "data")


def find(dataset: str, folder: Folder, layouts: Sequence[Layout]) -> Found:
    """The first layout that is complete under the folder."""
    base = root(folder)
    if not base.is_dir():
        raise SartorError(
            f"{dataset} cannot be read: there is no folder {base}; say where it is with --data (folder= in Python) or in SARTOR_DATA."
        )
    for layout in layouts:
        for place in layout.places:
            paths = [next((base / place / name for name in names if (base / place / name).exists()), None) for names in layout.files]
            if all(path is not None for path in paths):
                return Found(layout.name, base / place, tuple(path for path in paths if path is not None))
    wanted = "; or ".join(f"{', '.join(names[0] for names in layout.files)} (in {' or '.join(layout.places)})" for layout in layouts)
    raise SartorError(f"{dataset} was not found under {base}: looked for {wanted}.")


def opened(path: Path) -> IO[bytes]:
    """A file for reading bytes; .gz and .xz are decompressed on the way."""
    if path.suffix == ".gz":
        return cast("IO[bytes]", gzip.open(path))
    if path.suffix == ".xz":
        return lzma.open(path)
    return path.open("rb")


@contextlib.contextmanager
def reading(path: Path, kind: str) -> Iterator[None]:
    """Turn whatever goes wrong with a broken file into one sentence without its contents."""
    try:
        yield
    except SartorError:
        raise
    except _BROKEN as error:
        reason = getattr(error, "strerror", None) or type(error).__name__
        raise SartorError(f"{path} cannot be read as {kind}: {reason}.") from None


def lines(path: Path) -> list[str]:
    """The lines of a UTF-8 text, split at line feeds alone, without empty ones."""
    with reading(path, "UTF-8 text"), opened(path) as file:
        return [line for line in file.read().decode("utf-8").split("\n") if line.strip()]
