"""The account of an ensemble: what each release from its folder was, as `sartor.run.charges` keeps it on the disk.

A charge is kept with what was asked and, once there is one, with its answer, so that the same request can be answered again.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.pate.account import PateAccount
from sartor.pate.costs import Accountant
from sartor.pate.plan import PatePlan, whole
from sartor.pate.publish import Published
from sartor.pate.voting import Labels, accountant_of
from sartor.run import charges, sealed

Request = Mapping[str, Any]
_FOUND = ("labels", "asked", "answered", "weights")
_ROWS = ("cost", "asked", "answered", "divergence")


@dataclass(frozen=True, eq=False)
class Charge:
    """A release: its request, what an aggregation cost, or may cost at most until there is an answer, and the answer.

    One without an account is the release of the spend, which costs the reserve.
    """

    request: Request = field(repr=False)
    account: PateAccount | None = None
    answer: Labels | Published | None = field(default=None, repr=False)


class Charges(charges.Charges[Charge]):
    """The charges in an ensemble's folder, oldest first."""

    def __init__(self, folder: Path, secret: bytes, plan: PatePlan) -> None:
        super().__init__(folder, secret, _packed, functools.partial(_unpacked, plan))

    @property
    def accounts(self) -> list[PateAccount]:
        """The accounts of all aggregations."""
        return [charge.account for charge in self.made if charge.account is not None]

    @property
    def labels(self) -> list[Labels]:
        """The answers of all aggregations that have one."""
        return [charge.answer for charge in self.made if isinstance(charge.answer, Labels)]

    def told(self, request: Request) -> Labels | None:
        """The latest aggregation that answered this very request."""
        answers = (charge.answer for charge in reversed(self.made) if charge.request == request)
        return next((found for found in answers if isinstance(found, Labels)), None)


def request_of(
    bound: str, accountant: Accountant | None, student: ArrayLike | None, labels: int | None, *, go_on: bool, seeded: bool
) -> Request:
    """Everything that decides what an aggregation answers, but the votes and what was made of them before: as JSON has it."""
    known = accountant_of(bound, accountant)
    given = None if student is None else np.asarray(student, float)
    return {
        "bound": bound,
        "orders": None if known.orders is None else np.asarray(known.orders, float).tolist(),
        "conversion": known.conversion,
        "student": None if given is None else sealed.digest([str(given.shape).encode(), given.tobytes()]),
        "labels": None if labels is None else whole(labels, "the number of labels", least=0),
        "go_on": bool(go_on),
        "seeded": seeded,
    }


def _packed(charge: Charge) -> dict[str, NDArray[Any]]:
    account, answer, arrays = charge.account, charge.answer, {}
    document: dict[str, Any] = {"request": charge.request, "queries": None if account is None else account.queries}
    if account is not None:
        arrays = {f"account {name}": getattr(account, name) for name in _ROWS if getattr(account, name) is not None}
    if isinstance(answer, Published):
        document["published"] = asdict(answer)
    elif answer is not None:
        arrays |= {name: getattr(answer, name) for name in _FOUND}
    return {**arrays, "document": np.frombuffer(json.dumps(document).encode(), np.uint8)}


def _unpacked(plan: PatePlan, stored: Mapping[str, NDArray[Any]]) -> Charge:
    document = json.loads(stored["document"].tobytes())
    request, queries = document["request"], document["queries"]
    if queries is None:
        return Charge(request, answer=Published(**document["published"]) if "published" in document else None)
    accountant = Accountant(None if request["orders"] is None else np.array(request["orders"]), request["conversion"])
    rows: dict[str, Any] = {name: stored.get(f"account {name}") for name in _ROWS}
    account = PateAccount(plan, accountant, request["bound"], **rows, queries=int(queries), seeded=bool(request["seeded"]))
    if "labels" not in stored:
        return Charge(request, account)
    labels, asked, answered, weights = (stored[name] for name in _FOUND)
    return Charge(request, account, Labels(labels, asked, answered, account, weights))
