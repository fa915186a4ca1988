"""`sartor audit`: attacks and replay from a run's settings, and what is refused."""

import json
import stat

import pytest
from typer.testing import CliRunner

from sartor.cli import app
from sartor.errors import SartorError
from sartor.sgd.run import Run

SETTINGS = 'dataset = "digits"\nsteps = 6\nbatch = 60\nepsilon = "1,4"\nshare = "0.5,0.5"\ndelta = "1e-4"\naccountant = "rdp"\n'


@pytest.fixture
def config(file):
    return file("settings.toml", SETTINGS)


def run(*arguments):
    result = CliRunner().invoke(app, ["audit", *map(str, arguments)])
    assert result.exit_code == 0, result.output + str(result.exception)
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
    }
    assert document["largest_move"] < 1


def test_a_broken_one_is_refuted_by_replay_and_in_words(config, monkeypatch):
    right = Run._noisy

    def loud(self, sums, step):
        return {name: value / 3 for name, value in right(self, sums, step).items()}

    monkeypatch.setattr(Run, "_noisy", loud)
    assert "the noise is not of the deviation that the plan says" in run(config, "--holders", 1, "--steps", 3)


def test_canaries_have_a_row_for_each_group_and_a_page(config, tmp_path):
    document = json.loads(run(config, "--attack", "canary", "--canaries", 60, "--page", tmp_path / "page.html", "--json"))
    assert (document["attack"], document["verdict"]) == ("canary", "consistent")
    assert [group["epsilon"] for group in document["groups"]] == [1, 4]
    assert "<svg" in (tmp_path / "page.html").read_text()


@pytest.mark.long
@pytest.mark.parametrize("attack", ["lira", "rmia", "loss"])
def test_shadow_models_are_trained_and_their_signals_kept_for_the_owner(attack, config, tmp_path):
    cache = tmp_path / "cache"
    first = run(config, "--attack", attack, "--shadows", 4, "--cache", cache, "--json")
    assert json.loads(first)["attack"] == attack
    assert all(stat.S_IMODE(path.stat().st_mode) == 0o600 for path in cache.rglob("*") if path.is_file())
    assert run(config, "--attack", attack, "--shadows", 4, "--cache", cache, "--json") == first


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
    assert (found["verdict"], found["sensitive"]) == ("consistent", True)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--attack", "guess"], "--attack is"),
        (["--attack", "replay", "--shadows", "4"], "--shadows goes with --attack lira or rmia or loss"),
        (["--attack", "canary", "--holders", "4"], "--holders goes with"),
        (["--attack", "lira", "--canaries", "4"], "--canaries goes with"),
        (["--confidence", "1"], "--confidence"),
        (["--seed", "-1"], "--seed"),
        (["--holders", "0"], "1 or more"),
        (["--page", "x.html"], "ROC"),
        (["--attack", "lira", "--shadows", "3"], "pairs"),
        (["--attack", "canary", "--canaries", "1"], "a canary for each"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(options, words, config):
    assert words in refused(config, *options)


def test_what_is_no_run_is_refused(tmp_path, file):
    assert "there is no" in refused(tmp_path / "nowhere")
    assert "the settings" in refused(tmp_path)
    unsound = SETTINGS + 'scheme = "rounds"\nform = "published"\nunsound = true\n'
    assert "published" in refused(file("published.toml", unsound))
