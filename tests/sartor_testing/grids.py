"""Flower's nodes in this process, a server over them, and the check of what drop-outs cost that is also run on faulty code."""

from contextlib import contextmanager

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from sartor.federated.flower import PrivateFedAvg, StrategySettings, private
from sartor.federated.ledger import Ledger

START = {"vector": np.zeros(3, np.float32), "scalar": np.zeros((), np.float32), "seen": np.array(0, np.int64)}


def record(arrays=START):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


class LocalGrid(Grid):
    """Nodes of this process. A node is a ClientApp and its context; `down` nodes are listed but never answer, `gone` ones are not there."""

    def __init__(self, nodes):
        self.nodes, self.down, self.gone, self.sent, self.extra = dict(nodes), set(), set(), [], lambda replies: replies

    def get_node_ids(self):
        return [node for node in self.nodes if node not in self.gone]

    def send_and_receive(self, messages, *, timeout=None):
        replies = []
        for message in messages:
            node = message.metadata.dst_node_id
            self.sent.append(message)
            if node in self.down or node in self.gone:
                continue
            app, context = self.nodes[node]
            replies.append(app(message, context))
        return self.extra(replies)

    run = property(lambda self: None)

    def set_run(self, run):
        raise NotImplementedError

    create_message = push_messages = pull_messages = set_run


def node(number, train, **config):
    app = ClientApp()
    app.train()(train)
    context = Context(run_id=1, node_id=number, node_config={"client-key": f"key {number}", **config}, state=RecordDict(), run_config={})
    return private(app), context


def adds(update=0.0):
    """A client that adds this to the model's arrays."""

    def train(message, context):
        sent = message.content.array_records["arrays"]
        return Message(RecordDict({"arrays": record({name: array.numpy() + update for name, array in sent.items()})}), reply_to=message)

    return train


def clients(epsilons, train=None):
    """One node for each epsilon, numbered from 100."""
    return {100 + i: node(i, train or adds(), epsilon=epsilon, delta=1e-3) for i, epsilon in enumerate(epsilons)}


@contextmanager
def serving(folder, grid, model, **options):
    """A server on a folder, enrolled and planned or as it was left, until it stops."""
    strategy = PrivateFedAvg(str(folder), StrategySettings(**{"min_clients": len(grid.nodes), "wait": 0.5, "accountant": "rdp", **options}))
    strategy.begin(grid, record(model))
    try:
        yield strategy
    finally:
        strategy.ledger.close()


def ask(strategy, grid):
    return list(strategy.configure_train(1, record(), ConfigRecord(), grid))


def run(strategy, grid):
    """One round: the nodes that it asked, and the model after it as one vector."""
    messages = ask(strategy, grid)
    arrays, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    return [message.metadata.dst_node_id for message in messages], np.concatenate([np.ravel(part.numpy()) for part in arrays.values()])


def drop_outs_are_charged(folder):
    """Whether rounds cost everyone what they cost when all answer, also when clients, or all of them, are silent, fail or are not there."""
    with pytest.MonkeyPatch.context() as patch:
        for name in ("run_id", "task_id", "node_id"):
            patch.setattr(TaskIdentity, f"_{name}", 1)
        heard = _accounts(folder / "heard", [lambda grid: None] * 5)
        silent = _accounts(folder / "silent", [lambda grid: None, _half_are_silent, _all_are_silent, _all_fail, _one_is_there])
    spent = [[account.spent for account in accounts.values()] for _, accounts in heard]
    counted = all(
        charged == account.rounds == 1 + place // 2 for place, (charged, accounts) in enumerate(silent) for account in accounts.values()
    )
    return silent == heard and counted and bool(np.all(np.diff(spent[::2], axis=0) > 0))


def _half_are_silent(grid):
    grid.down.update(list(grid.nodes)[::2])


def _all_are_silent(grid):
    grid.down.update(grid.nodes)


def _all_fail(grid):
    for number, (_, context) in grid.nodes.items():
        grid.nodes[number] = (lambda message, context: Message(Error(code=0), reply_to=message), context)


def _one_is_there(grid):
    grid.gone.update(list(grid.nodes)[1:])


def _accounts(folder, happenings):
    """Rounds charged and everyone's account after each round, by the server and then on the disk; each time something else happens."""
    found = []
    for happens in happenings:
        grid = LocalGrid(clients([1.0, 3.0] * 8))
        with serving(folder, grid, {"bias": np.zeros(2)}, rounds=len(happenings), per_round=12, scheme="scale") as strategy:
            happens(grid)
            run(strategy, grid)
            found.append((strategy.ledger.charged, strategy.ledger.client_accounts(strategy.ledger.keys)))
        with Ledger(folder) as ledger:
            found.append((ledger.charged, ledger.client_accounts(ledger.keys)))
    return found
