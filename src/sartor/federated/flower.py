"""Flower as the engine: a strategy that owns sampling and aggregation, and what a client needs to take part.

    server                                                client
    PrivateFedAvg(folder, StrategySettings(..))           app = private(app)
      .start(grid, arrays)                                  answers with its key and its budget
        asks every node for its key and budget              trains as before; metrics stay with it
        plans over whom it takes, runs the rounds           keeps the account that it is sent
        sends each client its own account

Guarantee: that of `sartor.federated.plan`, for every client by its key, with charges as in `sartor.federated.ledger`. Who was drawn, which
    client failed and what clients measured are neither logged nor returned.
    A key that two nodes declare at once is nobody's: neither is asked, nor sent an account, and both are told why.
Breaks if: somebody else speaks under a client's key: while the client is away they take its part and are sent its account, and while it is
    there they keep it from taking part (use Flower's authentication of SuperNodes where nodes are not trusted); the server or its log of
    messages is open to others: it sees every update, as in all central differential privacy; clients are told apart by how long a round
    takes.

Which node of Flower speaks for which client follows from what nodes say when they are asked: a client is spoken for by one node at most,
and by none of several that declare its key while they are there: nobody is merged with another or takes its place.
"""

from __future__ import annotations

import logging
import secrets
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.confidential import FEWEST
from sartor.errors import SartorError
from sartor.federated.client import ACCOUNT, ENROL, RECORD, REFUSED, client_mod, private
from sartor.federated.enrolment import DECLARED_TWICE, StrategySettings, budget_of, declares, may_be_one
from sartor.federated.ledger import Ledger
from sartor.federated.plan import FederatedPlan
from sartor.federated.rounds import Round
from sartor.federated.updates import Named
from sartor.run.sampling import PoissonSampler
from sartor.run.stream import Stream
from sartor.run.witness import seen

try:
    from flwr.app import Message, RecordDict
    from flwr.serverapp import Grid
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

POLL, ANSWER = 0.5, 30.0  # seconds between looks for nodes, and for a node to say who it is


class Nodes:
    """The nodes that have said who they are. A node speaks for the client whose key it declared last, if no other node that is there does.

    A node that was started again has another number. It speaks once the one before it is gone: until then nobody can tell it from a second
    node under the same key.
    """

    def __init__(self) -> None:
        self._key_of: dict[int, str] = {}
        self._heard: set[int] = set()
        self._silent: dict[int, tuple[int, int]] = {}  # how often in vain, and at which look again
        self._looks = 0

    def declaring(self, there: set[int]) -> dict[str, list[int]]:
        """The keys that these nodes declare, and which of them declare each."""
        found: dict[str, list[int]] = {}
        for node in sorted(there & self._key_of.keys()):
            found.setdefault(self._key_of[node], []).append(node)
        return found

    def speaking(self, there: set[int]) -> dict[str, int]:
        """Whoever speaks through one of these nodes, and through which."""
        return {key: nodes[0] for key, nodes in self.declaring(there).items() if len(nodes) == 1}

    def declared_twice(self, there: set[int]) -> dict[str, list[int]]:
        """The keys that several of these nodes declare, and which: nobody speaks under them."""
        return {key: nodes for key, nodes in self.declaring(there).items() if len(nodes) > 1}

    def ask(self, grid: Grid, there: set[int], end: float, *, patient: bool) -> list[tuple[str, dict[str, Any]]]:
        """Key and declaration of every node that has not said so since it is there; those without a key are left out.

        One that is silent is asked again after two looks, then after four, eight and so on; at every look, if one is `patient`. No single
        asking takes all of the time until `end`.
        """
        self._looks += 1
        self._heard &= there
        self._silent = {node: kept for node, kept in self._silent.items() if node in there}
        never = (0, 0)
        asked = [node for node in there - self._heard if patient or self._silent.get(node, never)[1] <= self._looks]
        for node in asked:
            times = self._silent.get(node, never)[0] + 1
            self._silent[node] = times, self._looks + 2 ** min(times, 30)
        messages = [Message(RecordDict(), dst_node_id=node, message_type=ENROL) for node in asked]
        third = (end - time.monotonic()) / 3
        timeout = max(third if patient else min(third, ANSWER), POLL)
        found = []
        for reply in grid.send_and_receive(messages, timeout=timeout) if messages else []:
            if not reply.has_content():  # a failure, not a word
                continue
            node = reply.metadata.src_node_id
            self._heard.add(node)
            self._silent.pop(node, None)
            answer = dict(reply.content.config_records.get(RECORD, {}))
            key = str(answer.pop("key", ""))
            if key.strip():
                self._key_of[node] = key
                found.append((key, answer))
            else:
                self._key_of.pop(node, None)
        return found


try:
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MessageType, MetricRecord, RecordDict
    from flwr.serverapp import Grid
    from flwr.serverapp.strategy import Result, Strategy
except ImportError as error:
    raise ImportError("federated learning on Flower needs flwr: pip install 'sartor[federated]'.") from error

__all__ = ["ACCOUNT", "ENROL", "REFUSED", "PrivateFedAvg", "StrategySettings", "client_mod", "private"]

_log = logging.getLogger(__name__)


class PrivateFedAvg(Strategy):
    """Federated averaging in which every client sets its own budget.

    `folder` keeps the clients, their accounts and the server's state; a server that starts again on it goes on where it was: it waits for
    as many clients as the first one, and then goes on with those who are there. A round needs at least one of them, and is not charged
    before. `settings` say how the run is planned, whom it takes and how the server steps.

    The server plans over those who enrol, whom nobody knows before. Where they are known, as in a simulation, `plan` is the one that was
    made and checked over them, and is refused for anybody else.
    """

    def __init__(self, folder: str, settings: StrategySettings, *, plan: FederatedPlan | None = None) -> None:
        self.folder, self.settings = folder, settings
        self._plan = plan
        self._ledger: Ledger | None = None

    @property
    def ledger(self) -> Ledger:
        """The clients and their accounts, once the run has begun."""
        if self._ledger is None:
            raise SartorError("the run has not begun: there are no clients yet.")
        return self._ledger

    def summary(self) -> None:
        """Nothing to add to Flower's own words; `ledger.plan` is the table."""

    def start(
        self,
        grid: Grid,
        initial_arrays: ArrayRecord,
        num_rounds: int | None = None,
        timeout: float = 3600,
        train_config: ConfigRecord | None = None,
        evaluate_config: ConfigRecord | None = None,
        evaluate_fn: Callable[[int, ArrayRecord], MetricRecord | None] | None = None,
    ) -> Result:
        """Enrol, plan, and run the rounds that the plan has left (at most `num_rounds` of them)."""
        self.begin(grid, initial_arrays)
        try:
            left = self.ledger.left if num_rounds is None else min(num_rounds, self.ledger.left)
            result = super().start(grid, self._record(), left, timeout, train_config, evaluate_config, evaluate_fn)
            if not result.arrays:
                result.arrays = self._record()
            return result
        finally:
            try:
                self.send_accounts(grid)
            except Exception:
                _log.warning("accounts could not be sent to the clients; they are in the ledger", exc_info=True)
            finally:
                self.ledger.close()

    def begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        """Enrol and plan, or go on with the run in the folder, which is this server's until its ledger is closed."""
        try:
            self._begin(grid, initial_arrays)
        except BaseException:
            if self._ledger is not None:
                self._ledger.close()
            raise

    def _begin(self, grid: Grid, initial_arrays: ArrayRecord) -> None:
        arrays = {name: array.numpy() for name, array in initial_arrays.items()}
        self._optimizer = self.settings.server(arrays)
        self._nodes = Nodes()
        self._told: dict[str, list[int]] = {}  # of the keys that are declared twice, the nodes that know it
        if Ledger.is_in(self.folder):
            self._ledger = Ledger(self.folder)
            self._check_same(self._ledger, arrays)
            if self._ledger.left:
                self._meet(grid, self.settings.min_clients, patient=True)
        else:
            self._ledger = self._enrolled(grid, arrays)
        ledger = self._ledger
        # without a seed, coins and noise of this process alone; with one, those of the rounds that are left
        self._stream = Stream(self.settings.seed)
        if self._stream.seeded and not ledger.seeded:
            raise SartorError("a private run cannot be continued with a seed.")
        self._sampler = PoissonSampler(ledger.plan.accounted, ledger.budgets, self._stream)
        saved = ledger.saved()
        self._optimizer.load(saved.get("server", {}))
        self._clip = float(saved.get("clip", np.nan))
        if not 0 < self._clip < np.inf:
            raise SartorError(f"the state in {self.folder} has no clip, so the run cannot be continued from it.")
        self._model = self._optimizer.model
        self._round: Round | None = None
        self._token = ""

    def _check_same(self, ledger: Ledger, arrays: Named) -> None:
        """Whether the run in the folder is the one that is asked for."""
        wanted, kept = self.settings.lasting(arrays), ledger.settings
        other = sorted(name for name in wanted.keys() | kept.keys() if wanted.get(name) != kept.get(name))
        if other:
            raise SartorError(f"the run in {self.folder} has other settings ({', '.join(other)}); give a new folder for a new run.")

    def _enrolled(self, grid: Grid, arrays: Named) -> Ledger:
        """Ask every node who it is, until enough have answered, and plan over them."""
        end = time.monotonic() + self.settings.wait
        declared: dict[str, Mapping[str, Any]] = {}
        disputed: set[str] = set()
        while True:
            there = set(grid.get_node_ids())
            for key, answer in self._nodes.ask(grid, there, end, patient=True):
                if declared.setdefault(key, answer) != answer:  # by one node after another, too: nobody knows which of them holds
                    disputed.add(key)
            twice = disputed | self._nodes.declared_twice(there).keys() | may_be_one(declared)
            agreed = {key: answer for key, answer in declared.items() if key not in twice}
            # nobody's answer can keep the server from waiting for others: it enrols once there is somebody to take
            late, known = time.monotonic() > end, any(self.settings.refusal(answer) is None for answer in agreed.values())
            found = self.settings.enrol(agreed) if known and (late or len(agreed) >= self.settings.min_clients) else None
            if found is not None and len(found.keys) >= self.settings.min_clients:
                break
            if late:
                refused = {key: self.settings.refusal(answer) for key, answer in agreed.items()} if found is None else found.refused
                self._refuse(grid, {**refused, **dict.fromkeys(twice, DECLARED_TWICE)})
                raise SartorError(
                    f"only {0 if found is None else len(found.keys)} of {self.settings.min_clients} required clients enrolled within "
                    f"{self.settings.wait:g} s: {_number(refused)} others declared no acceptable budget ({self.settings.limits}), "
                    f"and {_number(twice)} keys were declared twice, so that nobody takes part under them."
                )
            time.sleep(POLL)
        self._refuse(grid, {**found.refused, **dict.fromkeys(twice, DECLARED_TWICE)})
        if self._plan is not None:
            self._plan.accounted.groups_of(found.budgets)  # refuses others than it was made for
        made = self.settings.plan(found.budgets) if self._plan is None else self._plan
        how: dict[str, Any] = {"seeded": self.settings.seed is not None, "settings": self.settings.lasting(arrays)}
        return Ledger.create(self.folder, made, found.keys, found.budgets, state=self._state(made.accounted.clip), **how)

    def _state(self, clip: float) -> dict[str, Any]:
        """What a server needs to go on from here."""
        return {"server": self._optimizer.state(), "clip": clip}

    def _refuse(self, grid: Grid, refused: Mapping[str, str | None]) -> None:
        """Tell every client that takes no part why, and nobody else; what cannot be told is no reason not to go on."""
        nodes = self._nodes.declaring(set(grid.get_node_ids()))
        told = [
            Message(RecordDict({RECORD: ConfigRecord({"why": str(why)})}), dst_node_id=node, message_type=REFUSED)
            for key, why in refused.items()
            for node in nodes.get(key, ())
        ]
        try:
            self._deliver(grid, told)
        except Exception:
            _log.warning("clients that take no part could not be told why", exc_info=True)

    def _deliver(self, grid: Grid, messages: list[Message]) -> None:
        """Send messages to which there is nothing to answer."""
        if messages:
            list(grid.send_and_receive(messages, timeout=min(self.settings.wait, ANSWER + len(messages) * POLL)))

    def _link(self, grid: Grid, there: set[int], end: float, *, patient: bool) -> None:
        """Ask nodes that were not there before who they are.

        A client that now allows less than before is not asked any more, and under a key that another node declares, too, nobody is: who
        speaks for a client that is planned cannot be replaced by saying so.
        """
        for key, answer in self._nodes.ask(grid, there, end, patient=patient):
            client = self.ledger.client(key)
            if client is not None:
                self._still_allows(client, answer)
        twice = {key: nodes for key, nodes in self._nodes.declared_twice(there).items() if self.ledger.client(key) is not None}
        self._refuse(grid, {key: DECLARED_TWICE for key, nodes in twice.items() if set(nodes) - set(self._told.get(key, ()))})
        self._told = twice

    def _still_allows(self, client: int, answer: Mapping[str, Any]) -> bool:
        """Whether a client allows what it is planned for.

        If it allows less, or says what cannot be used, it has withdrawn: it is charged for the rounds to come, as everyone is, and
        contributes nothing to them.
        """
        said, budgets = budget_of(answer, self.settings.policy, self.settings.delta), self.ledger.budgets
        if declares(answer) and (said is None or said[0] < budgets.epsilon[client] or said[1] < budgets.delta[client]):
            self.ledger.withdraw(client)
        return client not in self.ledger.withdrawn

    def _meet(self, grid: Grid, wanted: int, *, patient: bool = False) -> set[int]:
        """The nodes that are there, once as many clients as are wanted can be asked, or time is over and some can."""
        end = time.monotonic() + self.settings.wait
        while True:
            there = set(grid.get_node_ids())
            self._link(grid, there, end, patient=patient)
            if len(self.ledger.withdrawn) == len(self.ledger.keys):
                raise SartorError("all clients have withdrawn, so no further round can be run.")
            present = sum(map(self._can_be_asked, self._nodes.speaking(there)))
            late = time.monotonic() > end
            if present >= min(wanted, len(self.ledger.keys) - len(self.ledger.withdrawn)) or (late and present):
                return there
            if late:
                raise SartorError(f"none of the run's clients answered within {self.settings.wait:g} s, so no round was started.")
            time.sleep(POLL)

    def _can_be_asked(self, key: str) -> bool:
        client = self.ledger.client(key)
        return client is not None and client not in self.ledger.withdrawn

    def configure_train(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Charge the round, draw for it, and ask those who were drawn and are there."""
        self._stream.check_process()
        there = self._meet(grid, 1)
        if not all(np.isfinite(part).all() for part in self._model.values() if part.dtype.kind == "f"):
            raise SartorError(
                "the model is no longer finite, so further rounds would be spent on nothing: lower the learning rate or the clip."
            )
        ledger = self.ledger
        number = ledger.charge()
        draw = seen(self._stream, self._sampler.draw(number))
        self._round = Round(ledger.plan, draw, self._model, self._clip, charged=ledger.charged)
        self._token = secrets.token_hex(16)
        drawn = (client for client in self._round.drawn if client not in ledger.withdrawn)
        nodes = self._nodes.speaking(there)
        self._asked = {nodes[ledger.keys[client]]: client for client in drawn if ledger.keys[client] in nodes}
        settings = ConfigRecord({**config, "server-round": number + 1})
        content = RecordDict({"arrays": self._record(), "config": settings})
        return [Message(content, dst_node_id=node, message_type=MessageType.TRAIN, group_id=self._token) for node in self._asked]

    def aggregate_train(self, server_round: int, replies: Iterable[Message]) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """One noisy mean of the answers, and the server's step with it; what clients measured is dropped."""
        self._stream.check_process()
        current = self._round
        if current is None:
            raise SartorError("aggregate_train must be called exactly once after configure_train.")
        self._round = None
        for reply in replies:
            client = self._asked.get(reply.metadata.src_node_id)
            if client is None or reply.metadata.group_id != self._token or not reply.has_content():
                continue
            said = dict(reply.content.config_records.get(RECORD, {}))
            if said.get("key", self.ledger.keys[client]) == self.ledger.keys[client] and self._still_allows(client, said):
                current.add(client, _arrays(reply, self._model))
        released = current.release(self._stream)
        self._model, self._clip = self._optimizer.step(released.mean), released.clip
        self.ledger.save(self._state(self._clip))
        return self._record(), None

    def configure_evaluate(self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid) -> Iterable[Message]:
        """Clients are not asked: what they would measure is theirs. Give `start` a function that evaluates on public data."""
        return []

    def aggregate_evaluate(self, server_round: int, replies: Iterable[Message]) -> MetricRecord | None:
        """Nothing."""
        return None

    def send_accounts(self, grid: Grid) -> None:
        """Send every client that is there its own account, and nobody else's."""
        there = set(grid.get_node_ids())
        self._link(grid, there, time.monotonic() + min(self.settings.wait, ANSWER), patient=True)
        nodes = self._nodes.speaking(there)
        known = [key for key in nodes if self.ledger.client(key) is not None]
        messages = [
            Message(RecordDict({RECORD: ConfigRecord(account.to_json())}), dst_node_id=nodes[key], message_type=ACCOUNT)
            for key, account in self.ledger.client_accounts(known).items()
        ]
        self._deliver(grid, messages)

    def _record(self) -> ArrayRecord:
        return ArrayRecord({name: Array(part) for name, part in self._model.items()})


def _number(clients: Collection[str]) -> str:
    """How many, where they are enough to hide each of them; otherwise not even whether there are any."""
    return str(len(clients)) if len(clients) >= FEWEST else f"fewer than {FEWEST}"


def _arrays(reply: Message, model: Named) -> dict[str, NDArray[Any]]:
    """The arrays of an answer by their names; nothing, which is no update, where they are not the model's or cannot be read."""
    records = list(reply.content.array_records.values())
    if len(records) != 1 or set(records[0]) != set(model):
        return {}
    try:
        return {name: np.asarray(array.numpy()) for name, array in records[0].items()}
    except Exception:  # bytes from elsewhere: whatever is wrong with them, they are no arrays
        return {}
