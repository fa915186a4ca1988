"""Files that only their owner can read, written whole or not at all."""

from __future__ import annotations

import fcntl
import os
import tempfile
from pathlib import Path

from sartor.errors import SartorError

_MODE = 0o600


def write_private(path: Path, content: bytes, *, new: bool = False) -> None:
    """Put a file in the place of another at once, or only where none is (`new`); on the disk before this returns."""
    try:
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), _MODE)
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        if new:
            _link(name, path, content)
        else:
            os.replace(name, path)
    except FileExistsError:
        raise SartorError(f"{path} exists, and is not overwritten.") from None
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        Path(name).unlink(missing_ok=True)
    sync_folder(path.parent)


def lock(path: Path, *, taken: str | None = None) -> int:
    """Hold a lock until the descriptor that this gives is closed; wait for it, or refuse with the sentence `taken` where another has it."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, _MODE)
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if taken is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise SartorError(taken or "") from None
    return descriptor


def _link(name: str, path: Path, content: bytes) -> None:
    """Give the file its name if that is free; where the file system has no links, write it there."""
    try:
        os.link(name, path)
    except FileExistsError:
        raise
    except OSError:
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _MODE), "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SartorError(f"{folder} cannot be brought to the disk: {error.strerror or error}.") from None
