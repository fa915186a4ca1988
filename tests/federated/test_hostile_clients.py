"""What one client can declare and send: nothing of it keeps the others from their plan, or gets into their arrays."""

import logging

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.task_identity import TaskIdentity

import sartor
from sartor.errors import SartorError
from sartor.federated import Limits, Malformed, ServerOptimizer, enrol, update_of
from sartor.federated.client import ACCOUNT, REFUSED, private
from sartor.federated.flower import PrivateFedAvg, StrategySettings
from sartor.federated.ledger import Ledger

pytestmark = pytest.mark.filterwarnings("ignore::sartor.errors.NoNoise")


@pytest.fixture
def fleet(monkeypatch):
    """As much of a grid as a strategy uses: apps that answer at once. `fleet(trains, configs)` makes one, with a node for each."""
    for name in ("run_id", "task_id", "node_id"):
        monkeypatch.setattr(TaskIdentity, f"_{name}", 1)

    class Fleet:
        def __init__(self, trains, configs):
            self.apps, self.sent, self.away = {}, [], set()
            for number, (train, config) in enumerate(zip(trains, configs, strict=True)):
                app = ClientApp()
                app.train()(train)
                config = {"client-key": f"key {number}", **config}
                context = Context(run_id=1, node_id=number, node_config=config, state=RecordDict(), run_config={})
                self.apps[number] = private(app), context

        def get_node_ids(self):
            return [number for number in self.apps if number not in self.away]

        def send_and_receive(self, messages, *, timeout=None):
            messages = list(messages)
            self.sent.extend(messages)
            return [app(message, context) for message in messages for app, context in [self.apps[message.metadata.dst_node_id]]]

        def told(self, kind):
            """The nodes that were sent messages of a kind."""
            return [message.metadata.dst_node_id for message in self.sent if message.metadata.message_type == kind]

        def kept(self, number):
            """What a node keeps of what it was sent."""
            return dict(self.apps[number][1].state)

    return Fleet


START = ArrayRecord({"vector": Array(np.zeros(2))})
EXTREME = [
    {"epsilon": 0.001},
    {"epsilon": 1e300},
    {"epsilon": 5e-324},
    {"epsilon": 0.05, "delta": 1e-9},
    {"delta": 1e-300},
    {"delta": 1 - 1e-16},
]


def train(message, context):
    return Message(RecordDict({"arrays": message.content.array_records["arrays"]}), reply_to=message)


def declares(said, count=12):
    """What clients say: twelve ordinary ones, and one more."""
    return [{"epsilon": float(1 + i % 3), "delta": 1e-3} for i in range(count)] + [{"epsilon": 2.0, "delta": 1e-3, **said}]


def server(folder, **options):
    how = {"rounds": 3, "per_round": 6, "min_clients": 12, "wait": 0.2, "accountant": "rdp", **options}
    return PrivateFedAvg(str(folder), StrategySettings(**how))


@pytest.mark.parametrize("said", EXTREME)
def test_one_extreme_client_takes_no_part_and_keeps_nobody_from_the_plan(tmp_path, fleet, said):
    grid = fleet([train] * 13, declares(said))
    strategy = server(tmp_path)
    strategy.start(grid, START)
    assert strategy.ledger.keys == tuple(sorted(f"key {i}" for i in range(12)))
    assert sorted(strategy.ledger.plan.accounted.epsilon.tolist()) == [1, 2, 3]
    # it is told why, and nobody else is; it is asked for nothing and has no account
    assert grid.told(REFUSED) == [12]
    assert "takes an epsilon from 0.1 to 100" in grid.kept(12)["sartor-refused"]["why"]
    assert 12 not in grid.told("train")
    assert sorted(grid.told(ACCOUNT)) == list(range(12))
    assert all("sartor-refused" not in grid.kept(number) for number in range(12))


def test_an_extreme_client_that_answers_first_does_not_end_the_enrolment(tmp_path, fleet):
    grid = fleet([train] * 13, declares({"epsilon": 1e300}))
    grid.away, looks, listed = set(range(12)), [], grid.get_node_ids

    def later():
        looks.append(1)
        if len(looks) == 3:
            grid.away = set()
        return listed()

    grid.get_node_ids = later
    strategy = server(tmp_path, min_clients=1, wait=20.0)
    strategy.start(grid, START)
    assert len(strategy.ledger.keys) == 12


def test_clients_without_a_budget_do_not_get_that_of_one_who_takes_no_part():
    found = enrol({"a": {"epsilon": 1.0}, "b": {"epsilon": 0.001, "delta": 1e-300}, "c": {}}, delta=1e-5)
    assert found.keys == ("a", "c")
    assert found.budgets.epsilon.tolist() == [1.0, 1.0]
    assert found.budgets.delta.tolist() == [1e-5, 1e-5]
    assert list(found.refused) == ["b"]


BUDGET = st.fixed_dictionaries(
    {"epsilon": st.sampled_from([1e-300, 0.01, 0.1, 1.0, 100.0, 101.0, 1e300, np.inf]), "delta": st.sampled_from([1e-99, 1e-10, 1e-3, 0.5])}
)


@given(declared=st.dictionaries(st.sampled_from("abcdefgh"), BUDGET, min_size=1))
def test_who_takes_part_follows_from_each_declaration_alone(declared):
    alone = set()
    for key, said in declared.items():
        try:
            alone |= set(enrol({key: said}).keys)
        except SartorError:
            continue
    if not alone:
        with pytest.raises(SartorError, match="no client declared"):
            enrol(declared)
        return
    found = enrol(declared)
    assert set(found.keys) == alone
    assert set(found.refused) == set(declared) - alone


def test_limits_are_inclusive_and_public_clients_lie_within_them():
    limits = Limits(0.5, 8.0, 1e-6, 1e-3)
    assert all(limits.hold((epsilon, delta)) for epsilon in (0.5, 8.0, np.inf) for delta in (1e-6, 1e-3))
    assert not any(
        map(limits.hold, [(0.499, 1e-4), (8.01, 1e-4), (np.inf, 0.5), (1.0, 9e-7), (1.0, 0.0011), (np.nan, 1e-4), (1.0, np.nan)])
    )
    for wrong in ((0.0, 1.0), (2.0, 1.0), (1.0, np.inf), (np.nan, 1.0), (1.0, 2.0, 0.0), (1.0, 2.0, 1e-3, 1e-4), (1.0, 2.0, 1e-3, 1.0)):
        with pytest.raises(SartorError, match="must range from a positive floor"):
            Limits(*wrong)


def test_a_policy_or_a_delta_outside_of_the_limits_is_the_servers_own_mistake(tmp_path):
    for options in ({"policy": sartor.Policy({"strict": 0.01, "open": 8.0}, delta=1e-5)}, {"delta": 0.5}):
        with pytest.raises(SartorError, match="outside the server's limits"):
            server(tmp_path, **options)
    server(tmp_path, policy=sartor.Policy({"strict": 0.01, "open": 8.0}, delta=1e-5), limits=Limits(floor=0.01))


def test_a_run_goes_on_under_its_own_limits_alone(tmp_path, fleet):
    grid = fleet([train] * 13, declares({}))
    server(tmp_path).start(grid, START, 1)
    with pytest.raises(SartorError, match=r"other settings \(limits\)"):
        server(tmp_path, limits=Limits(floor=0.2)).start(grid, START)
    with Ledger(tmp_path) as ledger:
        assert ledger.charged == 1


def test_how_few_take_no_part_is_not_said(tmp_path, fleet, caplog):
    messages = set()
    for extreme in (0, 1, 9):
        said = [{"epsilon": 1e300 if i < extreme else 2.0, "delta": 1e-3} for i in range(extreme + 4)]
        with pytest.raises(SartorError) as error, caplog.at_level(logging.INFO, logger="sartor"):
            server(tmp_path, min_clients=12, wait=0.01).start(fleet([train] * len(said), said), START)
        messages.add(str(error.value))
    assert len(messages) == 1
    assert "only 4 of 12 required clients" in messages.pop()
    assert "1e+300" not in "".join(record.getMessage() for record in caplog.records if record.name != "sartor.federated.client")
    said = [{"epsilon": 1e300, "delta": 1e-3}] * 11
    with pytest.raises(SartorError, match=r"only 0 of \d+ required clients .*: 11 others declared no acceptable budget"):
        server(tmp_path, min_clients=12, wait=0.01).start(fleet([train] * 11, said), START)


def test_a_client_that_later_allows_more_than_the_ceiling_stays_and_one_below_the_floor_has_withdrawn(tmp_path, fleet):
    grid = fleet([train] * 13, declares({}))
    strategy = server(tmp_path, per_round=13, scheme="uniform", min_clients=13)
    strategy.begin(grid, START)
    for number, epsilon in ((0, 1e300), (1, 0.001)):
        grid.apps[number][1].node_config["epsilon"] = epsilon
    messages = list(strategy.configure_train(1, START, ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert {strategy.ledger.keys[client] for client in strategy.ledger.withdrawn} == {"key 1"}
    strategy.ledger.close()


ARRAYS = {"first": np.zeros(2), "second": np.zeros(2)}  # of one shape, so that only their names tell them apart
MOVES = {"first": np.array([0.3, 0.0]), "second": np.array([0.0, -0.4])}


def record(arrays):
    return ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})


@pytest.fixture
def nodes(fleet):
    """Clients without a wish for privacy, so that there is no noise."""
    return lambda trains: fleet(trains, [{"epsilon": "inf", "delta": 1e-3}] * len(trains))


def answers(order, names=None):
    """A client that sends its arrays in this order, under other names if they are given."""

    def train(message, context):
        sent = message.content.array_records["arrays"]
        found = {(names or {}).get(name, name): sent[name].numpy() + MOVES[name] for name in order}
        return Message(RecordDict({"arrays": record(found)}), reply_to=message)

    return train


def one_round(folder, grid, arrays=ARRAYS, **options):
    """The model after a further round of a server on this folder."""
    how = {"rounds": 4, "per_round": len(grid.apps), "min_clients": len(grid.apps), "wait": 0.2, **options}
    strategy = PrivateFedAvg(str(folder), StrategySettings(**how))
    strategy.begin(grid, record(arrays))
    try:
        messages = list(strategy.configure_train(1, record({}), ConfigRecord(), grid))
        found, _ = strategy.aggregate_train(1, grid.send_and_receive(messages))
    finally:
        strategy.ledger.close()
    return {name: array.numpy() for name, array in found.items()}


@pytest.mark.parametrize("order", [("first", "second"), ("second", "first")])
def test_arrays_of_an_answer_are_matched_by_name(tmp_path, nodes, order):
    found = one_round(tmp_path, nodes([answers(order)] * 2))
    assert list(found) == list(ARRAYS)
    assert all(found[name] == pytest.approx(MOVES[name]) for name in MOVES)


@pytest.mark.parametrize("names", [{"first": "third"}, {"first": "First"}, {"first": "second", "second": "first "}])
def test_a_client_whose_arrays_have_other_names_takes_no_part_in_the_round(tmp_path, nodes, names):
    found = one_round(tmp_path, nodes([answers(MOVES), answers(MOVES, names)]))
    assert all(found[name] == pytest.approx(MOVES[name] / 2) for name in MOVES)


@pytest.mark.parametrize("optimizer", [{"momentum": 0.5}, {"optimizer": "adam"}])
def test_a_run_that_goes_on_matches_its_state_by_name(tmp_path, nodes, optimizer):
    backwards = dict(reversed(ARRAYS.items()))
    for folder, second in (("same", ARRAYS), ("other", backwards)):
        one_round(tmp_path / folder, nodes([answers(MOVES)] * 2), **optimizer)
        one_round(tmp_path / folder, nodes([answers(("second", "first"))] * 2), second, **optimizer)
    same, other = (one_round(tmp_path / folder, nodes([answers(MOVES)] * 2), **optimizer) for folder in ("same", "other"))
    assert same["first"][0] > 0 > same["second"][1]
    assert all(np.array_equal(same[name], other[name]) for name in ARRAYS)


def test_a_server_and_its_state_know_arrays_by_name():
    one, other = ServerOptimizer(ARRAYS, momentum=0.9), ServerOptimizer(dict(reversed(ARRAYS.items())), momentum=0.9)
    one.step(dict(reversed(MOVES.items())))
    other.load(dict(reversed(one.state().items())))
    assert all(np.array_equal(one.model[name], MOVES[name]) and np.array_equal(other.model[name], MOVES[name]) for name in MOVES)
    one, other = one.step(MOVES), other.step(MOVES)
    assert all(np.array_equal(one[name], other[name]) for name in MOVES)
    with pytest.raises(Malformed, match="other names"):
        update_of({"first": np.zeros(2), "third": np.zeros(2)}, ARRAYS)
