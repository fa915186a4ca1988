"""The account of an ensemble on the disk: one file for each release, which is written once and never again.

Guarantee: what was ever released from a folder is charged in it, and of several processes that go on from the same account at once one
    alone can charge, with or without a lock.
Proof: a charge is a new file under the next number, with its labels in it. It comes to its name whole and only if no file has that name
    (`write_private(new=True)`), and is on the disk before `add` returns. Each proves, by a hash, which one was before it, and `charged`
    says how many there were: a charge that is missing, cut short, changed, or put in the place of another is noticed, and an older file
    that is put back is the same file. Nothing is handed out that `add` has not returned for, or that `read` has not counted: where a
    kill came between a charge and its count, `charged` is raised on the disk before anybody can see what the charge paid for.
Breaks if: the whole folder is copied, or put back to what it was; the last charges are removed and `charged` with them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.pate import sealed
from sartor.pate.account import PateAccount
from sartor.pate.costs import Accountant
from sartor.pate.plan import PatePlan
from sartor.run.files import Lock, write_private

_CHARGED = "charged"


@dataclass(frozen=True, eq=False)
class Charge:
    """A release: an aggregation with its account and labels, or, with neither, the release of the spend out of the reserve."""

    account: PateAccount | None = None
    labels: NDArray[np.int64] | None = field(default=None, repr=False)


class Charges:
    """The charges in a folder, oldest first."""

    def __init__(self, folder: Path, secret: bytes, plan: PatePlan) -> None:
        self.folder, self._secret, self.plan = folder, secret, plan
        self.made: tuple[Charge, ...] = ()
        self._last = ""

    @property
    def accounts(self) -> list[PateAccount]:
        """The accounts of all aggregations."""
        return [charge.account for charge in self.made if charge.account is not None]

    def read(self, lock: Lock) -> None:
        """Everything that is charged by now, whoever charged it, and counted on the disk when this returns."""
        counted = self._witness()  # before the charges, which may become more meanwhile where no lock keeps others out
        numbers = sorted(int(found[1]) for path in self.folder.iterdir() if (found := re.fullmatch(r"charge-(\d+)", path.name)))
        if numbers != list(range(len(numbers))) or len(numbers) < counted:
            raise SartorError(
                f"{self.folder} lacks charges that it had, so nobody knows what its ensemble has spent: put back the files charge-*, "
                "or begin another folder for other people."
            )
        made, last = [], ""
        for number in numbers:
            stored = sealed.opened(self._secret, _place(number, last), self._file(number))
            try:
                made.append(_unpacked(self.plan, stored))
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
        content = sealed.sealed(self._secret, _place(number, self._last), _packed(charge))
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


def _packed(charge: Charge) -> dict[str, NDArray[Any]]:
    account, arrays = charge.account, {}
    document: dict[str, Any] = {"aggregation": account is not None}
    if account is not None:
        assert charge.labels is not None
        arrays = {"cost": account.cost, "asked": account.asked, "answered": account.answered, "labels": charge.labels}
        if account.divergence is not None:
            arrays["divergence"] = account.divergence
        if account.accountant.orders is not None:
            arrays["orders"] = np.asarray(account.accountant.orders)
        document |= {
            "bound": account.bound,
            "conversion": account.accountant.conversion,
            "queries": account.queries,
            "seeded": account.seeded,
        }
    return {**arrays, "document": np.frombuffer(json.dumps(document).encode(), np.uint8)}


def _unpacked(plan: PatePlan, stored: Mapping[str, NDArray[Any]]) -> Charge:
    document = json.loads(stored["document"].tobytes())
    if not document["aggregation"]:
        return Charge()
    account = PateAccount(
        plan,
        Accountant(stored.get("orders"), document["conversion"]),
        document["bound"],
        stored["cost"],
        stored["asked"],
        stored["answered"],
        stored.get("divergence"),
        int(document["queries"]),
        bool(document["seeded"]),
    )
    return Charge(account, stored["labels"])
