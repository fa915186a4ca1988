"""The journal of a run: how far it is charged, on the disk before anything of it is drawn, and the checkpoint that it goes on from.

    journal.json           how far the run is charged, by which start of it, and which checkpoint stands
    00000007.safetensors   that checkpoint: model, optimizer, position; its name counts the writings of the journal
    lock                   held by the process that works here

Guarantee (charge ahead, never repeat): every step that was ever drawn is charged before its coins, published or not, and is drawn once.
Proof: `write` has "charged up to step c" on the disk before it returns, and only then may a step below c be drawn. It is exclusive: the
    folder is locked, and the journal that is replaced must be, byte for byte, the one that this process read or wrote last. Whoever goes
    on begins at c, with keys of its own, so no index is drawn twice and no noise is used twice. All steps, the lost ones included, are one
    adaptive composition with independent coins: what trained them may have been other code, and any rule may say where a start ends.
    The checkpoint is on the disk under a name of its own before the journal names it, so a kill leaves this one or the one before.
Breaks if: the folder is copied or put back as a whole: k copies that go on are k runs of the same steps, and epsilon grows like the root
    of k. A single file that is put back is noticed: a journal names a checkpoint that is there no longer. Crashes that follow from data
    without noise tell about one bit each, so restarts after a crash are counted and limited.
"""

from __future__ import annotations

import gc
import json
import os
import re
import secrets
import shutil
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from sartor.errors import SartorError
from sartor.run.files import Lock, close_folder, holding, lock, read_private, sync_folder, write_private
from sartor.run.sealed import digest

_JOURNAL = "journal.json"
_ABOUT = (
    "This file counts what the people of this run have spent. Leave this folder out of backups and snapshots: a copy that is put back "
    "makes two runs of one, and together they spend more than anybody allowed."
)
_CHECKPOINT = re.compile(r"\d{8}\.safetensors")
_OURS = re.compile(r"\d{8}\.safetensors|\.(journal\.json|\d{8}\.safetensors)\.[0-9a-f]+")
_TAKEN = "{} is in use by another run, here or in another process: wait for it, stop it, or close its loader."
_BEGUN = (
    "{} holds a run already: continue it (resume=True) or choose another folder; a second run would spend the same people's budgets again."
)


@dataclass(frozen=True)
class Entry:
    """Where a run stands: `charged` is the step up to which everybody is charged, drawn or not; `lost` counts charged steps not taken."""

    charged: int = 0
    lost: int = 0
    incarnation: int = 0
    restarts: int = 0
    """How often the run was taken up after it had not ended in order."""
    orderly: bool = False
    seeded: bool = False
    """Whether any start of the run drew from a seed, so that it protects nobody."""
    over: bool = False


class Journal:
    """The journal of one run, held by one process; `begin` makes one and `resume` takes one up.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as place:
    ...     journal = Journal.begin(f"{place}/run")
    ...     journal.write(Entry(charged=10), b"model and all else")
    ...     journal.close()
    ...     Journal.resume(f"{place}/run").entry.charged
    10
    """

    def __init__(self, folder: Path, held: Lock) -> None:
        self.folder, self._lock = folder, held
        self.entry = Entry()
        self._number = 0
        self._file, self._digest = "", ""
        self._stands: tuple[bytes, ...] = ()
        """What may stand on the disk: what was written last, and what was being written when a signal came."""

    @classmethod
    def begin(cls, folder: str | os.PathLike[str]) -> Journal:
        """Take a folder for a new run; nothing is charged there yet.

        Raises:
            SartorError: if a run began there, or another process works there.
        """
        root = Path(folder)
        refuse_begun(root)
        try:
            root.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SartorError(f"{root} cannot be made: {error.strerror}.") from None
        close_folder(root)
        journal = cls(root, _locked(root))
        try:
            refuse_begun(root)  # again, as nobody else can begin here now
            journal._sweep()
            written = journal._document(journal.entry)
            write_private(root / _JOURNAL, written)
            journal._stands = (written,)
        except BaseException:
            journal.close()
            raise
        return journal

    @classmethod
    def resume(cls, folder: str | os.PathLike[str]) -> Journal:
        """Take up the run in a folder. Nothing is charged yet.

        Raises:
            SartorError: if there is no run, a file of it is damaged or was put back, or another process works there.
        """
        root = Path(folder)
        if not exists(root):
            raise SartorError(f"{root} holds no checkpoint to resume from.")
        close_folder(root)
        journal = cls(root, _locked(root))
        try:
            journal._read()
            journal._sweep()
        except BaseException:
            journal.close()
            raise
        return journal

    def _read(self) -> None:
        written = read_private(self.folder / _JOURNAL)
        found = _opened(written)
        if found is None:
            raise SartorError(f"the journal in {self.folder} is damaged: restore an intact copy, or start a new run.")
        self.entry, self._number, self._file, self._digest = found
        newest = max((int(path.stem) for path in _checkpoints(self.folder)), default=0)
        if newest > self._number + 1 or not os.path.lexists(self.folder / self._file):
            raise SartorError(
                f"in {self.folder} the journal is not that of the checkpoint: a file was removed or put back; start a new run."
            )
        self._stands = (written,)
        self._sweep()

    @property
    def is_charged(self) -> bool:
        """Whether anything was charged here, or may have been when a signal came."""
        return self._number > 0 or len(self._stands) > 1

    def content(self) -> bytes:
        """The checkpoint that stands."""
        found = read_private(self.folder / self._file)
        if digest([found]) != self._digest:
            raise SartorError(f"the checkpoint in {self.folder} is damaged: restore an intact copy, or start a new run.")
        return found

    def write(self, entry: Entry, checkpoint: bytes | None = None) -> None:
        """Charge: on the disk when this returns, with a new checkpoint or the one that stands.

        Raises:
            SartorError: if the folder is no longer this process's, or anybody else has written.
        """
        self._lock.check()
        place = self.folder / _JOURNAL
        if len(self._stands) > 1:
            self._settle(read_private(place))
        number, file, found = self._number + 1, self._file, self._digest
        if checkpoint is not None:
            file, found = f"{number:08d}.safetensors", digest([checkpoint])
            write_private(self.folder / file, checkpoint)
        written = self._document(entry, number, file, found)
        with holding(place) as there:
            if there not in self._stands:
                raise SartorError(f"{place} was changed by another process or by hand: this run charges nothing more; start again.")
            self._stands = (there, written)
            write_private(place, written)
        self.entry, self._number, self._file, self._digest, self._stands = entry, number, file, found, (written,)
        self._sweep()

    def _settle(self, there: bytes) -> None:
        """Go on from the journal that stands, after a signal had cut a write off."""
        found = _opened(there) if there in self._stands else None
        if found is not None:
            self.entry, self._number, self._file, self._digest = found
            self._stands = (there,)

    def _document(self, entry: Entry, number: int = 0, file: str = "", found: str = "") -> bytes:
        """The journal as it is written, of which there is no second one."""
        document = {"about": _ABOUT, "number": number, "run": asdict(entry), "checkpoint": file, "digest": found}
        return json.dumps({**document, "mark": secrets.token_hex(8)}, indent=1).encode()

    def give_back(self, charged: int, *, lost: int, over: bool, checkpoint: bytes | None) -> None:
        """End in order: charged is what was drawn, and no more."""
        self.write(replace(self.entry, charged=charged, lost=lost, over=over, orderly=True), checkpoint)

    def _sweep(self) -> None:
        """Take away what earlier and broken-off writes left."""
        others = [path for path in self.folder.iterdir() if _OURS.fullmatch(path.name) and path.name != self._file]
        for path in others:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise SartorError(f"an earlier checkpoint in {self.folder} cannot be removed: {error.strerror}; delete it.") from None
        if others:
            sync_folder(self.folder)

    def close(self) -> None:
        """Let others work in the folder; what is charged stays charged."""
        self._lock.close()

    def __reduce__(self) -> Any:
        raise SartorError("a journal cannot be copied or pickled: one process charges for a run.")


def _locked(root: Path) -> Lock:
    try:
        return lock(root, taken=_TAKEN.format(root))
    except SartorError:
        gc.collect()  # a run of this process that nobody refers to any more holds its folder until then
        return lock(root, taken=_TAKEN.format(root))


def _opened(written: bytes) -> tuple[Entry, int, str, str] | None:
    """What a journal says; nothing where it is damaged."""
    try:
        said = json.loads(written)
        entry = Entry(**said["run"])
        whole = all(type(value) is type(getattr(Entry(), name)) for name, value in asdict(entry).items())
        whole = whole and min(entry.charged, entry.lost, entry.incarnation, entry.restarts) >= 0
        number, file, found = int(said["number"]), str(said["checkpoint"]), str(said["digest"])
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return (entry, number, file, found) if whole and (_CHECKPOINT.fullmatch(file) or not entry.charged) else None


def _checkpoints(root: Path) -> list[Path]:
    return [path for path in root.iterdir() if _CHECKPOINT.fullmatch(path.name)]


def exists(folder: str | os.PathLike[str]) -> bool:
    """Whether a folder holds a run that can be taken up."""
    return (Path(folder) / _JOURNAL).is_file() and is_begun(folder)


def is_begun(folder: str | os.PathLike[str]) -> bool:
    """Whether a run was charged here, though its journal may be gone or damaged."""
    root = Path(folder)
    if not root.is_dir():
        return False
    if not os.path.lexists(root / _JOURNAL):
        return bool(_checkpoints(root))
    found = _opened(read_private(root / _JOURNAL))
    return found is None or found[0].charged > 0


def refuse_begun(folder: str | os.PathLike[str]) -> None:
    """Refuse to begin a run where another one began."""
    if is_begun(folder):
        raise SartorError(_BEGUN.format(os.fspath(folder)))


def remove(folder: str | os.PathLike[str]) -> None:
    """Take the journal of a run that is over away for good: first its name, so that whoever is stopped in between leaves none."""
    root = Path(folder)
    try:
        (root / _JOURNAL).unlink(missing_ok=True)
        sync_folder(root)
        shutil.rmtree(root)
    except OSError as error:
        raise SartorError(f"{root} cannot be removed: {error.strerror}; its run is finished: delete it yourself.") from None
    sync_folder(root.parent)
