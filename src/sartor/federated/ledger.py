"""The clients of a run, the plan over them, and the rounds that are charged: a folder that outlives the server.

`clients.json` says who is a client under which key, with which budget, and holds the plan and the server's settings; `rounds.json` how many
rounds are charged and who has withdrawn; `state.pt` the model, the server's optimizer and the clip after the last round that ended. All are
for the server alone (mode 0600), as budgets are sensitive.

Guarantee: a round is on the disk as charged before anyone is drawn for it, so nothing that a crash, a kill or a loss of power can do shows
    a round that is not charged. A client has the one budget and the one account of its key, whatever node it speaks through.
Proof: `charge` writes a new file, has it on the disk, and puts it in the place of the old one before it returns; a server that starts
    again continues after the rounds charged, with coins and noise of its own. A second server on the same folder is refused.
Breaks if: the folder is copied and served twice, or put back to an older state.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sartor.budgets import Budgets
from sartor.documents import read_json
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.files import lock, sync_folder, write_private
from sartor.numbers import from_json_number, to_json_number
from sartor.sgd.account import Account
from sartor.sgd.run import Exhausted

_CLIENTS, _ROUNDS, _STATE, _LOCK = "clients.json", "rounds.json", "state.pt", "lock"
_NOTHING = b'{"charged": 0, "withdrawn": []}'  # the rounds of a run that has not begun


@dataclass(frozen=True, repr=False)
class ClientAccount:
    """What one client allowed and what it has spent: for that client alone."""

    epsilon: float
    delta: float
    spent: float
    rounds: int
    planned_rounds: int
    private: bool

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document."""
        return {
            "epsilon": to_json_number(self.epsilon),
            "delta": self.delta,
            "spent": to_json_number(self.spent),
            "rounds": self.rounds,
            "planned_rounds": self.planned_rounds,
            "private": self.private,
        }


class Ledger:
    """The account of a run over clients, in a folder. Close it, or use it in a `with` statement, to let another server have it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the run in a folder; `Ledger.create` begins one."""
        self.folder = Path(folder)
        self._lock: int | None = _locked(self.folder)
        try:
            document = read_json(self.folder / _CLIENTS, "the ledger's")
            self.plan = FederatedPlan.from_json(document["plan"])
            self.keys: tuple[str, ...] = tuple(document["keys"])
            self.budgets = Budgets(
                [from_json_number(value) for value in document["epsilon"]],
                delta=document["delta"],
                holders=self.keys,
                reserve=document["reserve"],
            )
            self.seeded = bool(document["seeded"])
            self.settings: dict[str, Any] = dict(document["settings"])
            rounds = read_json(self.folder / _ROUNDS, "the ledger's")
            self._charged = _whole(rounds["charged"], self.plan.rounds)
            self._withdrawn = frozenset(_whole(place, len(self.keys) - 1) for place in rounds["withdrawn"])
            self._group = self.plan.accounted.groups_of(self.budgets)
        except SartorError:
            self.close()
            raise
        except (KeyError, TypeError, ValueError, AttributeError):
            self.close()
            raise SartorError(f"{self.folder} holds no ledger that can be read.") from None
        self._place = {key: i for i, key in enumerate(self.keys)}

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        plan: FederatedPlan,
        keys: Sequence[str],
        budgets: Budgets,
        *,
        seeded: bool = False,
        settings: Mapping[str, Any] | None = None,
    ) -> Ledger:
        """Begin a run: one key and one budget for each client, in the same order. `settings` is what a server must not change later."""
        plan.accounted.groups_of(budgets)
        named = Budgets(budgets.epsilon, delta=budgets.delta, holders=list(keys), reserve=budgets.reserve)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SartorError(f"{path} cannot be made: {error.strerror}.") from None
        document = {
            "keys": list(keys),
            "epsilon": [to_json_number(value) for value in named.epsilon.tolist()],
            "delta": named.delta.tolist(),
            "reserve": named.reserve,
            "seeded": seeded,
            "settings": dict(settings or {}),
            "plan": plan.to_json(sensitive=True),
        }
        lock = _locked(path)
        try:
            if cls.is_in(path):
                raise SartorError(f"{path} holds a run already: its clients and their accounts stay as they are.")
            write_private(path / _ROUNDS, _NOTHING)
            write_private(path / _CLIENTS, json.dumps(document, default=float).encode(), new=True)
            sync_folder(path.parent)
        finally:
            os.close(lock)
        return cls(path)

    @classmethod
    def is_in(cls, folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a run already, or what is left of one: rounds without clients are no reason to begin again."""
        path = Path(folder)
        if (path / _CLIENTS).exists() or (path / _STATE).exists():
            return True
        return (path / _ROUNDS).exists() and (path / _ROUNDS).read_bytes() != _NOTHING

    def client(self, key: str) -> int | None:
        """The number of a client in the plan, by its key; None for a stranger."""
        return self._place.get(key)

    @property
    def charged(self) -> int:
        """Rounds that are charged."""
        return self._charged

    @property
    def left(self) -> int:
        """Rounds that can still be run."""
        return self.plan.rounds - self._charged

    def charge(self) -> int:
        """Charge everyone for a further round, and its number: call it before anyone is drawn."""
        if self._lock is None:
            raise SartorError("this ledger is closed.")
        if self.left <= 0:
            raise Exhausted(f"the plan's {self.plan.rounds} rounds are done: a further one would spend what nobody allowed.")
        self._write(self._charged + 1, self._withdrawn)
        return self._charged - 1

    @property
    def withdrawn(self) -> frozenset[int]:
        """Numbers of the clients that came back and allowed less than they are planned for."""
        return self._withdrawn

    def withdraw(self, client: int) -> None:
        """Ask a client no more in this run, by whatever server: charges go on, as for everyone."""
        if self._lock is None:
            raise SartorError("this ledger is closed.")
        if client not in self._withdrawn:
            self._write(self._charged, self._withdrawn | {client})

    def _write(self, charged: int, withdrawn: frozenset[int]) -> None:
        write_private(self.folder / _ROUNDS, json.dumps({"charged": charged, "withdrawn": sorted(withdrawn)}).encode())
        self._charged, self._withdrawn = charged, withdrawn

    def account(self) -> Account:
        """What has been spent so far, per group."""
        return Account(self.plan.accounted, self._charged, self.seeded)

    def client_account(self, key: str) -> ClientAccount:
        """What one client has spent: to be sent to that client and nobody else."""
        return self.client_accounts([key])[key]

    def client_accounts(self, keys: Sequence[str]) -> dict[str, ClientAccount]:
        """The same for several clients at once, each to be sent to its own."""
        account = self.account()
        spent, found = account.spent, {}
        for key in keys:
            place = self.client(key)
            if place is None:
                raise SartorError("there is no client of this key.")
            epsilon, delta = float(self.budgets.epsilon[place]), float(self.budgets.delta[place])
            own = float(spent[self._group[place]])
            found[key] = ClientAccount(epsilon, delta, own, self._charged, self.plan.rounds, account.private)
        return found

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep what the server needs to go on after a round: tensors, numbers and lists of them."""
        import torch

        content = io.BytesIO()
        torch.save(dict(state), content)
        write_private(self.folder / _STATE, content.getvalue())

    def saved(self) -> dict[str, Any] | None:
        """What was kept after the last round that ended, if any did."""
        import torch

        path = self.folder / _STATE
        if not path.exists():
            return None
        try:
            found = torch.load(path, weights_only=True)
        except Exception as error:
            raise SartorError(f"{path} cannot be read; without it the run cannot go on.") from error
        if not isinstance(found, dict):
            raise SartorError(f"{path} holds no state of a server; without it the run cannot go on.")
        return found

    def close(self) -> None:
        """Let another server have the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({len(self.keys)} clients, {self._charged} of {self.plan.rounds} rounds charged)"


def _locked(folder: Path) -> int:
    return lock(folder / _LOCK, taken=f"another server is running on {folder}: two would spend the same budgets.")


def _whole(value: Any, most: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= most:
        raise SartorError("the ledger has a number that its plan could not have.")
    return value
