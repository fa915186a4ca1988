"""Every file that is written here, whole or not at all: those that everyone may read, and those for their owner alone; and folders in
which one process works at a time.

Guarantee: what stood at a path before stays there, or the new content does, whoever kills the process; nothing but a regular file is ever
    opened, changed or replaced, and no link is followed, so neither a device nor the file behind a link changes its content or its mode.
Proof: content goes to a new file beside the place, on the disk, and then to its name by one rename (or one link, where nothing may stand).
    A rename replaces a name, and never writes into what stands there.
Breaks if: the file system does not rename atomically.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from sartor.errors import SartorError

_MODE = 0o600
_OTHERS = 0o077  # rights of everybody but the owner
_PUBLIC = 0o666  # less what the umask takes


def write_public(path: str | os.PathLike[str], content: str | bytes) -> None:
    """Put a file that everyone may read in the place of another at once, with the mode that was there; on the disk before this returns."""
    _write(Path(path), content.encode() if isinstance(content, str) else content, mode=None, new=False)


def write_private(path: str | os.PathLike[str], content: bytes, *, new: bool = False) -> None:
    """The same for a file that its owner alone may read, whatever mode was there; or only where none is (`new`)."""
    _write(Path(path), content, mode=_MODE, new=new)


def check_place(path: str | os.PathLike[str]) -> None:
    """Refuse at once what could not be written in the end: a device, a link, a folder, or a place in none."""
    place = Path(path)
    _kept_mode(place, None)
    if not os.access(place.parent, os.W_OK):
        raise SartorError(f"{path} cannot be written: its folder does not exist or is not writable.")


def same(one: str | os.PathLike[str], other: str | os.PathLike[str]) -> bool:
    """Whether two paths name one file, or one folder."""
    return os.path.exists(one) and os.path.exists(other) and os.path.samefile(one, other)


def _write(path: Path, content: bytes, *, mode: int | None, new: bool) -> None:
    kept = mode if new else _kept_mode(path, mode)
    beside = path.parent / f".{path.name}.{secrets.token_hex(8)}"
    try:
        _fill(beside, content, _PUBLIC if kept is None else _MODE, kept)
        if new:
            _link(beside, path, content)
        else:
            os.replace(beside, path)
    except FileExistsError:
        raise SartorError(f"{path} already exists and is not overwritten.") from None
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
    finally:
        with suppress(OSError):
            beside.unlink()
    sync_folder(path.parent)


def _fill(path: Path, content: bytes, mode: int, kept: int | None = None) -> None:
    """A new file with this content, on the disk; `kept` is the mode that it gets whatever the umask takes."""
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode), "wb") as file:
        if kept is not None:
            os.fchmod(file.fileno(), kept)
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _kept_mode(path: Path, mode: int | None) -> int | None:
    """The mode given, otherwise that of the file which is replaced, if there is one; refuses what is not a file, or cannot be written."""
    try:
        there = os.lstat(path).st_mode
        if stat.S_ISREG(there) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError:
        return mode
    except OSError as error:
        raise SartorError(f"{path} cannot be written: {error.strerror}.") from None
    if not stat.S_ISREG(there):
        what = "a link" if stat.S_ISLNK(there) else "a folder" if stat.S_ISDIR(there) else "a device, a pipe or a socket"
        raise SartorError(f"{path} is {what} and not a file: give the path of a file (to print instead of writing, use --json).")
    return mode if mode is not None else stat.S_IMODE(there) & 0o777


def lead_nowhere(descriptor: int) -> None:
    """Let whatever is written to an open file from now on be dropped."""
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, descriptor)
    os.close(nowhere)


class Lock:
    """A folder in which nobody else works, until this is closed. Made by `lock`.

    Guarantee: of all processes of one machine at most one holds the lock of a folder, under whatever name or link they came to it, and
        whatever is removed from it. Across machines that share it over a network, as long as its file `lock` is not removed.
    Proof: the lock is on the folder's own inode, which no path leads away from while there is anything in it, and on that of the file,
        where servers of network file systems see it. Both are compared with what their paths name once they are held, and in `check`.
    Breaks if: the folder is copied; or the file is removed and another machine comes in between a `check` and what was checked for. So
        what is charged is written in a way that fails if another has charged meanwhile, or is read again and compared.
    """

    def __init__(self, folder: Path, taken: str | None) -> None:
        self._descriptors: list[int] = []
        self.folder, self._file, self._process = folder, folder / "lock", os.getpid()
        try:
            for path, how in ((folder, os.O_RDONLY | os.O_DIRECTORY), (self._file, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)):
                self._descriptors.append(os.open(path, how, _MODE))
                fcntl.flock(self._descriptors[-1], fcntl.LOCK_EX if taken is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self.close()
            raise SartorError(taken or "") from None
        except OSError as error:
            self.close()
            raise SartorError(_refusal(folder, "locked", error)) from None

    @property
    def ours(self) -> bool:
        """Whether the paths still name what this process has locked."""
        if os.getpid() != self._process or not self._descriptors:
            return False
        held = [os.fstat(descriptor) for descriptor in self._descriptors]
        try:
            return all(map(os.path.samestat, held, (os.stat(self.folder), os.lstat(self._file))))
        except OSError:
            return False

    def check(self) -> None:
        """Raise an error unless nobody else can have come in: to be called before every charge."""
        if not self.ours:
            raise SartorError(
                f"{self.folder} was moved or closed, or its lock was removed, so another process may work in it: nothing more is "
                "done here; start again."
            )

    def close(self) -> None:
        """Let others in. A process that was forked from the holder closes its copies alone."""
        while self._descriptors:
            descriptor = self._descriptors.pop()
            if os.getpid() == self._process:
                fcntl.flock(descriptor, fcntl.LOCK_UN)
            os.close(descriptor)

    def __del__(self) -> None:
        self.close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def lock(folder: Path, *, taken: str | None = None) -> Lock:
    """Lock a folder; wait for it, or refuse with the sentence `taken` where another has it."""
    while True:
        held = Lock(folder, taken)
        if held.ours:  # else it was moved or removed while this waited, and the path names another
            return held
        held.close()


def _link(name: Path, path: Path, content: bytes) -> None:
    """Give the file its name if that is free; where the file system has no links, write it there."""
    try:
        os.link(name, path)
    except FileExistsError:
        raise
    except OSError:
        _fill(path, content, _MODE)


def sync_folder(folder: Path) -> None:
    """Make sure that names in a folder are on the disk."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:
        raise SartorError(f"{folder} cannot be synced to disk: {error.strerror or error}.") from None


def close_folder(folder: Path) -> None:
    """Make a folder its owner's alone, however open it was left; refuse where that cannot be."""
    try:
        mode = os.stat(folder).st_mode
        if mode & stat.S_ISVTX:
            raise SartorError(f"{folder} is a shared folder; give a folder that is used for nothing else.")
        if mode & _OTHERS:
            os.chmod(folder, stat.S_IMODE(mode) & ~_OTHERS)
    except OSError as error:
        raise SartorError(f"{folder} cannot be closed to others: {error.strerror}; give a folder of your own.") from None


def read_private(path: Path) -> bytes:
    """The content of a file that is for its owner alone, and is made so where it was left open; a link in its place is refused."""
    descriptor = _opened(path, os.O_RDONLY)
    with os.fdopen(descriptor, "rb") as file:
        return file.read()


@contextmanager
def holding(path: Path) -> Iterator[bytes]:
    """The content of a private file, which no other process that holds it in this way can replace meanwhile.

    Guarantee: between two processes that each read the file so, and replace it before they let it go, one sees what the other wrote.
    Proof: the lock is on the file's own inode, and that inode is found under the path after it was locked; whoever else would replace the
        file must hold the same inode first.
    Breaks if: somebody replaces the file without holding it, within the moment that it takes.
    """
    descriptor = _opened(path)
    with os.fdopen(descriptor, "r+b") as file:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not os.path.samestat(os.fstat(descriptor), os.lstat(path)):
                raise BlockingIOError
        except BlockingIOError:
            raise SartorError(f"{path} is being written by another process; try again when it has ended.") from None
        except OSError as error:
            raise SartorError(f"{path} cannot be read: {error.strerror}.") from None
        yield file.read()


def _refusal(path: Path, what: str, error: OSError) -> str:
    """Why something cannot be held by this process; what can be read but not written is whole, and no broken one."""
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS) and os.access(path, os.R_OK):
        return f"{path} is not writable ({error.strerror}): make it and all that is in it writable, and try again."
    return f"{path} cannot be {what}: {error.strerror}."


def _opened(path: Path, how: int = os.O_RDWR) -> int:
    """A private file itself, to be read or locked: never what a link leads to."""
    try:
        descriptor = os.open(path, how | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise SartorError(f"{path} is a symbolic link; give the file itself.") from None
        raise SartorError(_refusal(path, "read", error)) from None
    try:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            raise SartorError(f"{path} is not a regular file.")
        if mode & _OTHERS:
            os.fchmod(descriptor, _MODE)
    except OSError as error:
        os.close(descriptor)
        raise SartorError(f"{path} cannot be closed to others: {error.strerror}.") from None
    except SartorError:
        os.close(descriptor)
        raise
    return descriptor
