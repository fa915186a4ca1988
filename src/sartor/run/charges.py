"""The account of a folder on the disk: for each release what it may cost, before anything of it is drawn, and then its answer.

Guarantee: charge ahead, never repeat. What was ever drawn for a folder is charged in it, shown or not; of several processes that go on from
    the same account at once one alone can charge, with or without a lock; and what was answered can be had again.
Proof: `add` writes a new file under the next number, with the most that the release can cost, and returns when it is on the disk; noise is
    drawn after that, under a key of this process alone. The file comes to its name whole and only if no file has that name
    (`write_private(new=True)`). Each proves, by a hash, which one was before it, and `charged` says how many there were: a charge that is
    missing, cut short, changed, or put in the place of another is noticed, and an older file that is put back is the same file. `settle`
    writes the answer, with what it really cost, beside its own charge, once, before anybody sees it. Without an answer the charge stands:
    what a kill or an error cuts off is lost, and paid for, at most one release each time.
Breaks if: the whole folder is copied, or put back to what it was; the last charges are removed and `charged` with them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Generic, TypeVar

from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.run import sealed
from sartor.run.files import Lock, write_private

Stored = Mapping[str, NDArray[Any]]
Charge = TypeVar("Charge")

_CHARGED = "charged"
PART = r"charged|(charge|answer)-\d+"
"""Names of the files, as a pattern: a kill may leave halves beside them."""


class Charges(Generic[Charge]):
    """The charges in a folder, oldest first; `packed` and `unpacked` say how one is arrays in a file, with its answer or without."""

    def __init__(self, folder: Path, secret: bytes, packed: Callable[[Charge], Stored], unpacked: Callable[[Stored], Charge]) -> None:
        self.folder, self._secret, self._packed, self._unpacked = folder, secret, packed, unpacked
        self.made: tuple[Charge, ...] = ()
        self._last = ""

    def read(self, lock: Lock) -> None:
        """Everything that is charged by now, whoever charged it, and counted on the disk when this returns."""
        counted = self._witness()  # before the charges, which may become more meanwhile where no lock keeps others out
        numbers = sorted(int(found[1]) for path in self.folder.iterdir() if (found := re.fullmatch(r"charge-(\d+)", path.name)))
        if numbers != list(range(len(numbers))) or len(numbers) < counted:
            raise SartorError(
                f"{self.folder} lacks charges that it had, so nobody knows what was spent in it: put back the files charge-*, "
                "or begin another folder for other people."
            )
        made, last = [], ""
        for number in numbers:
            charge = self._opened(self._file(number), f"charge {number} after {last}")
            last = _fingerprint(self._file(number))
            answered = self._file(number, "answer").exists()
            made.append(self._opened(self._file(number, "answer"), f"answer of {last}") if answered else charge)
        if len(made) > counted:
            lock.check()
            self._count(len(made))
        self.made, self._last = tuple(made), last

    def add(self, charge: Charge, lock: Lock) -> None:
        """Charge for what is to be drawn next: on the disk when this returns; an error if anybody else has charged since `read`."""
        number = len(self.made)
        content = sealed.sealed(self._secret, f"charge {number} after {self._last}", self._packed(charge))
        lock.check()
        write_private(self._file(number), content, new=True)
        self.made, self._last = (*self.made, charge), _fingerprint(self._file(number))
        self._count(len(self.made))

    def settle(self, charge: Charge) -> None:
        """Keep the last charge's answer, with what it cost after all: to be shown when this returns."""
        content = sealed.sealed(self._secret, f"answer of {self._last}", self._packed(charge))
        write_private(self._file(len(self.made) - 1, "answer"), content, new=True)
        self.made = (*self.made[:-1], charge)

    def _opened(self, file: Path, place: str) -> Charge:
        stored = sealed.opened(self._secret, place, file)
        try:
            return self._unpacked(stored)
        except (ValueError, KeyError, TypeError):
            raise SartorError(f"{file} is no charge that can be read.") from None

    def _count(self, charges: int) -> None:
        write_private(self.folder / _CHARGED, str(charges).encode())

    def _file(self, number: int, kind: str = "charge") -> Path:
        return self.folder / f"{kind}-{number:05d}"

    def _witness(self) -> int:
        path = self.folder / _CHARGED
        if not path.exists():  # before the first charge, or where a stop came right after it
            return 0
        content = path.read_bytes()
        if not re.fullmatch(rb"\d{1,9}", content):
            raise SartorError(f"{path} is damaged: put it back from where it was copied.")
        return int(content)


def _fingerprint(file: Path) -> str:
    return sealed.digest([file.read_bytes()])
