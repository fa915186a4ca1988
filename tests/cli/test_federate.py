"""`sartor federate`: options that cannot be, and a real run in Flower's simulation engine."""

import json

import pytest

from sartor.cli.federate import _keep, _of_run
from sartor.errors import SartorError
from sartor.federated.task import Settings, Task

REFUSED = {
    "--scheme": (["--scheme", "best"], 'no scheme "best"'),
    "--engine": (["--engine", "cloud"], 'an engine is "simulation" or "deployment"'),
    "address": (["--engine", "deployment"], "followed by the address"),
    "stray address": (["127.0.0.1:9092"], "followed by the address"),
    "both budgets": (["--epsilon", "1", "--budgets", "people.csv"], "say once what clients allow"),
    "share": (["--share", "0.5,0.5"], "--share goes with --epsilon"),
    "policy": (["--policy", "policy.toml"], "it goes with --budgets"),
    "none": (["--scheme", "none", "--epsilon", "1"], "leave out the budgets"),
    "seed": (["--seed", "-1"], "a seed must be 0 or more"),
    "split": (["--split", "random"], 'a split is "iid"'),
    "split's number": (["--split", "dirichlet:x"], "not a number"),
    "writer": (["--split", "writer"], "goes with mnist"),
    "dataset": (["--dataset", "cats"], 'no federated data set "cats"'),
    "epsilon": (["--epsilon", "one"], "takes numbers separated by commas"),
    "shares": (["--epsilon", "1,2", "--share", "0.5,0.6"], "add up to"),
    "clients": (["--clients", "2000"], "cannot be dealt out"),
    "model": (["--model", "giant"], 'no model "giant"'),
    "elsewhere": (["--engine", "deployment", "example.org:9093"], "has no certificates"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_one_sentence(run, name):
    if name in ("--scheme", "elsewhere"):
        pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")
    arguments, sentence = REFUSED[name]
    code, _, err = run("federate", "--clients", "100", *arguments)
    assert code == 2
    assert sentence in err
    assert "Traceback" not in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--rounds", "0"], ["--per-round", "0"], ["--per-round", "101"], ["--clip", "0"], ["--accountant", "abc"]]
)
def test_plans_that_cannot_be_are_refused_before_an_engine_starts(run, options):
    code, _, err = run("federate", "--clients", "100", *options)
    assert code == 2
    assert err.startswith("error: ")
    assert err.count("\n") == 1


def test_a_simulation_on_flower(tmp_path):
    """Twelve clients, three rounds, in a process of its own, as Ray likes it."""
    import subprocess
    import sys

    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    command = [sys.executable, "-m", "sartor", "federate", "--dataset", "digits", "--clients", "12", "--per-round", "6", "--rounds", "3"]
    command += ["--epsilon", "20", "--delta", "1e-3", "--accountant", "rdp", "--epochs", "1", "--out", str(tmp_path / "run"), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["rounds"] == 3
    assert [point["round"] for point in found["history"]] == [0, 1, 2, 3]
    assert 0 <= found["accuracy"] <= 1
    assert found["private"]
    assert found["groups"] == [{"epsilon": 20.0, "holders": 12, "spent": pytest.approx(20, rel=0.01)}]
    assert found["plan"]["scheme"] == "sample"
    assert json.loads((tmp_path / "run" / "ledger" / "rounds.json").read_text()) == {"charged": 3}


def test_a_run_that_goes_on_deals_rows_and_budgets_as_when_it_began(tmp_path):
    first, later = Settings(clients=20, seed=7), Settings(clients=20, seed=8)  # without --seed each call draws one of its own
    assert _of_run(tmp_path / "run", first, None) == first
    _keep(tmp_path / "run", first)
    assert (tmp_path / "run" / "settings.json").stat().st_mode & 0o777 == 0o600
    assert _of_run(tmp_path / "run", later, None) == first
    with pytest.raises(SartorError, match=r"other settings \(clients, seed\)"):
        _of_run(tmp_path / "run", Settings(clients=21, seed=8), 8)
    (tmp_path / "run" / "settings.json").unlink()
    (tmp_path / "run" / "ledger").mkdir()
    (tmp_path / "run" / "ledger" / "clients.json").write_text("{}")
    with pytest.raises(SartorError, match="cannot go on"):
        _of_run(tmp_path / "run", first, None)


def test_other_settings_for_a_run_are_refused_by_the_command(run, tmp_path):
    _keep(tmp_path, Settings(clients=20, seed=7))
    code, _, err = run("federate", "--clients", "30", "--out", tmp_path)
    assert code == 2
    assert "was begun with other settings (clients)" in err


def test_a_task_is_the_same_in_every_process():
    one, other = (Task(Settings(clients=20, split="dirichlet:0.5", seed=3)) for _ in range(2))
    assert all((a == b).all() for a, b in zip(one.rows, other.rows, strict=True))
    assert one.budgets.epsilon.tolist() == other.budgets.epsilon.tolist()
    states = [task.network().state_dict() for task in (one, other)]
    assert all((states[0][name] == states[1][name]).all() for name in states[0])
    trained = [task.trained(4, states[0], seed=1) for task in (one, other)]
    assert all((trained[0][name] == trained[1][name]).all() for name in states[0])
    assert 0.05 < one.accuracy(trained[0]) <= 1


def test_budgets_of_a_file_go_to_clients_by_key(tmp_path):
    path = tmp_path / "budgets.csv"
    path.write_text("holder,epsilon\n" + "\n".join(f"{client},{1 + client % 3}" for client in reversed(range(30))) + "\n")
    made = Task(Settings(clients=30, budgets=str(path)))
    assert made.budgets.epsilon.tolist() == [1 + client % 3 for client in range(30)]
