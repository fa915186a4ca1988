"""A client given twice: refused wherever clients are given, before anything is planned, charged or asked under its name."""

import json

import numpy as np
import pytest

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")

import sartor
from sartor import federated
from sartor.errors import SartorError
from sartor.federated import Ledger, enrol, splits
from sartor.federated.client import ACCOUNT, REFUSED
from sartor.federated.enrolment import DECLARED_TWICE
from sartor.federated.flower import PrivateFedAvg, StrategySettings
from sartor.federated.task import Settings, Task
from sartor_testing.grids import LocalGrid, adds, ask, node, record, run, serving

pytestmark = pytest.mark.usefixtures("identity")

SPELLINGS = [("ward 7", "Ward  7"), ("7", "7.0"), ("7", "07"), ("ward", "ward\u200b")]


def named(key, number=0, **said):
    """A node that declares this key."""
    app, context = node(number, adds(0.1), **{"epsilon": 2.0, "delta": 1e-3, **said})
    context.node_config["client-key"] = key
    return app, context


def fleet(count=12, **more):
    """Nodes from 0 on, each under a key of its own, and those that are given, from 50 on."""
    others = {50 + place: made for place, made in enumerate(more.values())}
    return LocalGrid({**{i: named(f"key {i}", i) for i in range(count)}, **others})


def started(folder, grid, clients, **options):
    """A run to its end."""
    how = {"rounds": 3, "per_round": clients, "min_clients": clients, "wait": 0.2, "scheme": "uniform", "accountant": "rdp", **options}
    strategy = PrivateFedAvg(str(folder), StrategySettings(**how))
    strategy.start(grid, record())
    return strategy


def told(grid, kind):
    return sorted(message.metadata.dst_node_id for message in grid.sent if message.metadata.message_type == kind)


def heard(grid, number):
    """Why a node takes no part, by what it was sent."""
    return dict(grid.nodes[number][1].state.config_records["sartor-refused"])["why"]


# --- lists of clients ---


@pytest.mark.parametrize("pair", [("ward 7", "ward 7"), *SPELLINGS])
def test_budgets_ledgers_and_files_of_budgets_refuse_a_client_given_twice(tmp_path, pair):
    keys = [*(f"client {i}" for i in range(18)), *pair]
    budgets = sartor.Budgets([2.0] * 20, delta=1e-3)
    with pytest.raises(SartorError, match=r"appear more than once|may be one person"):
        sartor.Budgets([2.0] * 20, delta=1e-3, holders=keys)
    plan = federated.plan(budgets, rounds=2, per_round=4, accountant="rdp")
    with pytest.raises(SartorError, match=r"appear more than once|may be one person"):
        Ledger.create(tmp_path / "run", plan, keys, budgets)
    assert not (tmp_path / "run").exists()
    file = tmp_path / "budgets.csv"
    file.write_text("\n".join(["holder,epsilon,delta", *(f"{key},2.0,0.001" for key in keys)]))
    with pytest.raises(SartorError, match=r"appear more than once|may be one person"):
        sartor.Budgets.from_csv(file)


@pytest.mark.parametrize("pair", [("client 3", "client 3"), ("client 3", "Client 3")])
def test_a_ledger_file_with_a_repeated_client_is_refused(tmp_path, pair):
    budgets = sartor.Budgets([2.0] * 20, delta=1e-3)
    plan = federated.plan(budgets, rounds=2, per_round=4, accountant="rdp")
    Ledger.create(tmp_path, plan, [f"client {i}" for i in range(20)], budgets).close()
    document = json.loads((tmp_path / "clients.json").read_text())
    document["keys"][3], document["keys"][4] = pair
    (tmp_path / "clients.json").write_text(json.dumps(document))
    with pytest.raises(SartorError, match=r"appear more than once|may be one person"):
        Ledger(tmp_path)


def test_a_file_of_budgets_with_a_repeated_client_is_refused_by_a_task_and_by_the_command(tmp_path, capsys):
    from sartor.cli import main

    for again in ("2", "02", " 2.0"):
        file = tmp_path / "budgets.csv"
        file.write_text("\n".join(["holder,epsilon,delta", *(f"{key},2.0,0.001" for key in ("0", "1", "2", again))]))
        with pytest.raises(SartorError, match=r"appear more than once|may be one person"):
            _ = Task(Settings(clients=4, budgets=str(file))).budgets
        command = ["federate", "--dataset", "digits", "--clients", "4", "--per-round", "2", "--rounds", "2", "--budgets", str(file)]
        with pytest.raises(SystemExit) as ended:
            main([*command, "--out", str(tmp_path / "run")])
        assert ended.value.code == 2
        assert "error: 1 " in capsys.readouterr().err
        assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("pair", SPELLINGS)
def test_a_split_by_owners_refuses_one_who_may_be_two_clients(pair):
    with pytest.raises(SartorError, match="1 of 3 owners differ from another only in spaces"):
        splits.by_owner(np.array([pair[0], "other", pair[1], pair[0]]))
    assert [rows.tolist() for rows in splits.by_owner(np.array([pair[0], "other", pair[0]]))] in ([[0, 2], [1]], [[1], [0, 2]])


@pytest.mark.parametrize("owners", [["ann", ""], ["ann", "  "], [1.0, np.nan]])
def test_rows_of_nobody_are_no_client(owners):
    with pytest.raises(SartorError, match="no owner"):
        splits.by_owner(np.array(owners))


@pytest.mark.parametrize("pair", SPELLINGS)
def test_clients_whose_keys_may_be_one_take_no_part_and_change_nothing_for_others(pair):
    others = {"a": {"epsilon": 1.0}, "b": {"epsilon": 2.0}, "c": {}}
    found = enrol({**others, pair[0]: {"epsilon": 0.5}, pair[1]: {"epsilon": 0.5}}, delta=1e-5)
    assert found.keys == ("a", "b", "c")
    assert found.budgets == enrol(others, delta=1e-5).budgets
    assert found.refused == dict.fromkeys(sorted(pair), DECLARED_TWICE)


# --- nodes ---


@pytest.mark.parametrize("said", [{}, {"epsilon": 1.0}, {"epsilon": 80.0}])
def test_two_nodes_that_declare_one_key_are_both_refused_and_told_why(tmp_path, said):
    grid = fleet(more=named("key 3", **said))
    strategy = started(tmp_path, grid, 11)
    assert strategy.ledger.keys == tuple(sorted(f"key {i}" for i in range(12) if i != 3))
    assert strategy.ledger.plan.accounted.epsilon.tolist() == [2.0]
    assert told(grid, REFUSED) == [3, 50]
    assert heard(grid, 3) == heard(grid, 50) == DECLARED_TWICE
    assert not {3, 50} & set(told(grid, "train"))
    assert told(grid, ACCOUNT) == [i for i in range(12) if i != 3]


@pytest.mark.parametrize("pair", SPELLINGS)
def test_two_nodes_whose_keys_may_be_one_are_both_refused_and_keep_nobody_from_the_plan(tmp_path, pair):
    grid = fleet(one=named(pair[0]), two=named(pair[1]))
    assert len(started(tmp_path, grid, 12).ledger.keys) == 12
    assert told(grid, REFUSED) == [50, 51]
    assert not {50, 51} & set(told(grid, "train"))


def test_nodes_that_are_all_of_one_key_do_not_end_the_enrolment(tmp_path):
    """A server waits for others though those who are there declare usable budgets, and tells them why when time is over."""
    grid = LocalGrid({i: named(key, i) for i, key in enumerate(["ward 7", "Ward 7", "key", "key"])})
    with pytest.raises(SartorError, match=r"only 0 of 1 required clients .* fewer than 10 keys were declared twice, so that nobody"):
        started(tmp_path, grid, 1)
    assert told(grid, REFUSED) == [0, 1, 2, 3]
    assert not Ledger.is_in(tmp_path)


@pytest.mark.parametrize("keys", [["  "], ["\t", " "]])
def test_a_blank_key_is_none_and_keeps_nobody_from_the_plan(tmp_path, keys):
    grid = fleet(**{str(place): named(key) for place, key in enumerate(keys)})
    assert len(started(tmp_path, grid, 12).ledger.keys) == 12
    assert not {50, 51} & set(told(grid, "train"))


def test_a_second_node_that_comes_while_others_are_waited_for_leaves_both_out(tmp_path):
    grid, looks = fleet(more=named("key 3")), []
    listed = grid.get_node_ids

    def later():
        looks.append(1)
        grid.gone = {10, 11, 50} if len(looks) < 2 else {10, 11} if len(looks) < 3 else set()
        return listed()

    grid.get_node_ids = later
    strategy = started(tmp_path, grid, 11, wait=20.0)
    assert strategy.ledger.client("key 3") is None
    assert len(strategy.ledger.keys) == 11


def test_a_second_node_under_the_key_of_a_planned_client_takes_nobodys_place(tmp_path):
    grid, how = fleet(), {"rounds": 8, "per_round": 12, "scheme": "uniform", "min_clients": 12}
    with serving(tmp_path, grid, {"bias": np.zeros(2)}, **how) as strategy:
        assert sorted(run(strategy, grid)[0]) == list(range(12))
        grid.nodes[50] = named("key 3", epsilon=80.0)
        for _ in range(2):
            assert sorted(run(strategy, grid)[0]) == [i for i in range(12) if i != 3]
        assert told(grid, REFUSED) == [3, 50]  # once
        assert heard(grid, 3) == heard(grid, 50) == DECLARED_TWICE
        grid.nodes[51] = named("key 3")
        assert 3 not in run(strategy, grid)[0]
        assert told(grid, REFUSED) == [3, 3, 50, 50, 51]
        strategy.send_accounts(grid)
        assert told(grid, ACCOUNT) == [i for i in range(12) if i != 3]
        assert strategy.ledger.withdrawn == frozenset()
        assert strategy.ledger.client_account("key 3").rounds == 4  # charged like everyone
        grid.gone = {50, 51}
        assert sorted(run(strategy, grid)[0]) == list(range(12))
        grid.gone = {3, 51}  # or the client was started again, and the node before is gone
        assert sorted(run(strategy, grid)[0]) == [*(i for i in range(12) if i != 3), 50]


def test_a_server_that_starts_again_asks_neither_of_two_nodes_under_one_key(tmp_path):
    grid, how = fleet(), {"rounds": 4, "per_round": 12, "scheme": "uniform", "min_clients": 11}
    with serving(tmp_path, grid, {"bias": np.zeros(2)}, **how) as strategy:
        assert len(strategy.ledger.keys) == 12
    grid.nodes[50] = named("key 3")
    with serving(tmp_path, grid, {"bias": np.zeros(2)}, **how) as strategy:
        assert sorted(message.metadata.dst_node_id for message in ask(strategy, grid)) == [i for i in range(12) if i != 3]
        assert told(grid, REFUSED) == [3, 50]


def test_a_node_under_a_clients_key_that_allows_less_withdraws_the_client(tmp_path):
    """Whoever of the two it is, somebody says under this key that less is allowed."""
    grid, how = fleet(), {"rounds": 4, "per_round": 12, "scheme": "uniform", "min_clients": 12}
    with serving(tmp_path, grid, {"bias": np.zeros(2)}, **how) as strategy:
        grid.nodes[50] = named("key 3", epsilon=0.5)
        run(strategy, grid)
        grid.gone = {50}
        assert 3 not in run(strategy, grid)[0]
        assert [strategy.ledger.keys[client] for client in strategy.ledger.withdrawn] == ["key 3"]


def test_a_node_that_says_it_is_nobody_any_more_speaks_for_nobody(tmp_path):
    grid, how = fleet(), {"rounds": 4, "per_round": 12, "scheme": "uniform", "min_clients": 12}
    with serving(tmp_path, grid, {"bias": np.zeros(2)}, **how) as strategy:
        grid.gone = {3}
        run(strategy, grid)
        grid.gone, grid.nodes[3] = set(), named(" ")
        assert 3 not in run(strategy, grid)[0]
