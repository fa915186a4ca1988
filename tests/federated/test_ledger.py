"""The ledger: charged before anyone is drawn, once for everybody, through crashes, for the client of a key."""

import json
import os
import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch

import sartor
from sartor import federated
from sartor.errors import Exhausted, SartorError
from sartor.federated import Ledger, enrol


def made(folder, *, rounds=4, epsilon=(1.0, 3.0, 1.0, 2.0) * 5):
    budgets = sartor.Budgets(epsilon, delta=1e-3)
    plan = federated.plan(budgets, rounds=rounds, per_round=4, accountant="rdp")
    return Ledger.create(folder, plan, [f"client {i}" for i in range(len(epsilon))], budgets)


def change(folder, **fields):
    """Rounds that say something else."""
    path = folder / "rounds.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_rounds_are_charged_until_the_plan_ends(tmp_path):
    with made(tmp_path) as ledger:
        assert [ledger.charge() for _ in range(4)] == [0, 1, 2, 3]
        with pytest.raises(Exhausted):
            ledger.charge()
        assert ledger.left == 0
    with Ledger(tmp_path) as again:
        assert again.charged == 4
        with pytest.raises(Exhausted):
            again.charge()


def test_accounts_belong_to_keys_and_grow_with_the_rounds(tmp_path):
    with made(tmp_path) as ledger:
        assert ledger.client_account("client 1").spent == 0
        ledger.charge()
        ledger.charge()
        account, plan = ledger.client_account("client 1"), ledger.plan.accounted
        group = int(np.flatnonzero(plan.epsilon == 3.0)[0])
        assert account.epsilon == 3.0
        assert account.spent == plan.spent_after(2)[group]
        assert 0 < account.spent < 3.0
        assert account.to_json()["rounds"] == 2
        assert ledger.client("client 7") == 7
        assert ledger.client("somebody") is None
        with pytest.raises(SartorError, match="no client with this key"):
            ledger.client_account("somebody")
    assert ledger.client_accounts([f"client {i}" for i in range(20)])["client 3"].epsilon == 2.0


def test_a_run_that_exists_is_not_begun_again_and_never_served_twice(tmp_path):
    with made(tmp_path) as ledger:
        ledger.charge()
        with pytest.raises(SartorError, match="another server"):
            Ledger(tmp_path)
        with pytest.raises(SartorError, match="another server"):
            made(tmp_path)
    with pytest.raises(SartorError, match="already holds a run"):
        made(tmp_path)
    with Ledger(tmp_path) as again:
        assert again.charged == 1
    with pytest.raises(SartorError, match="closed"):
        again.charge()


def test_files_are_for_the_server_alone(tmp_path):
    with made(tmp_path / "new") as ledger:
        ledger.charge()
        ledger.save({"clip": 1.0, "model": torch.ones(2)})
        assert ledger.saved()["model"].tolist() == [1, 1]
    modes = {path.name: path.stat().st_mode & 0o777 for path in (tmp_path / "new").iterdir()}
    assert modes == dict.fromkeys(("clients.json", "rounds.json", "state.safetensors", "lock"), 0o600)


@pytest.mark.parametrize("broken", ["{}", "[]", "nonsense", '{"keys": ["a"]}'])
def test_a_broken_ledger_is_refused_with_one_sentence(tmp_path, broken):
    made(tmp_path).close()
    (tmp_path / "clients.json").write_text(broken)
    with pytest.raises(SartorError):
        Ledger(tmp_path)
    with pytest.raises(SartorError):
        Ledger(tmp_path / "nowhere")


@pytest.mark.parametrize("count", [-1, 5, "2", True, 1.5, None])
def test_a_count_of_rounds_that_cannot_be_is_refused_and_the_folder_let_go(tmp_path, count):
    made(tmp_path).close()
    change(tmp_path, charged=count)
    for _ in range(2):
        with pytest.raises(SartorError, match="could not have"):
            Ledger(tmp_path)


@pytest.mark.parametrize("left", ["rounds.json", "state.safetensors"])
def test_what_is_left_of_a_run_is_no_reason_to_begin_again(tmp_path, left):
    with made(tmp_path) as ledger:
        ledger.charge()
        ledger.save({"clip": 1.0})
        plan, keys, budgets = ledger.plan, ledger.keys, ledger.budgets
    for name in {"clients.json", "rounds.json", "state.safetensors"} - {left}:
        (tmp_path / name).unlink()
    with pytest.raises(SartorError, match="already holds a run"):
        Ledger.create(tmp_path, plan, keys, budgets)
    with pytest.raises(SartorError):
        Ledger(tmp_path)


def test_who_has_withdrawn_stays_so_under_the_next_server(tmp_path):
    with made(tmp_path) as ledger:
        ledger.withdraw(1)
        ledger.charge()
    with Ledger(tmp_path) as again:
        assert again.withdrawn == {1}
        assert again.charged == 1
    change(tmp_path, withdrawn=[10**6])
    with pytest.raises(SartorError, match="could not have"):
        Ledger(tmp_path)


def test_a_ledger_changed_by_hand_to_spend_more_is_refused(tmp_path):
    made(tmp_path).close()
    document = json.loads((tmp_path / "clients.json").read_text())
    document["epsilon"][0] = 2.0
    (tmp_path / "clients.json").write_text(json.dumps(document))
    with pytest.raises(SartorError, match="not the budgets that the plan was made for"):
        Ledger(tmp_path)


def test_no_round_is_forgotten_by_a_kill(tmp_path):
    """A process charges and reports rounds, and is killed between any two of them: what it reported is charged."""
    made(tmp_path, rounds=2_000).close()
    child = textwrap.dedent(
        """
        import sys
        from sartor.federated import Ledger
        with Ledger(sys.argv[1]) as ledger:
            while True:
                print(ledger.charge(), flush=True)
        """
    )
    seen = -1
    for lines in (1, 7):
        process = subprocess.Popen([sys.executable, "-c", child, str(tmp_path)], stdout=subprocess.PIPE, text=True, env=dict(os.environ))
        for _ in range(lines):
            number = int(process.stdout.readline())
            assert number > seen
            seen = number
        process.send_signal(signal.SIGKILL)
        rest = [int(line) for line in process.stdout.read().split("\n")[:-1]]
        process.wait()
        process.stdout.close()
        seen = max([seen, *rest])
        with Ledger(tmp_path) as ledger:
            assert ledger.charged >= seen + 1
            seen = ledger.charged - 1


def test_nothing_of_one_client_is_printed(tmp_path):
    with made(tmp_path) as ledger:
        assert repr(ledger) == "Ledger(20 clients, 0 of 4 rounds charged)"
        assert "3.0" not in repr(ledger.client_account("client 1"))


def test_declarations_become_budgets_by_key():
    policy = sartor.Policy({"strict": 1.0, "open": 8.0}, delta=1e-5)
    declared = {
        "b": {"level": "open"},
        "a": {"epsilon": 2.0, "delta": 1e-6},
        "d": {},
        "c": {"level": "unheard of"},
        "e": {"epsilon": -1.0},
        "f": {"epsilon": "much"},
        "g": {"epsilon": 0.1, "delta": 0.0},
        "h": {"delta": 1e-9},
        "i": {"level": "open", "epsilon": 3.0},
        "j": {"level": "open", "delta": 1e-9},
    }
    found = enrol(declared, policy=policy, delta=1e-5)
    budgets = dict(zip(found.keys, zip(found.budgets.epsilon.tolist(), found.budgets.delta.tolist(), strict=True), strict=True))
    # who says nothing gets the strictest; who says what cannot be used meant something else, and takes no part
    assert budgets == {"a": (2.0, 1e-6), "b": (8.0, 1e-5), "d": (2.0, 1e-9), "i": (3.0, 1e-5), "j": (8.0, 1e-9)}
    assert sorted(found.refused) == ["c", "e", "f", "g", "h"]
    assert enrol({"a": {"level": "open", "epsilon": 2.0}}, policy=policy).budgets.delta.tolist() == [1e-5]  # the level's
    refused = enrol(declared, policy=policy, delta=1e-5, undeclared="refuse")
    assert refused.keys == ("a", "b", "i", "j")
    assert len(refused.refused) == 6
    assert enrol({"a": {"epsilon": 1.0, "delta": 1e-5}, "b": {"epsilon": 0.1}}).keys == ("a",)  # a delta is nobody's to choose


def test_without_a_declared_budget_nobody_is_given_one():
    with pytest.raises(SartorError, match="no client declared"):
        enrol({"a": {}, "b": {"level": "open"}})
    with pytest.raises(SartorError, match="strictest"):
        enrol({"a": {"epsilon": 1.0}}, delta=1e-5, undeclared="open")
    # public clients set no limit that could stand for somebody else's
    found = enrol({"a": {"epsilon": float("inf")}, "b": {}}, delta=1e-5)
    assert found.keys == ("a",)
    assert list(found.refused) == ["b"]
