"""The clients of a run, the plan over them, and the rounds that are charged: a folder that outlives the server.

`clients.json` says who is a client under which key, with which budget, and holds the plan and the server's settings; `rounds.json` how many
rounds are charged and who has withdrawn; `state.safetensors` the model, the server's optimizer and the clip after the last round that
ended, or before the first. All are for the server alone, as budgets are sensitive: the folder and its files are closed to others when it
is opened, and a link in the place of a file is refused. The folder may be reached through links.

Guarantee: a round is on the disk as charged before anyone is drawn for it, so nothing that a crash, a kill or a loss of power can do shows
    a round that is not charged. Two servers never charge the same round. A file that was put back or is missing, while another one proves
    a later round, is refused. A client has the one budget and the one account of its key, whatever node it speaks through.
Proof: charge ahead, never repeat. `charge` writes a new file, has it on the disk, and puts it in the place of the old one before it
    returns, and nothing takes a round back; a server that starts again continues after the rounds charged, with coins and noise under a
    key of its own. It writes only while the folder is locked, and while
    `rounds.json`, held by its own inode, has the very bytes that this server read or wrote last, of which no two writings have the same.
    The files name each other by digests: the rounds name the clients, and the state that the last charged round began from; a state
    names the clients, the count of writings of the rounds when it was made, and the state before it. Where the rounds are put back, the
    state was made after more writings; where the state is put back, it is neither the one that the last round began from nor one made
    of that. What nothing contradicts is harmless: before a state is saved, nothing of its round is shown, and a client that has
    withdrawn says so again with every answer.
Breaks if: the folder is copied and served twice; `rounds.json` and `state.safetensors` are both put back to the same moment, or the whole
    folder is; files are written by hand so that their digests fit.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sartor.budgets import Budgets
from sartor.errors import Exhausted, SartorError
from sartor.federated.plan import FederatedPlan
from sartor.numbers import from_json_number, to_json_number
from sartor.relation import Relation
from sartor.run.account import RunAccount
from sartor.run.files import Lock, close_folder, holding, lock, read_private, sync_folder, write_private

if TYPE_CHECKING:
    from torch import Tensor

_CLIENTS, _ROUNDS, _STATE = "clients.json", "rounds.json", "state.safetensors"
_PARTS = re.compile(rf"\.({'|'.join(map(re.escape, (_CLIENTS, _ROUNDS, _STATE)))})\.[0-9a-f]{{16}}")
_LEFT = 3_600  # seconds
_DAMAGED = (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, RecursionError)
"""What reading a file can raise that holds anything at all; every SartorError is a ValueError."""
_IMPOSSIBLE = "the ledger has a number that its plan could not have."
_NO_WAY_ON = "charges would be forgotten, so the run cannot go on; put back the file that belongs here, or begin a new run in a new folder."


@dataclass(frozen=True, repr=False)
class ClientAccount:
    """What one client allowed and what it has spent: for that client alone."""

    epsilon: float
    delta: float
    spent: float
    rounds: int
    planned_rounds: int
    private: bool
    relation: Relation

    def to_json(self) -> dict[str, Any]:
        """This account as a JSON document."""
        return {
            "epsilon": to_json_number(self.epsilon),
            "delta": self.delta,
            "spent": to_json_number(self.spent),
            "rounds": self.rounds,
            "planned_rounds": self.planned_rounds,
            "private": self.private,
            "relation": self.relation.name,
        }


@dataclass(frozen=True, repr=False)
class _Rounds:
    """What `rounds.json` says, and which other files it says it of."""

    charged: int
    withdrawn: frozenset[int]
    written: int
    """How often the file was written before."""
    clients: str
    """Digest of `clients.json`."""
    state: str
    """Digest of the state that the last charged round began from; of the first state, before any round."""

    def content(self) -> bytes:
        """A file of it, of which there is no second one."""
        fields = {"charged": self.charged, "withdrawn": sorted(self.withdrawn), "written": self.written}
        return json.dumps({**fields, "clients": self.clients, "state": self.state, "mark": secrets.token_hex(16)}).encode()

    @classmethod
    def of(cls, content: bytes) -> _Rounds:
        """What a file says."""
        said = json.loads(content)
        charged, withdrawn, written = _whole(said["charged"]), frozenset(map(_whole, said["withdrawn"])), _whole(said["written"])
        return cls(charged, withdrawn, written, str(said["clients"]), str(said["state"]))


@dataclass(frozen=True, repr=False)
class Begun:
    """What `clients.json` says: what a run was begun with, by which clients."""

    plan: FederatedPlan
    keys: tuple[str, ...]
    budgets: Budgets
    settings: dict[str, Any]
    seeded: bool

    @classmethod
    def of(cls, content: bytes) -> Begun:
        """What a file says."""
        said = json.loads(content)
        keys, epsilon = tuple(said["keys"]), [from_json_number(value) for value in said["epsilon"]]
        budgets = Budgets(epsilon, delta=said["delta"], holders=keys, reserve=said["reserve"])
        return cls(FederatedPlan.from_json(said["plan"]), keys, budgets, dict(said["settings"]), bool(said["seeded"]))

    @classmethod
    def read(cls, folder: str | os.PathLike[str]) -> Begun:
        """What the run in a folder was begun with, for whoever looks and charges nothing: a server may be at work there."""
        try:
            return cls.of(read_private(Path(folder) / _CLIENTS))
        except _DAMAGED:
            raise SartorError(f"{folder} holds no ledger that can be read.") from None


class Ledger:
    """The account of a run over clients, in a folder. Close it, or use it in a `with` statement, to let another server have it."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Open the run in a folder; `Ledger.create` begins one."""
        self.folder = Path(folder)
        close_folder(self.folder)
        self._lock: Lock | None = _locked(self.folder)
        try:
            self._read()
        except SartorError:
            self.close()
            raise
        except _DAMAGED:
            self.close()
            raise SartorError(f"{self.folder} holds no ledger that can be read.") from None
        for file in list(self.folder.iterdir()):
            with suppress(FileNotFoundError):  # halves that a kill left, and not what another machine is writing
                if _PARTS.fullmatch(file.name) and time.time() - file.lstat().st_mtime > _LEFT:
                    file.unlink()
        self._place = {key: i for i, key in enumerate(self.keys)}

    def _read(self) -> None:
        """What the files say, if they are of one run and of one moment of it."""
        content = read_private(self.folder / _CLIENTS)
        begun = Begun.of(content)
        self.plan, self.keys, self.budgets, self.settings = begun.plan, begun.keys, begun.budgets, begun.settings
        self.seeded = begun.seeded
        self._group = self.plan.accounted.groups_of(self.budgets)
        self._written = read_private(self.folder / _ROUNDS)
        self._rounds = _Rounds.of(self._written)
        if self._rounds.charged > self.plan.rounds or any(place >= len(self.keys) for place in self._rounds.withdrawn):
            raise SartorError(_IMPOSSIBLE)
        if self._rounds.clients != _digest(content):
            raise SartorError(f"{_CLIENTS} and {_ROUNDS} in {self.folder} are not of one run: {_NO_WAY_ON}")
        if not os.path.lexists(self.folder / _STATE):
            raise SartorError(f"{_STATE} is missing in {self.folder}, where every run has one: {_NO_WAY_ON}")
        self._state = _digest(read_private(self.folder / _STATE))
        self._check_state()

    def _check_state(self) -> None:
        """Refuse rounds or a state that were put back while the other went on."""
        kept, rounds = self._stored(), self._rounds
        if kept["clients"] != rounds.clients:
            raise SartorError(f"{_STATE} in {self.folder} is of another run: {_NO_WAY_ON}")
        if kept["charged"] > rounds.charged or kept["written"] > rounds.written:
            raise SartorError(f"{_STATE} in {self.folder} proves a later round than {_ROUNDS}, which was put back: {_NO_WAY_ON}")
        ended = 0 < kept["charged"] == rounds.charged  # else the last charged round was cut off, or there was none
        if (kept["before"] if ended else self._state) != rounds.state:
            raise SartorError(f"{_STATE} in {self.folder} is not what the last charged round began from: it was put back. {_NO_WAY_ON}")

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
        state: Mapping[str, Any] | None = None,
    ) -> Ledger:
        """Begin a run: one key and one budget for each client, in the same order.

        `settings` is what a server must not change later, and `state` what its first round begins from.
        """
        plan.accounted.groups_of(budgets)
        named = Budgets(budgets.epsilon, delta=budgets.delta, holders=list(keys), reserve=budgets.reserve)
        path = Path(folder)
        try:
            path.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise SartorError(f"{path} cannot be made: {error.strerror}.") from None
        close_folder(path)
        document = {
            "run": secrets.token_hex(16),
            "keys": list(keys),
            "epsilon": [to_json_number(value) for value in named.epsilon.tolist()],
            "delta": named.delta.tolist(),
            "reserve": named.reserve,
            "seeded": seeded,
            "settings": dict(settings or {}),
            "plan": plan.record(),
        }
        clients = json.dumps(document, default=float).encode()
        begin = _state_file(state or {}, charged=0, written=0, clients=_digest(clients), before="")
        rounds = _Rounds(0, frozenset(), 0, _digest(clients), _digest(begin))
        with _locked(path):
            if cls.is_in(path):
                raise SartorError(f"{path} already holds a run; give a new folder for a new run.")
            # clients last: with them there is a run, of which no file may be missing
            write_private(path / _ROUNDS, rounds.content())
            write_private(path / _STATE, begin)
            write_private(path / _CLIENTS, clients, new=True)
            sync_folder(path.parent)
        return cls(path)

    @classmethod
    def is_in(cls, folder: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a run already, or what is left of one: rounds without clients are no reason to begin again.

        What was left by a server that ended while it began a run, before there were clients, is none.
        """
        path = Path(folder)
        there = {name for name in (_CLIENTS, _ROUNDS, _STATE) if os.path.lexists(path / name)}
        if _CLIENTS in there or there == {_STATE}:
            return True
        try:
            begun = _Rounds.of(read_private(path / _ROUNDS)) if there else None
            other = _STATE in there and begun is not None and _digest(read_private(path / _STATE)) != begun.state
        except _DAMAGED:
            return True
        return begun is not None and (begun.written > 0 or other)

    def client(self, key: str) -> int | None:
        """The number of a client in the plan, by its key; None for a stranger."""
        return self._place.get(key)

    @property
    def charged(self) -> int:
        """Rounds that are charged."""
        return self._rounds.charged

    @property
    def left(self) -> int:
        """Rounds that can still be run."""
        return self.plan.rounds - self.charged

    def charge(self) -> int:
        """Charge everyone for a further round, and its number: call it before anyone is drawn."""
        if self.left <= 0:
            raise Exhausted(f"the plan's {self.plan.rounds} rounds are done: a further one would spend what nobody allowed.")
        self._write(replace(self._rounds, charged=self.charged + 1, state=self._state))
        return self.charged - 1

    @property
    def withdrawn(self) -> frozenset[int]:
        """Numbers of the clients that came back and allowed less than they are planned for."""
        return self._rounds.withdrawn

    def withdraw(self, client: int) -> None:
        """Ask a client no more in this run, by whatever server: charges go on, as for everyone."""
        if client not in self.withdrawn:
            self._write(replace(self._rounds, withdrawn=self.withdrawn | {client}))

    def _write(self, rounds: _Rounds) -> None:
        """Put further rounds in the place of those that this server knows, and of no others."""
        rounds = replace(rounds, written=self._rounds.written + 1)
        content = rounds.content()
        with self._alone():
            write_private(self.folder / _ROUNDS, content)
        self._rounds, self._written = rounds, content

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """While nobody else has written, and nobody else can: the folder is this server's, and the rounds are those that it knows."""
        if self._lock is None:
            raise SartorError("this ledger is closed.")
        self._lock.check()
        with holding(self.folder / _ROUNDS) as found:
            if found != self._written:
                raise SartorError(
                    f"{_ROUNDS} in {self.folder} was changed by another server or by hand: this server charges nothing more; start again."
                )
            yield

    def account(self) -> RunAccount:
        """What has been spent so far, per group."""
        return RunAccount(self.plan.accounted, self.charged, self.seeded)

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
                raise SartorError("there is no client with this key.")
            epsilon, delta = float(self.budgets.epsilon[place]), float(self.budgets.delta[place])
            own = float(spent[self._group[place]])
            found[key] = ClientAccount(epsilon, delta, own, self.charged, self.plan.rounds, account.private, account.relation)
        return found

    def save(self, state: Mapping[str, Any]) -> None:
        """Keep what the server needs to go on after a round: tensors, numbers and lists of them. Show nothing of the round before."""
        rounds = self._rounds
        if not rounds.charged:
            raise SartorError("a state is saved after a round; the first one is given when the run is begun.")
        content = _state_file(state, charged=rounds.charged, written=rounds.written, clients=rounds.clients, before=rounds.state)
        with self._alone():
            write_private(self.folder / _STATE, content)
        self._state = _digest(content)

    def saved(self) -> dict[str, Any]:
        """What was kept after the last round that ended, or when the run was begun."""
        found: dict[str, Any] = self._stored()["state"]
        return found

    def _stored(self) -> dict[str, Any]:
        """The state in its file, and which clients and rounds it is of."""
        path = self.folder / _STATE
        content = read_private(path)
        if _digest(content) != self._state:
            raise SartorError(f"{path} was changed by another server or by hand; start again.")
        try:
            found = _state_in(content)
            whole = all(type(found[name]) is int for name in ("charged", "written"))
            known = whole and all(type(found[name]) is str for name in ("clients", "before")) and isinstance(found["state"], dict)
        except Exception as error:  # bytes of any kind: whatever is wrong with them, they are no state
            raise SartorError(f"{path} cannot be read, and the run cannot be continued without it.") from error
        if not known:
            raise SartorError(f"{path} holds no server state, and the run cannot be continued without it.")
        return found

    def close(self) -> None:
        """Let another server have the folder."""
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def __enter__(self) -> Ledger:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"Ledger({len(self.keys)} clients, {self.charged} of {self.plan.rounds} rounds charged)"


def _locked(folder: Path) -> Lock:
    return lock(folder, taken=f"another server is running on {folder}: two would spend the same budgets.")


def _whole(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise SartorError(_IMPOSSIBLE)
    return value


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()


def _state_file(state: Mapping[str, Any], *, charged: int, written: int, clients: str, before: str) -> bytes:
    """A state, the clients that it is of, the rounds charged and written when it was made, and the state that its round began from."""
    from safetensors.torch import save

    tensors: list[Tensor] = []
    document = {"charged": charged, "written": written, "clients": clients, "before": before, "state": _plain(state, tensors)}
    arrays = {str(number): part.detach().clone().contiguous() for number, part in enumerate(tensors)}
    return save(arrays, {"state": json.dumps(document)})


def _state_in(content: bytes) -> dict[str, Any]:
    """What `_state_file` was given."""
    from safetensors.torch import load

    arrays = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    found = json.loads(header["__metadata__"]["state"])
    return {**found, "state": _whole_state(found["state"], arrays)}


def _plain(value: Any, tensors: list[Tensor]) -> Any:
    """A state as JSON has it: a tensor is a list of its number, and any other list begins with null."""
    from torch import Tensor

    if isinstance(value, Tensor):
        tensors.append(value)
        return [len(tensors) - 1]
    if isinstance(value, Mapping):
        return {str(name): _plain(part, tensors) for name, part in value.items()}
    return [None, *(_plain(part, tensors) for part in value)] if isinstance(value, list | tuple) else value


def _whole_state(value: Any, arrays: Mapping[str, Tensor]) -> Any:
    if isinstance(value, dict):
        return {name: _whole_state(part, arrays) for name, part in value.items()}
    if not isinstance(value, list):
        return value
    return [_whole_state(part, arrays) for part in value[1:]] if value[0] is None else arrays[str(value[0])]
