"""The account of a folder on the disk: one file for each release, which is written once and never again.

Guarantee: what was ever released from a folder is charged in it, and of several processes that go on from the same account at once one
    alone can charge, with or without a lock.
Proof: a charge is a new file under the next number, with what it paid for in it. It comes to its name whole and only if no file has that
    name (`write_private(new=True)`), and is on the disk before `add` returns. Each proves, by a hash, which one was before it, and
    `charged` says how many there were: a charge that is missing, cut short, changed, or put in the place of another is noticed, and an
    older file that is put back is the same file. Nothing is handed out that `add` has not returned for, or that `read` has not counted:
    where a kill came between a charge and its count, `charged` is raised on the disk before anybody can see what the charge paid for.
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
PART = r"charged|charge-\d+"
"""Names of the files, as a pattern: a kill may leave halves beside them."""


class Charges(Generic[Charge]):
    """The charges in a folder, oldest first; `packed` and `unpacked` say how one is arrays in a file."""

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
            stored = sealed.opened(self._secret, _place(number, last), self._file(number))
            try:
                made.append(self._unpacked(stored))
            except (ValueError, KeyError, TypeError):
                raise SartorError(f"{self._file(number)} is no charge that can be read.") from None
            last = _fingerprint(self._file(number))
        if len(made) > counted:
            lock.check()
            self._count(len(made))
        self.made, self._last = tuple(made), last

    def add(self, charge: Charge, lock: Lock) -> None:
        """Charge for what is to be handed out next: on the disk when this returns; an error if anybody else has charged since `read`."""
        number = len(self.made)
        content = sealed.sealed(self._secret, _place(number, self._last), self._packed(charge))
        lock.check()
        write_private(self._file(number), content, new=True)
        self.made, self._last = (*self.made, charge), _fingerprint(self._file(number))
        self._count(len(self.made))

    def _count(self, charges: int) -> None:
        write_private(self.folder / _CHARGED, str(charges).encode())

    def _file(self, number: int) -> Path:
        return self.folder / f"charge-{number:05d}"

    def _witness(self) -> int:
        path = self.folder / _CHARGED
        if not path.exists():  # before the first charge, or where a stop came right after it
            return 0
        content = path.read_bytes()
        if not re.fullmatch(rb"\d{1,9}", content):
            raise SartorError(f"{path} is damaged: put it back from where it was copied.")
        return int(content)


def _place(number: int, before: str) -> str:
    return f"charge {number} after {before}"


def _fingerprint(file: Path) -> str:
    return sealed.digest([file.read_bytes()])
