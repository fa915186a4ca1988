"""The account of an ensemble: what each release from its folder was, as `sartor.run.charges` keeps it on the disk."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.pate.account import PateAccount
from sartor.pate.costs import Accountant
from sartor.pate.plan import PatePlan
from sartor.run import charges


@dataclass(frozen=True, eq=False)
class Charge:
    """A release: an aggregation with its account and labels, or, with neither, the release of the spend out of the reserve."""

    account: PateAccount | None = None
    labels: NDArray[np.int64] | None = field(default=None, repr=False)


class Charges(charges.Charges[Charge]):
    """The charges in an ensemble's folder, oldest first."""

    def __init__(self, folder: Path, secret: bytes, plan: PatePlan) -> None:
        super().__init__(folder, secret, _packed, functools.partial(_unpacked, plan))

    @property
    def accounts(self) -> list[PateAccount]:
        """The accounts of all aggregations."""
        return [charge.account for charge in self.made if charge.account is not None]


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
