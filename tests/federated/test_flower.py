"""The strategy and the client's part, over a grid that delivers in this process; test_deployment has the real one."""

import json
import logging
import time

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Error, Message, MetricRecord, RecordDict

import sartor
from sartor import federated
from sartor.errors import Infeasible, SartorError
from sartor.federated.flower import ACCOUNT, ENROL, PrivateFedAvg, StrategySettings, client_mod
from sartor.federated.ledger import Ledger
from sartor_testing.grids import START, LocalGrid, node, record

pytestmark = pytest.mark.usefixtures("identity")


def moves(vector=(0.0, 0.0, 0.0), scalar=0.0, seen=1):
    """A client that adds these to the model, and reports what it measured."""

    def train(message, context):
        arrays = message.content.array_records["arrays"]
        changed = {
            "vector": arrays["vector"].numpy() + np.array(vector, np.float32),
            "scalar": arrays["scalar"].numpy() + np.float32(scalar),
        }
        changed["seen"] = arrays["seen"].numpy() + seen
        return Message(RecordDict({"arrays": record(changed), "metrics": MetricRecord({"loss": 0.5})}), reply_to=message)

    return train


def answers(arrays):
    """A client that sends these, whatever it was sent."""
    return lambda message, context: Message(RecordDict({"arrays": record(arrays)}), reply_to=message)


def public(count, train=None, **config):
    """Nodes without a wish for privacy: no noise, and everyone takes part where as many are expected as there are."""
    return {10 + i: node(i, train or moves((1.0, 0, 0)), epsilon="inf", delta=1e-3, **config) for i in range(count)}


def start(folder, grid, *, rounds=1, per_round=None, num_rounds=None, **options):
    options = {"min_clients": len(grid.nodes), "wait": 0.2, **options}
    strategy = PrivateFedAvg(str(folder), StrategySettings(rounds=rounds, per_round=per_round or len(grid.nodes), **options))
    with pytest.warns(sartor.NoNoise) if not Ledger.is_in(folder) else _nothing():
        result = strategy.start(grid, record(), num_rounds)
    return strategy, {name: array.numpy() for name, array in result.arrays.items()}


def begun(folder, *, clients, rounds):
    """A run over public clients, enrolled and planned, before its first round."""
    grid = LocalGrid(public(clients))
    strategy = PrivateFedAvg(str(folder), StrategySettings(rounds=rounds, per_round=clients, min_clients=clients, wait=0.2))
    with pytest.warns(sartor.NoNoise):
        strategy.begin(grid, record())
    return grid, strategy


def _nothing():
    import contextlib

    return contextlib.nullcontext()


def test_without_noise_the_model_moves_by_the_clipped_sum_over_the_clients_expected(tmp_path):
    nodes = public(4)
    nodes[10] = node(0, moves((3.0, 0, 0), 4.0), epsilon="inf", delta=1e-3)
    _, arrays = start(tmp_path, LocalGrid(nodes), clip=1.0)
    assert arrays["vector"][0] == pytest.approx((3 + 0.6) / 4)
    assert arrays["scalar"] == pytest.approx(0.8 / 4)
    assert arrays["seen"] == 0
    assert arrays["vector"].dtype == np.float32


@pytest.mark.parametrize(
    "bad",
    [
        {"vector": np.array([np.nan, 0, 0], np.float32), "scalar": np.zeros((), np.float32), "seen": np.array(0)},
        {"vector": np.zeros(4, np.float32), "scalar": np.zeros((), np.float32), "seen": np.array(0)},
        {"vector": np.ones(3, np.float32)},
        {"vector": np.ones(3, np.float32), "scalar": np.zeros((), np.float32), "other": np.array(0)},
        {},
    ],
)
def test_answers_that_are_no_update_change_nothing(tmp_path, bad):
    nodes = public(4)
    nodes[12] = node(2, answers(bad), epsilon="inf", delta=1e-3)
    _, arrays = start(tmp_path, LocalGrid(nodes))
    assert arrays["vector"][0] == pytest.approx(3 / 4)


def test_bytes_that_are_no_array_and_two_records_change_nothing(tmp_path):
    broken = ArrayRecord({name: Array("float32", (3,), "numpy.ndarray", b"nonsense") for name in START})
    nodes = public(4)
    nodes[12] = node(2, lambda message, context: Message(RecordDict({"arrays": broken}), reply_to=message), epsilon="inf", delta=1e-3)
    two = RecordDict({"arrays": record(), "more": record()})
    nodes[13] = node(3, lambda message, context: Message(two, reply_to=message), epsilon="inf", delta=1e-3)
    _, arrays = start(tmp_path, LocalGrid(nodes))
    assert arrays["vector"][0] == pytest.approx(2 / 4)


def test_an_answer_is_used_once_and_late_ones_never(tmp_path):
    grid, kept = LocalGrid(public(3)), []

    injected = []

    def extra(replies):
        training = [reply for reply in replies if reply.metadata.message_type == "train"]
        if not training:
            return replies
        late, kept[:] = list(kept), training
        injected.extend(late)
        return [*late, *replies, *training[:1]]  # the last round's come again before this one's, and one answers twice

    grid.extra = extra
    _, arrays = start(tmp_path, grid, rounds=3)
    assert arrays["vector"][0] == pytest.approx(3.0)
    assert len(injected) == 6


def test_a_round_is_aggregated_once_and_never_before_it_is_charged(tmp_path):
    grid, strategy = begun(tmp_path, clients=3, rounds=2)
    with pytest.raises(SartorError, match="exactly once"):
        strategy.aggregate_train(1, [])
    replies = list(grid.send_and_receive(strategy.configure_train(1, record(), ConfigRecord(), grid)))
    strategy.aggregate_train(1, replies)
    with pytest.raises(SartorError, match="exactly once"):
        strategy.aggregate_train(1, replies)
    assert strategy._model["vector"][0] == pytest.approx(1.0)
    assert strategy.ledger.charged == 1
    strategy.ledger.close()


def test_a_client_that_drops_out_contributes_zero_and_is_charged_like_everyone(tmp_path):
    grid, strategy = begun(tmp_path, clients=4, rounds=2)
    grid.down.add(11)
    grid.gone.add(12)
    for number in (1, 2):
        replies = grid.send_and_receive(strategy.configure_train(number, record(), ConfigRecord(), grid))
        strategy.aggregate_train(number, replies)
    assert strategy._model["vector"][0] == pytest.approx(2 * 2 / 4)
    assert strategy.ledger.client_account("key 1").rounds == 2
    strategy.ledger.close()


def test_a_node_that_comes_back_under_another_number_keeps_its_account(tmp_path):
    grid, strategy = begun(tmp_path, clients=3, rounds=3)
    grid.gone.add(11)
    grid.nodes[77] = node(1, moves((1.0, 0, 0)))  # another node: the same key
    grid.nodes[78] = node(9, moves((1.0, 0, 0)), epsilon="inf", delta=1e-3)  # too late for this plan
    messages = strategy.configure_train(1, record(), ConfigRecord(), grid)
    assert sorted(message.metadata.dst_node_id for message in messages) == [10, 12, 77]
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert strategy._model["vector"][0] == pytest.approx(1.0)
    assert strategy.ledger.keys == ("key 0", "key 1", "key 2")
    assert strategy.ledger.client_account("key 1").epsilon == np.inf
    strategy.ledger.close()


@pytest.mark.parametrize(
    "said",
    [
        {"epsilon": 0.5, "delta": 1e-3},
        {"epsilon": "inf", "delta": 1e-4},
        {"epsilon": 0.0},
        {"epsilon": "much"},
        {"privacy-level": "unheard of"},
        {"delta": 1e-9},
    ],
)
def test_a_client_that_comes_back_allowing_less_is_not_asked_any_more_and_gets_its_account(tmp_path, said):
    grid, strategy = begun(tmp_path, clients=3, rounds=3)
    grid.gone.add(11)
    grid.nodes[77] = node(1, moves((1.0, 0, 0)), **said)
    messages = strategy.configure_train(1, record(), ConfigRecord(), grid)
    assert sorted(message.metadata.dst_node_id for message in messages) == [10, 12]
    assert messages[0].content.config_records["config"]["server-round"] == 1
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert strategy._model["vector"][0] == pytest.approx(2 / 3)
    grid.sent.clear()
    strategy.send_accounts(grid)
    assert sorted(message.metadata.dst_node_id for message in grid.sent) == [10, 12, 77]
    strategy.ledger.close()
    grid.gone = {77}  # the old node again, which says what it said before
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=3, per_round=3, min_clients=2, wait=0.2))
    again.begin(grid, record())
    messages = again.configure_train(1, record(), ConfigRecord(), grid)
    assert sorted(message.metadata.dst_node_id for message in messages) == [10, 12]
    again.ledger.close()


def test_no_round_is_charged_while_nobody_is_there(tmp_path):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=4, num_rounds=1)
    with pytest.raises(SartorError, match="none of the run's clients answered"):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=0.1)).start(LocalGrid({}), record())
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=0.1))
    again.begin(grid, record())
    grid.gone = {10, 11, 12}
    with pytest.raises(SartorError, match="none of the run's clients answered"):
        again.configure_train(1, record(), ConfigRecord(), grid)
    assert again.ledger.charged == 1
    grid.gone = {10, 11}  # one is enough to go on
    assert len(list(again.configure_train(1, record(), ConfigRecord(), grid))) == 1
    again.ledger.close()


def test_a_client_that_has_withdrawn_is_nobody_to_ask(tmp_path):
    grid, strategy = begun(tmp_path, clients=2, rounds=3)
    strategy.ledger.withdraw(0)
    grid.gone = {11}
    with pytest.raises(SartorError, match="none of the run's clients answered"):
        strategy.configure_train(1, record(), ConfigRecord(), grid)
    assert strategy.ledger.charged == 0
    strategy.ledger.close()


def test_a_model_that_is_no_longer_finite_spends_no_further_rounds(tmp_path):
    grid = LocalGrid(public(3, moves((3e38, 0, 0))))
    with pytest.warns(sartor.NoNoise), pytest.raises(SartorError, match="no longer finite"), np.errstate(over="ignore"):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=6, per_round=3, min_clients=3, wait=0.2, clip=1e300, lr=10.0)).start(
            grid, record()
        )
    with Ledger(tmp_path) as ledger:
        assert ledger.charged == 1


@pytest.mark.parametrize(
    ("other", "named"),
    [
        ({"optimizer": "adam"}, "server's name"),
        ({"lr": 0.001}, "server's lr"),
        ({"momentum": 0.5}, "server's momentum"),
        ({"options": {"public_rate": 0.5}}, "public_rate"),
        ({"delta": 1e-9}, "delta"),
        ({"policy": sartor.Policy({"open": 8.0}, delta=1e-5)}, "policy"),
        ({"adaptive": federated.AdaptiveClip()}, "adaptive"),
        ({"undeclared": "refuse"}, "undeclared"),
        ({"task": {"seed": 8}}, "task's seed"),
    ],
)
def test_a_run_goes_on_under_its_own_settings_alone(tmp_path, other, named):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=4, num_rounds=1)
    with pytest.raises(SartorError, match=f"other settings \\({named}\\)"):
        start(tmp_path, grid, rounds=4, **other)
    with Ledger(tmp_path) as ledger:
        assert ledger.charged == 1


@pytest.mark.parametrize(
    "arrays",
    [
        {**START, "vector": np.zeros((2, 3), np.float32)},
        {**START, "vector": np.zeros(3)},
        {**dict(reversed(START.items())), "other": np.zeros(3, np.float32)},
        {("weight" if name == "vector" else name): array for name, array in START.items()},
        {"vector": START["vector"]},
    ],
)
def test_a_run_goes_on_with_its_own_model_alone(tmp_path, arrays):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=4, num_rounds=1)
    with pytest.raises(SartorError, match=r"other settings \(arrays\)"):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=0.2)).start(grid, record(arrays))


def test_a_state_without_a_clip_is_refused_before_anything_is_charged(tmp_path):
    grid = LocalGrid(public(3))
    strategy, _ = start(tmp_path, grid, rounds=4, num_rounds=1)
    with Ledger(tmp_path) as ledger:
        ledger.save({"server": strategy._optimizer.state()})
    with pytest.raises(SartorError, match="no clip"):
        start(tmp_path, grid, rounds=4)
    with Ledger(tmp_path) as ledger:
        assert ledger.charged == 1


def test_masks_do_not_keep_a_client_from_contributing(tmp_path):
    begin = {"vector": np.zeros(3, np.float32), "mask": np.array([True, False])}

    def train(message, context):
        arrays = message.content.array_records["arrays"]
        return Message(RecordDict({"arrays": record({"vector": arrays["vector"].numpy() + 0.1, "mask": ~begin["mask"]})}), reply_to=message)

    grid = LocalGrid(public(2, train))
    with pytest.warns(sartor.NoNoise):
        result = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=1, per_round=2, min_clients=2, wait=0.2)).start(grid, record(begin))
    assert result.arrays["vector"].numpy() == pytest.approx(np.full(3, 0.1))
    assert result.arrays["mask"].numpy().tolist() == [True, False]


def test_a_client_whose_app_fails_sends_an_empty_answer_and_not_a_word(tmp_path, caplog):
    def fails(message, context):
        raise ValueError("119 rows")

    grid, replies = LocalGrid({**public(2), 30: node(9, fails, epsilon="inf", delta=1e-3)}), []
    grid.extra = lambda found: replies.extend(found) or found
    _, arrays = start(tmp_path, grid)
    assert arrays["vector"][0] == pytest.approx(2 / 3)
    assert all(reply.has_content() and "119" not in str(reply.content) for reply in replies)
    assert "119 rows" in caplog.text  # the client's own log


def test_a_client_that_fails_once_is_asked_again_and_late_ones_are_waited_for(tmp_path):
    grid, failures = LocalGrid(public(3)), [11]
    deliver = grid.send_and_receive

    def flaky(messages, *, timeout=None):
        found = deliver(messages, timeout=timeout)
        lost = [reply for reply in found if reply.metadata.src_node_id in failures]
        if any(message.metadata.dst_node_id in failures for message in messages):
            failures.clear()
        return [reply for reply in found if reply not in lost] + [
            Message(Error(code=0, reason="busy"), reply_to=asked) for asked in messages if asked.metadata.dst_node_id == 11 and lost
        ]

    grid.send_and_receive = flaky
    strategy, _ = start(tmp_path, grid, wait=5.0)
    assert strategy.ledger.keys == ("key 0", "key 1", "key 2")


@pytest.mark.parametrize(
    ("config", "given", "declared"),
    [
        ({"privacy-level": "strict", "epsilon": 8.0}, {}, {"level": "strict", "epsilon": 8.0}),
        ({"delta": 1e-9}, {"level": "open"}, {"level": "open", "delta": 1e-9}),
        ({"epsilon": 1.0}, {"level": "open"}, {"epsilon": 1.0}),
        ({"privacy-level": "strict"}, {"epsilon": 8.0}, {"level": "strict"}),
        ({}, {"epsilon": lambda context: 2}, {"epsilon": 2.0}),
        ({"epsilon": "much"}, {}, {"epsilon": "much"}),
        ({"privacy-level": 1}, {}, {"level": "1"}),
        ({}, {"epsilon": lambda context: {}["patient 7"]}, {"epsilon": "unknown"}),
        ({}, {"epsilon": [1.0]}, {"epsilon": "unknown"}),
    ],
)
def test_a_client_declares_what_its_node_says_before_what_its_app_says(config, given, declared):
    context = Context(run_id=1, node_id=1, node_config={"client-key": "me", **config}, state=RecordDict(), run_config={})
    asked = Message(RecordDict(), dst_node_id=1, message_type=ENROL)
    reply = client_mod(**given)(asked, context, moves())
    assert dict(reply.content.config_records["sartor"]) == {"key": "me", **declared}
    context.node_config["client-key"] = ""
    assert "key" not in client_mod()(asked, context, moves()).content.config_records["sartor"]
    assert not list(client_mod(lambda context: {}["a key"])(asked, _without_key(context), moves()).content)
    training = Message(RecordDict({"arrays": record()}), dst_node_id=1, message_type="train")
    assert not list(client_mod()(training, context, lambda *_: None).content)


def _without_key(context):
    del context.node_config["client-key"]
    return context


def test_a_node_that_is_silent_is_asked_ever_more_rarely(tmp_path):
    grid = LocalGrid(public(3))
    grid.nodes[90] = node(9, moves(), epsilon="inf", delta=1e-3)
    grid.down.add(90)
    with pytest.warns(sartor.NoNoise):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=40, per_round=3, min_clients=3, wait=0.2)).start(grid, record())
    assert 4 <= sum(message.metadata.dst_node_id == 90 for message in grid.sent) <= 8


def test_a_client_that_was_busy_when_the_server_came_back_takes_part_again(tmp_path):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=12, num_rounds=1)
    grid.down = {11, 12}
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=12, per_round=3, wait=0.2))
    again.begin(grid, record())
    asked = []
    for number in range(11):
        if number == 3:
            grid.down = set()
        messages = list(again.configure_train(number + 1, record(), ConfigRecord(), grid))
        asked.append({message.metadata.dst_node_id for message in messages})
        again.aggregate_train(number + 1, grid.send_and_receive(messages))
    assert asked[0] == {10}
    assert asked[-1] == {10, 11, 12}
    again.ledger.close()


@pytest.mark.parametrize("seen_gone", [True, False])
def test_a_client_that_allows_less_through_the_same_node_is_noticed(tmp_path, seen_gone):
    grid, strategy = begun(tmp_path, clients=3, rounds=4)
    if seen_gone:
        grid.gone = {11}
        strategy.configure_train(1, record(), ConfigRecord(), grid)
        grid.gone = set()
    grid.nodes[11] = node(1, moves((1.0, 0, 0)), epsilon=0.001, delta=1e-9)
    messages = list(strategy.configure_train(2, record(), ConfigRecord(), grid))
    assert len(messages) == (2 if seen_gone else 3)
    strategy.aggregate_train(2, grid.send_and_receive(messages))
    assert strategy._model["vector"][0] == pytest.approx(2 / 3)  # its answer says what it allows now, and is not used
    assert strategy.ledger.withdrawn == {1}
    strategy.ledger.close()


def test_an_answer_for_another_client_is_not_used(tmp_path):
    grid, strategy = begun(tmp_path, clients=2, rounds=2)
    grid.nodes[10] = node(1, moves((1.0, 0, 0)), epsilon="inf", delta=1e-3)  # the node of client 0 now says that it is client 1
    messages = list(strategy.configure_train(1, record(), ConfigRecord(), grid))
    strategy.aggregate_train(1, grid.send_and_receive(messages))
    assert strategy._model["vector"][0] == pytest.approx(1 / 2)
    strategy.ledger.close()


def test_a_node_that_speaks_for_another_client_is_sent_that_clients_account_alone(tmp_path):
    grid, strategy = begun(tmp_path, clients=2, rounds=3)
    grid.gone = {10}
    strategy.configure_train(1, record(), ConfigRecord(), grid)
    grid.gone = {11}
    grid.nodes[10] = node(1, moves(), epsilon="inf", delta=1e-3)
    grid.sent.clear()
    strategy.send_accounts(grid)
    assert [message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == ACCOUNT] == [10]
    strategy.ledger.close()


def test_a_client_may_withdraw_while_a_server_comes_back_and_all_may(tmp_path, monkeypatch):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=4, num_rounds=1)
    monkeypatch.setattr(time, "sleep", lambda seconds: pytest.fail("the server waits, though nobody who may be asked is missing"))
    for number in range(3):
        grid.nodes[10 + number] = node(number, moves(), epsilon=0.5, delta=1e-3)
        again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=5.0))
        if number < 2:
            again.begin(grid, record())
            assert len(again.ledger.withdrawn) == number + 1
            again.ledger.close()
        else:
            with pytest.raises(SartorError, match="all clients have withdrawn"):
                again.begin(grid, record())
    with Ledger(tmp_path) as ledger:
        assert ledger.charged == 1


def test_a_server_that_comes_back_waits_for_its_clients(tmp_path):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=4, num_rounds=1)
    late, grid.gone = [{11}, {11}, {11}], {11}
    listed = grid.get_node_ids

    def slowly():
        grid.gone = late.pop() if late else set()
        return listed()

    grid.get_node_ids = slowly
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=10.0))
    again.begin(grid, record())
    messages = again.configure_train(1, record(), ConfigRecord(), grid)
    assert {message.metadata.dst_node_id for message in messages} == {10, 11, 12}
    again.ledger.close()
    grid.gone = {12}  # and goes on without one that stays away
    grid.get_node_ids = listed
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=0.2))
    again.start(grid, record())
    assert again.ledger.charged == 4


def test_a_run_that_is_over_gives_its_model_with_nobody_there(tmp_path):
    start(tmp_path, LocalGrid(public(3)), rounds=2)
    result = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=2, per_round=3, min_clients=3, wait=0.1)).start(LocalGrid({}), record())
    assert result.arrays["vector"].numpy()[0] == pytest.approx(2.0)


def test_enrolment_waits_for_somebody_who_declares(tmp_path):
    grid = LocalGrid({10: node(0, moves()), 11: node(1, moves()), 12: node(2, moves(), epsilon="inf", delta=1e-3)})
    looks, grid.gone = [], {12}
    listed = grid.get_node_ids

    def later():
        looks.append(1)
        grid.gone = {12} if len(looks) < 3 else set()
        return listed()

    grid.get_node_ids = later
    strategy = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=1, per_round=1, min_clients=1, wait=10.0))
    with pytest.warns(sartor.NoNoise):
        strategy.start(grid, record())
    assert strategy.ledger.keys == ("key 2",)


def test_a_strategy_that_is_used_again_remembers_nobody(tmp_path):
    grid = LocalGrid({10: node(0, moves(), epsilon="much"), 11: node(1, moves(), epsilon="inf", delta=1e-3)})
    strategy = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=2, per_round=2, min_clients=2, wait=0.2))
    with pytest.raises(SartorError, match="only 1 of 2 required clients"):
        strategy.start(grid, record())
    grid.nodes[10] = node(0, moves(), epsilon="inf", delta=1e-3)  # it corrects itself
    with pytest.warns(sartor.NoNoise):
        strategy.start(grid, record(), 1)
    assert strategy.ledger.keys == ("key 0", "key 1")
    grid.nodes = {10: node(1, moves())}  # the other client, through the node of the first
    grid.sent.clear()
    strategy.start(grid, record())
    told = [message for message in grid.sent if message.metadata.message_type == ACCOUNT]
    assert [message.metadata.dst_node_id for message in told] == [10]
    assert len({message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == "train"}) == 1


def test_a_round_is_on_the_disk_before_anyone_is_drawn(tmp_path, monkeypatch):
    grid, strategy = begun(tmp_path, clients=3, rounds=3)

    def draw(step):
        assert json.loads((tmp_path / "rounds.json").read_text())["charged"] == step + 1
        raise KeyboardInterrupt

    monkeypatch.setattr(strategy._sampler, "draw", draw)
    with pytest.raises(KeyboardInterrupt):
        strategy.configure_train(1, record(), ConfigRecord(), grid)
    strategy.ledger.close()


def test_clients_are_sent_their_accounts_also_when_a_run_is_cut_off(tmp_path):
    grid = LocalGrid(public(3))
    strategy = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=4, per_round=3, min_clients=3, wait=0.2))

    def evaluate(number, arrays):
        if number == 2:
            raise ValueError("no public data")

    with pytest.warns(sartor.NoNoise), pytest.raises(ValueError, match="no public data"):
        strategy.start(grid, record(), evaluate_fn=evaluate)
    accounts = [context.state["sartor-account"] for _, context in grid.nodes.values()]
    assert [account["rounds"] for account in accounts] == [2, 2, 2]


def test_a_folder_is_free_again_after_an_error(tmp_path):
    grid = LocalGrid(public(3))
    start(tmp_path, grid, rounds=2, num_rounds=1)
    with pytest.raises(SartorError, match="cannot be continued with a seed"):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=2, per_round=3, wait=0.2, seed=1)).start(grid, record())
    Ledger(tmp_path).close()


def test_a_round_is_charged_before_anyone_is_asked(tmp_path):
    grid, strategy = begun(tmp_path, clients=3, rounds=3)
    assert json.loads((tmp_path / "rounds.json").read_text())["charged"] == 0
    strategy.configure_train(1, record(), ConfigRecord(), grid)
    assert json.loads((tmp_path / "rounds.json").read_text())["charged"] == 1
    strategy.ledger.close()  # as a crash would; the round is never run again
    with pytest.raises(SartorError, match="other settings"):
        PrivateFedAvg(str(tmp_path), StrategySettings(rounds=99, per_round=99, wait=0.2)).start(grid, record())
    again = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=3, per_round=3, wait=0.2))
    result = again.start(grid, record())
    assert again.ledger.charged == 3
    assert result.arrays["vector"].numpy()[0] == pytest.approx(2.0)


def test_a_server_that_starts_again_goes_on_where_it_was(tmp_path):
    grid = LocalGrid(public(3))
    options = {"rounds": 4, "optimizer": "sgd", "momentum": 0.5, "lr": 0.5}
    whole = start(tmp_path / "whole", grid, **options)[1]
    start(tmp_path / "cut", grid, num_rounds=2, **options)
    strategy, rest = start(tmp_path / "cut", grid, **options)
    assert strategy.ledger.charged == 4
    assert rest["vector"] == pytest.approx(whole["vector"])
    assert start(tmp_path / "cut", grid, **options)[1]["vector"] == pytest.approx(whole["vector"])  # nothing is left to run


def test_clients_declare_budgets_and_get_their_own_account(tmp_path):
    levels = sartor.Policy({"strict": 1.0, "open": 3.0}, delta=1e-3)
    nodes = {i: node(i, moves(), **({"privacy-level": "strict" if i % 2 else "open"} if i < 18 else {})) for i in range(20)}
    grid = LocalGrid(nodes)
    strategy = PrivateFedAvg(
        str(tmp_path), StrategySettings(rounds=5, per_round=10, min_clients=20, wait=0.2, policy=levels, accountant="rdp")
    )
    strategy.start(grid, record())
    for number, (_, context) in nodes.items():
        account = dict(context.state.config_records["sartor-account"])
        assert account["epsilon"] == (3.0 if number % 2 == 0 and number < 18 else 1.0)
        assert 0 < account["spent"] <= account["epsilon"]
        assert account["rounds"] == 5
    told = [message for message in grid.sent if message.metadata.message_type == ACCOUNT]
    assert sorted(message.metadata.dst_node_id for message in told) == list(range(20))


def test_nodes_that_do_not_declare_are_refused_where_that_was_asked(tmp_path):
    nodes = {i: node(i, moves(), **({"epsilon": 2.0, "delta": 1e-3} if i < 12 else {})) for i in range(15)}
    options = {"rounds": 2, "per_round": 5, "wait": 0.2, "undeclared": "refuse", "accountant": "rdp"}
    with pytest.raises(SartorError, match=r"only 12 of 13 required clients enrolled .*: fewer than 10 others declared no acceptable"):
        PrivateFedAvg(str(tmp_path), StrategySettings(min_clients=13, **options)).start(LocalGrid(nodes), record())
    strategy = PrivateFedAvg(str(tmp_path), StrategySettings(min_clients=12, **options))
    strategy.start(LocalGrid(nodes), record())
    assert len(strategy.ledger.keys) == 12


def test_two_nodes_under_one_key_take_no_part_whether_they_agree_or_not(tmp_path):
    nodes = {i: node(i, moves(), epsilon=2.0 + i % 2, delta=1e-3) for i in range(12)}
    nodes[50] = node(3, moves(), epsilon=80.0, delta=1e-3)  # somebody claims to be client 3
    nodes[51] = node(4, moves(), epsilon=2.0, delta=1e-3)  # and client 4 has two nodes
    grid = LocalGrid(nodes)
    strategy = PrivateFedAvg(
        str(tmp_path), StrategySettings(rounds=2, per_round=10, min_clients=10, wait=0.2, scheme="uniform", accountant="rdp")
    )
    strategy.start(grid, record())
    assert len(strategy.ledger.keys) == 10
    assert strategy.ledger.client("key 3") is None
    assert strategy.ledger.client("key 4") is None
    asked = [message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == "train"]
    assert sorted(set(asked)) == [0, 1, 2, *range(5, 12)]


def test_too_few_clients_and_impossible_plans_stop_before_anything_is_written(tmp_path):
    nodes = {i: node(i, moves(), epsilon=1.0, delta=1e-3) for i in range(12)}
    with pytest.raises(SartorError, match="only 12 of 13 required clients enrolled"):
        PrivateFedAvg(str(tmp_path / "a"), StrategySettings(rounds=2, per_round=5, min_clients=13, wait=0.1)).start(
            LocalGrid(nodes), record()
        )
    adaptive = federated.AdaptiveClip(noise=0.01)
    with pytest.raises(Infeasible):
        PrivateFedAvg(str(tmp_path / "b"), StrategySettings(rounds=2, per_round=5, min_clients=12, adaptive=adaptive)).start(
            LocalGrid(nodes), record()
        )
    assert not Ledger.is_in(tmp_path / "a")
    assert not Ledger.is_in(tmp_path / "b")


def test_metrics_stay_with_the_client_and_evaluation_is_empty():
    asked = Message(RecordDict({"arrays": record()}), dst_node_id=1, message_type="train")
    context = Context(run_id=1, node_id=1, node_config={}, state=RecordDict(), run_config={})
    reply = client_mod()(asked, context, moves((1.0, 0, 0)))
    assert sorted(reply.content) == ["arrays", "sartor"]  # and what it allows
    assert not reply.content.metric_records
    asked = Message(RecordDict({"arrays": record()}), dst_node_id=1, message_type="evaluate")

    def evaluate(message, context):
        return Message(RecordDict({"metrics": MetricRecord({"accuracy": 0.9})}), reply_to=message)

    assert not list(client_mod()(asked, context, evaluate).content)
    assert not list(client_mod()(asked, context, answers(START)).content)  # a model that was only to be evaluated stays, too


def test_nobody_who_was_drawn_is_logged_or_returned(tmp_path, caplog, capfd):
    nodes = {4_242_000 + i: node(i, moves(), epsilon=3.0, delta=1e-3) for i in range(30)}
    strategy = PrivateFedAvg(str(tmp_path), StrategySettings(rounds=3, per_round=10, min_clients=30, wait=0.2, accountant="rdp"))
    with caplog.at_level(logging.DEBUG):
        result = strategy.start(LocalGrid(nodes), record())
    out, err = capfd.readouterr()
    assert not any(mark in text for mark in ("4242", "key ") for text in (caplog.text, out, err, str(result), repr(strategy)))
    assert not result.train_metrics_clientapp


def test_a_seed_is_marked_and_cannot_continue_a_private_run(tmp_path):
    nodes = {i: node(i, moves(), epsilon=3.0, delta=1e-3) for i in range(12)}
    options = {"rounds": 3, "per_round": 5, "min_clients": 12, "wait": 0.2, "accountant": "rdp"}
    seeded = PrivateFedAvg(str(tmp_path / "seeded"), StrategySettings(seed=1, **options))
    seeded.start(LocalGrid(nodes), record())
    assert not seeded.ledger.client_account("key 1").private
    PrivateFedAvg(str(tmp_path / "private"), StrategySettings(**options)).start(LocalGrid(nodes), record(), 1)
    with pytest.raises(SartorError, match="cannot be continued with a seed"):
        PrivateFedAvg(str(tmp_path / "private"), StrategySettings(seed=1, **options)).start(LocalGrid(nodes), record())
