"""`sartor audit`: attacks and replay from a run's settings, and what is refused."""

import importlib
import json
import os
import signal
import stat
import subprocess
import sys
import textwrap

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

import sartor
from mutants import planted
from sartor import federated, pate
from sartor.audit import shadow_training, shadows
from sartor.audit.findings import AS_PLANNED, ONE_RUN, REPEATED
from sartor.audit.shadows import Shadows, coins
from sartor.cli import app, main
from sartor.data import PrivateScaling
from sartor.errors import SartorError
from sartor.federated import rounds
from sartor.federated.ledger import Ledger
from sartor.federated.task import Settings, task
from sartor.pate.voting import Voting
from sartor.sgd.run import Run

SETTINGS = 'dataset = "digits"\nsteps = 6\nbatch = 60\nepsilon = "1,4"\nshare = "0.5,0.5"\ndelta = "1e-4"\naccountant = "rdp"\n'


@pytest.fixture
def config(file):
    return file("settings.toml", SETTINGS)


def run(*arguments, code=0):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert result.exit_code == code, result.output + str(result.exception)
    return result.stdout


def refused(*arguments):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert isinstance(result.exception, SartorError)
    return str(result.exception)


def test_a_sound_library_is_consistent_with_its_plan(config):
    document = json.loads(run(config, "--attack", "replay", "--holders", 1, "--steps", 3, "--json"))
    assert {**document, "largest_move": 1} == {
        "attack": "replay",
        "verdict": "consistent",
        "steps": 3,
        "holders_tried": 1,
        "largest_move": 1,
        "faults": [],
        "unseen": [],
        "ended": False,
    }
    assert document["largest_move"] < 1


def test_a_broken_one_is_refuted_by_replay_and_in_words(config, monkeypatch):
    right = Run._noisy

    def loud(self, sums, step):
        return {name: value / 3 for name, value in right(self, sums, step).items()}

    monkeypatch.setattr(Run, "_noisy", loud)
    assert "the noise is not of the deviation that the plan says" in run(config, "--holders", 1, "--steps", 3, code=1)


def test_canaries_have_a_row_for_each_group_and_a_page(config, tmp_path):
    document = json.loads(run(config, "--attack", "canary", "--canaries", 60, "--page", tmp_path / "page.html", "--json"))
    assert (document["attack"], document["verdict"]) == ("canary", "consistent")
    assert [group["epsilon"] for group in document["groups"]] == [1, 4]
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.long
def test_shadow_models_are_trained_once_for_all_attacks_and_their_signals_kept_for_the_owner(config, tmp_path, monkeypatch):
    cache = tmp_path / "cache"
    found = {attack: run(config, "--attack", attack, "--shadows", 6, "--cache", cache, "--json") for attack in ("lira", "rmia", "loss")}
    assert all(json.loads(said)["attack"] == attack for attack, said in found.items())
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in cache.rglob("*") if path.is_file())
    monkeypatch.setattr(shadow_training, "carried_out", lambda *_: pytest.fail("nothing is to be trained"))
    for attack, said in found.items():
        assert run(config, "--attack", attack, "--shadows", 6, "--cache", cache, "--json") == said


@pytest.mark.long
def test_a_runs_folder_is_audited_without_its_key_and_left_as_it_is(config, tmp_path):
    out = tmp_path / "run"
    assert CliRunner().invoke(app, ["train", "--config", str(config), "--out", str(out)]).exit_code == 0
    before = {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()}
    assert json.loads(run(out, "--holders", 1, "--steps", 2, "--json"))["verdict"] == "consistent"
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.is_file()} == before


def test_peoples_own_table_is_audited_only_where_sensitive_is_said(file):
    rows = [{"x": i % 7, "y": i % 2, "epsilon": 1 + (i // 2) % 2} for i in range(60)]
    table = file("people.csv", rows)
    schema = file("schema.toml", 'target = "y"\nclasses = ["0", "1"]\nfeatures = ["x"]\n[columns.x]\nbounds = [0, 7]\n')
    common = f'table = "{table}"\nschema = "{schema}"\nbudget_column = "epsilon"\ndelta = "1e-3"\nsteps = 4\nbatch = 20\n'
    settings = file("own.toml", common + 'accountant = "rdp"\n')
    assert "--sensitive" in refused(settings)
    found = json.loads(run(settings, "--sensitive", "--holders", 1, "--json"))
    assert (found["verdict"], found["ended"], found["unseen"], found["sensitive"]) == ("consistent", True, [], True)


def test_bounds_taken_from_private_rows_are_not_seen_to_follow_them_and_that_is_said(file):
    table = file("people.csv", [{"x": i % 7, "y": i % 2, "epsilon": 1} for i in range(60)])
    common = f'table = "{table}"\ntarget = "y"\nbudget_column = "epsilon"\ndelta = "1e-3"\nsteps = 4\nbatch = 20\naccountant = "rdp"\n'
    settings = file("own.toml", common)
    with pytest.warns(PrivateScaling):
        found = json.loads(run(settings, "--sensitive", "--holders", 1, "--json"))
    (unseen,) = found["unseen"]
    assert unseen.endswith("which were taken from private rows")
    assert '"x"' in unseen
    with pytest.warns(PrivateScaling):
        assert f"Not seen: {unseen}." in " ".join(run(settings, "--sensitive", "--holders", 1).split())


def test_a_replay_that_was_stopped_says_in_words_what_it_did_not_look_at(config):
    said = " ".join(run(config, "--holders", 1, "--steps", 2).split())
    assert "Stopped after 2 of its steps: of later ones no sums were looked at" in said


ENDED = """
    import os, signal, sys
    from sartor import cli
    from sartor.cli import train
    train.shown_of = lambda job, folder: os.kill(os.getpid(), getattr(signal, sys.argv[2]))
    cli.main(["audit", sys.argv[1]])
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGHUP", "SIGINT"])
def test_whatever_ends_an_audit_leaves_nothing_behind_and_no_verdict(name, config, tmp_path):
    if signal.getsignal(getattr(signal, name)) is signal.SIG_IGN:
        pytest.skip(f"{name} is ignored here, as by nohup")
    place = tmp_path / "temporary"
    place.mkdir()
    paths = os.pathsep.join(path for path in sys.path if path)
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(ENDED), str(config), name],
        env={**os.environ, "PYTHONPATH": paths, "TMPDIR": str(place)},
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stdout) == (128 + getattr(signal, name), "")
    assert "stopped, without a verdict." in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not list(place.iterdir())


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attack", "guess"], "--attack is"),
        (["--attack", "replay", "--shadows", "4"], "--shadows goes with --attack lira or rmia or loss"),
        (["--attack", "canary", "--holders", "4"], "--holders goes with"),
        (["--attack", "lira", "--canaries", "4"], "--canaries goes with"),
        (["--confidence", "1"], "--confidence"),
        (["--seed", "-1"], "a seed must be"),
        (["--holders", "0"], "1 or more"),
        (["--steps", "0"], "1 or more"),
        (["--page", "x.html"], "ROC"),
        (["--attack", "lira", "--shadows", "3"], "even number"),
        (["--attack", "canary", "--canaries", "1"], "a canary for each"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, words, config):
    assert words in refused(config, *options)


VOTES = 'command = "pate"\ndataset = "digits"\nepsilon = [1, 4]\nshare = [0.5, 0.5]\ndelta = 1e-4\nteachers = 20\nvariant = "{}"\n'
ROUNDS = """
command = "federate"
clients = 40
rounds = 4
per_round = 15
epsilon = "1,4"
share = "0.5,0.5"
delta = 1e-3
accountant = "rdp"
clip = 0.05
"""


def test_an_ensemble_is_taught_again_without_a_holder(file):
    document = json.loads(run(file("votes.toml", VOTES.format("upsample")), "--holders", 2, "--steps", 10, "--json"))
    assert (document["attack"], document["verdict"], document["holders_tried"]) == ("replay", "consistent", 2)
    assert 0 < document["steps"] <= 10
    assert document["largest_move"] == pytest.approx(1)


def test_votes_of_neighbours_have_a_row_for_each_group(file, monkeypatch):
    settings = file("votes.toml", VOTES.format("weight"))
    found = json.loads(run(settings, "--attack", "canary", "--canaries", 80, "--json"))
    assert (found["verdict"], [group["epsilon"] for group in found["groups"]]) == ("consistent", [1, 4])
    monkeypatch.setattr(Voting, "_prices", lambda self: (0.0, 1e-3 / self.plan.aggregator.noise**2))
    assert json.loads(run(settings, "--attack", "canary", "--canaries", 800, "--json", code=1))["verdict"] == "refuted"


def test_an_ensembles_folder_is_audited_by_its_plan_where_sensitive_is_said(tmp_path):
    people = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    pate.EnsembleFolder.create(tmp_path / "kept", pate.plan(people, "weight", teachers=20, aggregator=pate.GNMax(20)), people)
    before = {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    assert "--sensitive" in refused(tmp_path / "kept")
    assert json.loads(run(tmp_path / "kept", "--sensitive", "--json"))["verdict"] == "consistent"
    assert len(json.loads(run(tmp_path / "kept", "--sensitive", "--attack", "canary", "--canaries", 8, "--json"))["groups"]) == 2
    assert {path.name: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before


@pytest.mark.parametrize("more", ["", "adaptive_clip = 0.5\n", 'floor = 2.0\nscheme = "scale"\n'], ids=["fixed", "adaptive", "floor"])
def test_federated_rounds_are_replayed_without_a_client(more, file):
    document = json.loads(run(file("rounds.toml", ROUNDS + more), "--holders", 2, "--steps", 3, "--json"))
    assert {**document, "largest_move": 1} == {
        "attack": "replay",
        "verdict": "consistent",
        "steps": 3,
        "holders_tried": 2,
        "largest_move": 1,
        "faults": [],
        "unseen": [],
        "ended": False,
    }
    assert 0.99 < document["largest_move"] <= 1


def test_a_client_that_is_not_clipped_is_named(file, monkeypatch):
    monkeypatch.setattr(rounds, "clipped", lambda update, clip: (update, 0.0))
    assert "a sum moved by more than the clip" in run(file("rounds.toml", ROUNDS), "--holders", 1, "--steps", 2, code=1)


def test_canary_clients_have_a_row_for_each_group(file):
    found = json.loads(run(file("rounds.toml", ROUNDS), "--attack", "canary", "--canaries", 60, "--json"))
    assert (found["verdict"], [group["holders"] for group in found["groups"]]) == ("consistent", [20, 20])


def test_a_federated_runs_folder_is_audited_and_left_as_it_is(tmp_path):
    settings = Settings(clients=30, epsilon="1,4", share="0.5,0.5", delta="1e-3", seed=5)
    people = task(settings).budgets
    plan = federated.plan(people, rounds=3, per_round=10, accountant="rdp")
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_json()))
    keys = [str(client) for client in range(30)]
    with Ledger.create(tmp_path / "ledger", plan, keys, people):  # as if its server were at work
        before = {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
        assert json.loads(run(tmp_path, "--holders", 1, "--json"))["steps"] == 3
        assert {path.name: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    Ledger.create(tmp_path / "other" / "ledger", plan, [f"phone {key}" for key in keys], people).close()
    (tmp_path / "other" / "settings.json").write_text(json.dumps(settings.to_json()))
    assert "keys of their own" in refused(tmp_path / "other")


@pytest.mark.parametrize("settings", [VOTES.format("weight"), ROUNDS], ids=["votes", "rounds"])
@pytest.mark.parametrize("attack", ["lira", "rmia", "loss"])
def test_shadow_models_are_for_training_alone(settings, attack, file):
    assert "is for models of sartor train" in refused(file("settings.toml", settings), "--attack", attack)


def test_a_page_is_not_written_among_a_runs_files(config, tmp_path):
    out = tmp_path / "run"
    assert CliRunner().invoke(app, ["train", "--config", str(config), "--out", str(out)]).exit_code == 0
    assert "which an audit leaves as it is" in refused(out, "--attack", "canary", "--page", out / "model.safetensors")
    assert "is a file that this command reads" in refused(config, "--attack", "canary", "--page", config)


def test_what_is_no_run_is_refused(tmp_path, file):
    assert "there is no" in refused(tmp_path / "nowhere")
    assert "is not the folder of a run" in refused(tmp_path)
    assert "name no data" in refused(file("empty.toml", "steps = 4\n"))
    unsound = SETTINGS + 'scheme = "rounds"\nform = "published"\nunsound = true\n'
    assert "published" in refused(file("published.toml", unsound))
    assert "command is train, pate or federate" in refused(file("other.toml", 'command = "account"'))
    assert "makes no promise" in refused(file("dependent.toml", VOTES.format("weight") + 'bound = "dependent"\n'))


def own_table(file):
    """Settings of people's own table."""
    table = file("people.csv", [{"x": i % 7, "y": i % 2, "epsilon": 1 + (i // 2) % 2} for i in range(60)])
    schema = file("schema.toml", 'target = "y"\nclasses = ["0", "1"]\nfeatures = ["x"]\n[columns.x]\nbounds = [0, 7]\n')
    common = f'table = "{table}"\nschema = "{schema}"\nbudget_column = "epsilon"\ndelta = "1e-3"\nsteps = 4\nbatch = 20\n'
    return file("own.toml", common + 'accountant = "rdp"\n')


def test_a_page_of_peoples_own_table_is_for_its_owner_alone_and_says_so(file, config, tmp_path):
    own, shown = tmp_path / "own.html", tmp_path / "shown.html"
    found = json.loads(run(own_table(file), "--attack", "canary", "--canaries", 20, "--sensitive", "--page", own, "--json"))
    assert found["sensitive"] is True
    assert stat.S_IMODE(own.stat().st_mode) == 0o600
    assert "Show them to nobody" in own.read_text()
    assert "sensitive" not in json.loads(run(config, "--attack", "canary", "--canaries", 20, "--page", shown, "--json"))
    assert "Show them to nobody" not in shown.read_text()


def test_the_confidence_and_the_seed_that_are_asked_for_count(config):
    asked = "--attack", "canary", "--canaries", 60, "--json"
    one, sure, other = (json.loads(run(config, *asked, *more)) for more in ((), ("--confidence", 0.9), ("--seed", 1)))
    assert (one["confidence"], sure["confidence"]) == (0.99, 0.9)
    assert [group["auc"] for group in one["groups"]] == [group["auc"] for group in sure["groups"]]
    assert [group["auc"] for group in one["groups"]] != [group["auc"] for group in other["groups"]]


@pytest.fixture
def judged(monkeypatch):
    """By what `findings` is asked: the scores, those that bounds may be computed from, and the kinds of bounds."""
    judging = sys.modules["sartor.audit.findings"]  # the package has a function of this name
    asked, right = [], judging.findings

    def noted(attack, scores, plan, **how):
        asked.append((scores, how.get("counted"), how.get("bounds")))
        return right(attack, scores, plan, **how)

    monkeypatch.setattr(judging, "findings", noted)
    return asked


def sizes(scores):
    return [len(one.inside) + len(one.outside) for one in scores.values()]


def test_canaries_are_judged_by_the_bounds_that_hold_for_them_and_are_as_many_as_asked_for(file, config, judged):
    for path in (config, file("rounds.toml", ROUNDS), file("votes.toml", VOTES.format("weight"))):
        run(path, "--attack", "canary", "--canaries", 80)
    assert [bounds for *_, bounds in judged] == [AS_PLANNED, AS_PLANNED, REPEATED]
    assert [sizes(scores) for scores, *_ in judged] == [[40, 40]] * 3


@pytest.mark.parametrize("attack", ["lira", "rmia", "loss"])
def test_bounds_are_counted_on_one_shadow_model_in_which_everybodys_coin_was_their_own(attack, config, judged, monkeypatch):
    def trained(make, data, budgets, plan, *, models, **how):
        signals = np.random.default_rng(1).standard_normal((models, len(budgets)))
        return Shadows(coins(models, len(budgets), 1), signals, plan.groups_of(budgets), signals[:, :9])

    monkeypatch.setattr(shadows, "train_shadows", trained)
    run(config, "--attack", attack, "--shadows", 6)
    ((scores, counted, bounds),) = judged
    assert bounds == ONE_RUN
    assert sizes(scores) == [6 * size for size in sizes(counted)]


def test_shadow_models_are_not_kept_among_a_runs_files(config, tmp_path):
    out = tmp_path / "run"
    assert CliRunner().invoke(app, ["train", "--config", str(config), "--out", str(out)]).exit_code == 0
    assert "which an audit leaves as it is" in refused(out, "--attack", "loss", "--shadows", 2, "--cache", out / "cache")


class Asked(Exception):
    """What the library was asked for."""


@pytest.fixture
def asked(monkeypatch):
    """What an attack is asked to look at, which it then does not."""

    def instead(module, name, *arguments):
        def noted(*given, **how):
            raise Asked(*given, how)

        monkeypatch.setattr(importlib.import_module(f"sartor.audit.{module}"), name, noted)
        result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
        assert isinstance(result.exception, Asked), result.output + str(result.exception)
        return result.exception.args

    return instead


def two_rows_each(file):
    """Settings of a table of holders who have two rows each."""
    rows = [{"person": f"p{i // 2}", "x": i % 7, "y": i % 2, "epsilon": 1 + (i // 2) % 2} for i in range(60)]
    schema = file("schema.toml", 'target = "y"\nclasses = ["0", "1"]\nfeatures = ["x"]\n[columns.x]\nbounds = [0, 7]\n')
    common = f'table = "{file("people.csv", rows)}"\nschema = "{schema}"\nid_column = "person"\nbudget_column = "epsilon"\ndelta = "1e-3"\n'
    return file("own.toml", common + 'steps = 4\nbatch = 10\naccountant = "rdp"\nlr = 0.3\nmomentum = 0.7\n')


@pytest.mark.parametrize(
    ("attack", "name"), [("replay", "replay.replay"), ("canary", "canaries.canary_attack"), ("lira", "shadows.train_shadows")]
)
def test_holders_with_several_rows_are_audited_as_one_in_every_way(attack, name, file, asked):
    *_, how = asked(*name.split("."), two_rows_each(file), "--sensitive", "--attack", attack)
    assert how["ownership"].of_record.tolist() == np.repeat(np.arange(30), 2).tolist()


def test_attacks_train_as_the_run_did(file, asked):
    settings = two_rows_each(file)
    *_, how = asked("canaries", "canary_attack", settings, "--sensitive", "--attack", "canary")
    assert (how["lr"], how["momentum"], how["optimizer"]) == (0.3, 0.7, "sgd")
    *_, how = asked("shadows", "train_shadows", settings, "--sensitive", "--attack", "loss")
    assert (how["learning"].lr, how["learning"].momentum, how["learning"].optimizer) == (0.3, 0.7, "sgd")


def test_an_ensemble_of_people_with_several_records_is_attacked_by_holder(tmp_path):
    people = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    owners = sartor.Ownership(np.repeat(np.arange(100), np.resize([1, 3], 100)).tolist(), 100)
    plan = pate.plan(people, "upsample", teachers=20, aggregator=pate.GNMax(20))
    pate.EnsembleFolder.create(tmp_path / "kept", plan, people, ownership=owners)
    assert len(json.loads(run(tmp_path / "kept", "--sensitive", "--attack", "canary", "--canaries", 8, "--json"))["groups"]) == 2


def test_clients_of_a_federated_run_are_replayed_with_their_own_rows(tmp_path, asked):
    settings = Settings(clients=30, epsilon="1,4", share="0.5,0.5", delta="1e-3", seed=5)
    made, took_part = task(settings), [7, 3, *range(10, 28)]
    people = sartor.Budgets(made.budgets.epsilon[took_part], delta=made.budgets.delta[took_part])
    (tmp_path / "settings.json").write_text(json.dumps(settings.to_json()))
    plan = federated.plan(people, rounds=3, per_round=10, accountant="rdp")
    Ledger.create(tmp_path / "ledger", plan, [str(client) for client in took_part], people).close()
    _, data, *_ = asked("replay_rounds", "replay_rounds", tmp_path)
    rows = np.concatenate([made.rows[client] for client in took_part])
    assert all(torch.equal(here, there[rows]) for here, there in zip(data.tensors, made.data.train.tensors, strict=True))


# --- what is no verdict, and what is told beside one ---


def test_a_defect_is_no_verdict(config, monkeypatch, capsys):
    def broken(*given, **settings):
        raise RuntimeError("a defect")

    monkeypatch.setattr("sartor.cli.audited_steps.AuditedSteps.replayed", broken)
    with pytest.raises(SystemExit) as ended:
        main(["audit", str(config)])
    assert ended.value.code == 70
    told = capsys.readouterr()
    assert "nothing is said of any promise" in told.err
    assert not told.out


def test_runs_on_arrays_are_audited_where_sensitive_is_said(tmp_path):
    drawn, place = np.random.default_rng(0), tmp_path / "arrays"
    place.mkdir()
    for part, rows in (("train", 80), ("test", 20)):
        np.save(place / f"x_{part}.npy", drawn.standard_normal((rows, 4)).astype(np.float32))
        np.save(place / f"y_{part}.npy", drawn.integers(2, size=rows))
    settings = tmp_path / "settings.toml"
    settings.write_text(f'arrays = "{place}"\n' + SETTINGS.partition("\n")[2].replace("60", "20"))
    assert "people's own" in refused(settings)
    document = json.loads(run(settings, "--sensitive", "--holders", 1, "--steps", 2, "--json"))
    assert (document["verdict"], document["sensitive"]) == ("consistent", True)
    assert "--page" in refused(settings, "--sensitive", "--attack", "canary", "--page", place / "x_train.npy")


def test_a_run_is_audited_by_what_it_promised_though_somebody_allows_less_by_now(tmp_path):
    rows = [f"{place},{place % 2},{1 if place % 3 else 4}" for place in range(120)]
    table, place = tmp_path / "people.csv", tmp_path / "run"
    table.write_text("\n".join(["x,ill,epsilon", *rows]))
    asked = ["--table", table, "--target", "ill", "--budget-column", "epsilon", "--delta", "1e-3", "--steps", 4, "--batch", 20]
    with pytest.warns(sartor.SartorWarning):
        made = CliRunner().invoke(app, [str(part) for part in ("train", *asked, "--accountant", "rdp", "--out", place)])
    assert made.exit_code == 0, made.output
    table.write_text("\n".join(["x,ill,epsilon", rows[0][:-1] + "1", *rows[1:]]))
    with pytest.warns(sartor.SartorWarning):
        audited = CliRunner().invoke(app, ["audit", str(place), "--sensitive", "--holders", "1", "--json"])
    assert json.loads(audited.stdout)["verdict"] == "consistent"
    assert "what people allow has changed since this run began" in audited.stderr


def test_of_an_ensembles_folder_it_is_told_that_teachers_are_not_seen(tmp_path):
    asked = "--dataset digits --teachers 10 --workers 1 --aggregator gnmax --noise 12 --epsilon 1,4 --share 0.5,0.5 --delta 1e-3 --keep"
    made = CliRunner().invoke(app, ["pate", *asked.split(), str(tmp_path / "kept")])
    assert made.exit_code == 0, made.output
    found = json.loads(run(tmp_path / "kept", "--sensitive", "--steps", 5, "--json"))
    assert found["verdict"] == "consistent"
    assert any(unseen.startswith("teachers and what they learn from") for unseen in found["unseen"])
    assert "--holders goes with its settings" in refused(tmp_path / "kept", "--sensitive", "--holders", 2)


TASK = 'command = "federate"\ndataset = "digits"\nclients = 100\nrounds = 4\nper_round = 30\n'
FAR = TASK + 'epsilon = "1,4"\nshare = "0.5,0.5"\ndelta = "1e-3"\n'


@pytest.mark.parametrize("name", ["update-clipped-array-by-array", "update-clipped-at-three-times-the-clip"])
def test_clients_go_far_enough_that_their_clip_is_seen(name, file):
    settings = file("rounds.toml", FAR)
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'sartor[federated]'")
    sound = json.loads(run(settings, "--holders", 2, "--json"))
    assert sound["verdict"] == "consistent"
    assert sound["largest_move"] > 0.99
    with planted(name):
        assert json.loads(run(settings, "--holders", 2, "--json", code=1))["verdict"] == "refuted"
