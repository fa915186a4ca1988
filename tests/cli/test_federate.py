"""`sartor federate`: options that cannot be, and a real run in Flower's simulation engine."""

import json
import logging
import runpy
import subprocess
import sys
import tomllib
import warnings
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from sartor import federated
from sartor.cli import federate as command
from sartor.cli.federate import _conclusion, _keep, _of_run
from sartor.cli.federate_settings import FederateSettings
from sartor.errors import NoNoise, SartorError
from sartor.federated.enrolment import StrategySettings
from sartor.federated.ledger import Ledger
from sartor.federated.task import Settings, Task

REFUSED = {
    "--scheme": (["--scheme", "best"], 'no scheme "best"'),
    "--engine": (["--engine", "cloud"], 'an engine is "simulation" or "deployment"'),
    "address": (["--engine", "deployment"], "needs ADDRESS"),
    "stray address": (["127.0.0.1:9092"], "needs ADDRESS"),
    "both budgets": (["--epsilon", "1", "--budgets", "people.csv"], "--epsilon and --budgets both set"),
    "share": (["--share", "0.5,0.5"], "--share goes with --epsilon"),
    "policy": (["--policy", "policy.toml"], "--policy needs --budgets"),
    "none": (["--scheme", "none", "--epsilon", "1"], "leave out the budgets"),
    "seed": (["--seed", "-1"], "a whole number from 0"),
    "split": (["--split", "random"], 'a split is "iid"'),
    "split's number": (["--split", "dirichlet:x"], "not a number"),
    "writer": (["--split", "writer"], "goes with mnist"),
    "dataset": (["--dataset", "cats"], 'no federated data set "cats"'),
    "epsilon": (["--epsilon", "one"], "takes numbers separated by commas"),
    "shares": (["--epsilon", "1,2", "--share", "0.5,0.6"], "add up to"),
    "clients": (["--clients", "2000"], "cannot be dealt out"),
    "model": (["--model", "giant"], 'no model "giant"'),
    "elsewhere": (["--engine", "deployment", "example.org:9093"], "has no certificates"),
    "empty address": (["--engine", "deployment", ""], "is empty"),
    "no port": (["--engine", "deployment", "127.0.0.1:"], "ends with a port"),
    "port of letters": (["--engine", "deployment", "127.0.0.1:abc"], 'not with "abc"'),
    "port too high": (["--engine", "deployment", "localhost:65536"], "ends with a port"),
    "no clients": (["--clients", "0"], "--clients must be 1 or more, not 0"),
    "no epochs": (["--epochs", "0"], "--epochs must be 1 or more, not 0"),
    "no batch": (["--batch", "0"], "--batch must be 1 or more, not 0"),
    "batch": (["--batch", "-3"], "--batch must be 1 or more, not -3"),
    "lr": (["--lr", "-1"], "--lr must be positive and finite"),
    "lr that is none": (["--lr", "nan"], "--lr must be positive and finite"),
    "large seed": (["--seed", "99999999999999999999999999"], "2^63 - 1"),
    "server's optimizer": (["--server-optimizer", "foo"], 'no server optimizer "foo"'),
    "server's lr": (["--server-lr", "-1"], "the server's learning rate"),
    "server's momentum": (["--server-momentum", "-5"], "the server's momentum"),
    "large momentum": (["--server-momentum", "7"], "the server's momentum"),
    "momentum that is none": (["--server-momentum", "nan"], "the server's momentum"),
    "momentum of adam": (["--server-optimizer", "adam", "--server-momentum", "0.9"], "--server-momentum goes with"),
    "clip of nobody": (["--scheme", "none", "--adaptive-clip", "0.5"], "leave out --adaptive-clip"),
    "count of nothing": (["--count-noise", "3"], "--count-noise goes with --adaptive-clip"),
    "count": (["--adaptive-clip", "0.5", "--accountant", "rdp"], "(--count-noise, --per-round, or no --adaptive-clip)"),
    "count's noise": (["--adaptive-clip", "0.5", "--count-noise", "-1", "--accountant", "rdp"], "must be positive and finite"),
}


@pytest.fixture(autouse=True)
def no_engine(monkeypatch):
    """No test starts an engine in this process, whatever slips through."""

    def started(*_):
        raise AssertionError("an engine was started")

    monkeypatch.setattr(command, "_simulated", started)


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_is_refused_with_one_sentence(run, name):
    if name == "--scheme":
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


def test_several_deltas_are_refused_with_a_file_of_budgets(run, tmp_path):
    (tmp_path / "b.csv").write_text("holder,epsilon\n" + "".join(f"{client},1\n" for client in range(100)))
    code, _, err = run("federate", "--budgets", tmp_path / "b.csv", "--delta", "1e-4,1e-5")
    assert code == 2
    assert err == "error: with --budgets, --delta is one number, for the rows that have none of their own.\n"


def done(rounds, noise=1.0):
    """What an engine gives back."""
    return {"accuracy": 0.5, "rounds": rounds, "private": bool(noise), "plan": {"noise_multiplier": noise}, "groups": []}


def test_noise_on_the_count_is_an_option(run, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "_simulated", lambda job: seen.append(job.strategy) or done(job.strategy.rounds))
    code, out, err = run("federate", "--adaptive-clip", "0.5", "--count-noise", "3", "--accountant", "rdp", "--json")
    assert (code, err) == (0, "")
    assert seen[0].adaptive == federated.AdaptiveClip(quantile=0.5, noise=3.0)
    assert json.loads(out)["rounds"] == 50


def test_help_says_what_an_engine_and_an_address_are(run):
    _, out, _ = run("federate", "--help")
    said = " ".join(out.split())
    assert "a rehearsal on shared data" in said
    assert "ADDRESS is for --engine deployment: the host and port of a SuperLink on this machine, or the name" in said


@pytest.mark.long  # make test-deployment runs it, too
def test_a_simulation_on_flower_from_a_folder_with_a_space_in_its_name(tmp_path):
    """Twelve clients, three rounds, in a process of its own, as Ray likes it."""
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    (tmp_path / "a space").symlink_to(sys.prefix, target_is_directory=True)
    command = [
        str(tmp_path / "a space" / Path(sys.executable).relative_to(sys.prefix)),
        "-m",
        "sartor",
        "federate",
        "--dataset",
        "digits",
        "--clients",
        "12",
        "--per-round",
        "3",
        "--rounds",
        "3",
    ]
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
    assert json.loads((tmp_path / "run" / "ledger" / "rounds.json").read_text())["charged"] == 3
    # nothing but our own warning, once
    assert done.stderr.startswith("warning (RarelyUsed): 1 of 1 groups, with 12 of 12 holders")
    assert done.stderr.count("\n") == 1


def wanted(**settings):
    """What a small server is asked for."""
    return StrategySettings(**{"per_round": 5, "accountant": "rdp", **settings})


class Strategy:
    """In the place of PrivateFedAvg: it charges rounds, and asks no clients."""

    stop = None

    def __init__(self, folder, settings, *, plan=None):
        self.folder, self.settings, self.plan = folder, settings, plan

    def start(self, grid, arrays, evaluate_fn):
        if Ledger.is_in(self.folder):
            self.ledger = Ledger(self.folder)
        else:
            budgets = grid.budgets
            made = self.plan or self.settings.plan(budgets)
            keys, seeded = [str(i) for i in range(len(budgets))], self.settings.seed is not None
            self.ledger = Ledger.create(self.folder, made, keys, budgets, seeded=seeded, settings=self.settings.task)
        try:
            evaluate_fn(0, arrays)
            for number in range(1, self.ledger.left + 1):
                self.ledger.charge()
                evaluate_fn(number, arrays)
                if number == self.stop:
                    raise KeyboardInterrupt
        finally:
            self.ledger.close()
        return SimpleNamespace(arrays=arrays)


@pytest.fixture
def app(monkeypatch):
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")
    from sartor.federated import app

    monkeypatch.setattr(app, "PrivateFedAvg", Strategy)
    return app


def test_progress_is_told_in_every_round_though_models_are_judged_rarely(app, tmp_path):
    told = []
    made = Task(Settings(clients=20, epsilon="1", share=""))
    found = app.run(made, made, wanted(rounds=6), str(tmp_path / "ledger"), every=4, report=told.append)
    assert told == [0, 1, 2, 3, 4, 5, 6]
    assert [point["round"] for point in found["history"]] == [0, 4, 6]
    assert found["private"] is True


@pytest.mark.filterwarnings("ignore::sartor.errors.NoNoise")
@pytest.mark.parametrize(("epsilon", "seed"), [("inf", None), ("1", 3)])
def test_a_run_without_noise_or_with_a_seed_does_not_claim_to_be_private(app, tmp_path, epsilon, seed):
    made = Task(Settings(clients=20, epsilon=epsilon, share=""))
    found = app.run(made, made, wanted(rounds=1, seed=seed), str(tmp_path / "ledger"))
    assert found["private"] is False
    assert json.loads((tmp_path / "ledger" / "result.json").read_text())["private"] is False
    text = _conclusion({**found, "seconds": 1.0}, FederateSettings(out="run"), tmp_path)
    assert "protects nobody" in text
    assert ("No client spent more" in text) == (seed is not None)


def test_a_run_that_goes_on_deals_rows_and_budgets_as_when_it_began(app, tmp_path, monkeypatch):
    first, later = (
        Settings(clients=20, epsilon="1", share="", seed=seed) for seed in (7, 8)
    )  # without --seed each call draws one of its own
    served = wanted(rounds=4), str(tmp_path / "ledger")
    assert _of_run(tmp_path, first, None) == first
    _keep(tmp_path, first)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Strategy, "stop", 2)
        app.run(Task(first), Task(first), *served)
    assert (tmp_path / "settings.json").stat().st_mode & 0o777 == 0o600
    with Ledger(tmp_path / "ledger") as ledger:  # the server has them as well, as it may be on another machine
        assert ledger.settings == first.to_json()
    assert _of_run(tmp_path, later, None) == first
    with pytest.raises(SartorError, match=r"other settings \(clients\)"):
        _of_run(tmp_path, Settings(clients=21, epsilon="1", share="", seed=8), None)
    with pytest.raises(SartorError, match="another seed"):
        _of_run(tmp_path, later, 8)
    found = app.run(Task(first), Task(first), *served)
    assert found["rounds"] == 4
    assert [point["round"] for point in found["history"]] == [0, 1, 2, 3, 4]  # of both servers
    (tmp_path / "settings.json").unlink()
    with pytest.raises(SartorError, match="has no settings"):
        _of_run(tmp_path, first, None)


def test_other_settings_for_a_run_are_refused_by_the_command(run, tmp_path):
    (tmp_path / "ledger").mkdir()
    (tmp_path / "ledger" / "clients.json").write_text("{}")
    _keep(tmp_path, Settings(clients=20, seed=7))
    code, _, err = run("federate", "--clients", "30", "--out", tmp_path)
    assert code == 2
    assert "was started with other settings (clients)" in err


def test_a_start_that_failed_binds_nothing(run, tmp_path, monkeypatch):
    def failing(*_):
        raise SartorError("no clients.")

    seen = []
    monkeypatch.setattr(command, "_simulated", failing)
    asked = ["federate", "--accountant", "rdp", "--out", tmp_path / "run", "--json"]
    assert run(*asked, "--clients", "50")[0] == 2
    monkeypatch.setattr(command, "_simulated", lambda job: seen.append(job.settings) or done(job.strategy.rounds))
    assert run(*asked, "--clients", "60")[0] == 0
    assert seen[0].clients == 60
    assert Settings.read(tmp_path / "run" / "settings.json") == seen[0]


FIELDS = Settings().to_json()
UNREADABLE = ["null", "[]", "{}", '"text"', "3", "nonsense", '{"clients": 100}', json.dumps({**FIELDS, "seed": "a"})]
UNREADABLE += [json.dumps({**FIELDS, "clients": True}), json.dumps({**FIELDS, "lr": "0.1"}), json.dumps({**FIELDS, "epochs": 0})]
UNREADABLE += [json.dumps({name: value for name, value in FIELDS.items() if name != "seed"})]


@pytest.mark.parametrize("content", UNREADABLE)
def test_settings_that_cannot_be_read_are_not_replaced_by_defaults(run, tmp_path, content):
    (tmp_path / "settings.json").write_text(content)
    code, _, err = run("federate", "--out", tmp_path)
    assert code == 2
    assert err.startswith(f"error: the run in {tmp_path} cannot be continued: ")
    assert err.count("\n") == 1
    assert (tmp_path / "settings.json").read_text() == content


def test_settings_come_back_from_json_as_they_were():
    made = Settings(clients=7, lr=1.0, seed=2**62)
    assert Settings.from_json(json.loads(json.dumps(made.to_json()))) == made
    assert Settings.from_json({**FIELDS, "lr": 1}) == Settings(lr=1.0)


def test_a_simulation_is_quiet(app, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    import flwr.simulation

    said, flower = [], logging.getLogger("flwr")
    before = flower.level

    def simulation(server, client, num_supernodes, backend_config):
        said.append((flower.isEnabledFor(logging.WARNING), flower.isEnabledFor(logging.ERROR), backend_config["init_args"]))
        warnings.warn("said when the task was checked", NoNoise, stacklevel=1)  # an error in these tests, unless it is ignored
        server(Task(settings), SimpleNamespace(run_config={}))

    settings = Settings(clients=20, epsilon="1", share="")
    monkeypatch.setattr(flwr.simulation, "run_simulation", simulation)
    plan = wanted(rounds=1).plan(Task(settings).budgets)
    assert app.simulate(settings, wanted(rounds=1), str(tmp_path), plan=plan)["rounds"] == 1
    assert said[0][:2] == (False, True)
    assert said[0][2]["log_to_driver"] is False
    assert flower.level == before


def test_a_simulation_that_leaves_no_result_has_failed(app, tmp_path, monkeypatch):
    pytest.importorskip("ray", reason="ray is not installed: pip install 'sartor[federated]'")
    import flwr.simulation

    (tmp_path / "result.json").write_text('{"rounds": 1}')  # of another server
    monkeypatch.setattr(flwr.simulation, "run_simulation", lambda *_, **__: None)
    with pytest.raises(SartorError, match="left no result"):
        app.simulate(Settings(), wanted(rounds=1), str(tmp_path), plan=None)
    assert (tmp_path / "result.json").exists()  # and is not lost by what failed


def test_a_run_cut_off_before_its_first_round_can_go_on(app, tmp_path):
    settings = Settings(clients=20, epsilon="1", share="", seed=7)
    _keep(tmp_path, settings)
    budgets = Task(settings).budgets
    made = federated.plan(budgets, rounds=4, per_round=5, accountant="rdp")
    Ledger.create(tmp_path / "ledger", made, [str(i) for i in range(20)], budgets).close()
    assert _of_run(tmp_path, replace(settings, seed=8), None) == settings
    assert app.run(Task(settings), Task(settings), wanted(rounds=4), str(tmp_path / "ledger"))["rounds"] == 4


@pytest.fixture
def deployment(monkeypatch):
    """A run whose log is what is given, and the rounds that its progress was told of."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")
    told, start = [], subprocess.Popen

    @contextmanager
    def bar(*_):
        yield told.append

    def deployed(log):
        monkeypatch.setattr(command.subprocess, "Popen", lambda _, **how: start([sys.executable, "-c", f"print({log!r})"], **how))
        monkeypatch.setattr("sartor.progress.bar", bar)
        job = command._Job(Settings(), wanted(rounds=5), None, "ledger", every=1)
        return command._deployed(job, "127.0.0.1:9093"), told

    return deployed


def test_the_app_that_is_sent_to_a_server_runs_what_was_asked_for(app, tmp_path, capsys):
    asked = FederateSettings(clients=20, epsilon="1", rounds=4, per_round=5, accountant="rdp", public_rate=0.5, seed=7)
    settings, strategy, folder = asked.task(7), asked.strategy(), str(tmp_path / "ledger")
    command._write_app(tmp_path / "app", command._Job(settings, strategy, None, folder, every=3))
    config = tomllib.loads((tmp_path / "app" / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["config"]
    assert federated.StrategySettings.from_json(json.loads(config["strategy"])) == strategy
    app.server(Task(settings), SimpleNamespace(run_config=config, node_config={}))
    found = json.loads(capsys.readouterr().out.removeprefix(app.ANNOUNCED))
    assert [point["round"] for point in found["history"]] == [0, 3, 4]
    assert (found["rounds"], found["private"]) == (4, False)
    with Ledger(folder) as ledger:
        assert ledger.settings == settings.to_json()


def test_a_simulation_is_given_the_plan_that_was_checked(run, monkeypatch):
    seen = []
    monkeypatch.setattr(command, "_simulated", lambda job: seen.append(job) or done(job.strategy.rounds))
    assert run("federate", "--clients", "30", "--per-round", "5", "--rounds", "3", "--accountant", "rdp", "--seed", "1", "--json")[0] == 0
    (job,) = seen
    assert job.plan.record() == job.strategy.plan(Task(job.settings).budgets).record()
    assert job.strategy.min_clients == 30


def test_a_deployment_is_followed_to_its_result(deployment):
    log = 'INFO : [ROUND 1/3]\nINFO : [ROUND 2/3]\nINFO : [ROUND 3/3]\nsartor-result: {"rounds": 5}\n'
    found, told = deployment(log)
    assert found == {"rounds": 5}
    assert told == [2, 3, 4]  # a server before this one has done two of the five


def test_a_deployment_without_a_result_has_failed(deployment):
    with pytest.raises(SartorError, match="ended without a result; the last line of its log: nobody is there"):
        deployment("hello\nnobody is there\n")


def test_the_last_line_says_where_the_run_is(tmp_path):
    def last(superlink, out):
        engine = "simulation" if superlink is None else "deployment"
        asked = FederateSettings(engine=engine, superlink=superlink, out=out)
        return _conclusion({**done(1), "seconds": 1.0}, asked, tmp_path / "run" / "ledger").splitlines()[-1]

    assert last(superlink=None, out=None).startswith("Nothing was kept: --out")
    assert last(superlink=None, out="run") == "The run is in run."
    assert last(superlink="here", out="run").startswith(f"The run is in {tmp_path / 'run' / 'ledger'} on the server app's machine")
    assert "on this machine" in last(superlink="here", out=None)


def test_the_example_is_short_and_its_apps_build():
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp

    folder = Path(__file__).parents[2] / "examples" / "federated"
    lines = [
        line for path in folder.glob("*.py") for line in path.read_text().splitlines() if line.strip() and not line.strip().startswith("#")
    ]
    assert 0 < len(lines) <= 80
    components = tomllib.loads((folder / "pyproject.toml").read_text())["tool"]["flwr"]["app"]["components"]
    for component, kind in {"clientapp": ClientApp, "serverapp": ServerApp}.items():
        module, _, name = components[component].partition(":")
        assert isinstance(runpy.run_path(str(folder / f"{module}.py"))[name], kind)


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
