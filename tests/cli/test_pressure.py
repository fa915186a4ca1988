"""Commands that are given nonsense, interrupted, or whose output nobody reads: one sentence, a right exit code, nothing spent or left."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from sartor.cli import main
from sartor_testing.amount import most_are_long

SMALL = ["--epsilon", "1,2", "--share", "0.5,0.5", "--holders", "1000", "--delta", "1e-5", "--steps", "200", "--batch", "10"]
LONG = "a" * 5000


def run(capsys, *arguments):
    with pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    printed = capsys.readouterr()
    return stop.value.code, printed.out, printed.err


def started(*arguments, **options):
    return subprocess.Popen([sys.executable, "-m", "sartor", *map(str, arguments)], stderr=subprocess.PIPE, text=True, **options)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["train", "--dataset", "digits", "--momentum", "nan"], "momentum"),
        (["train", "--dataset", "digits", "--momentum", "inf"], "momentum"),
        (["train", "--dataset", "digits", "--momentum", "-1"], "momentum"),
        (["train", "--dataset", "digits", "--lr", "-inf"], "learning rate"),
        (["train", "--dataset", "digits", "--seed", "99999999999999999999"], "seed"),
        (["train", "--dataset", "digits", "--out", LONG], "name too long"),
        (["pate", "--dataset", "digits", "--seed", "99999999999999999999"], "seed"),
        (["plan", *SMALL, "--seed", "-1"], "seed"),
        (["plan", *SMALL, "--out", LONG], "name too long"),
        (["account", LONG], "name too long"),
        (["plan", "--epsilon", "1_0", "--holders", "10", "--delta", "1e-5", "--steps", "1", "--batch", "1"], "1_0"),
        (["train", "--dataset", "digits", "--config", LONG], "name too long"),
        (["train", "--table", LONG, "--target", "y"], "name too long"),
    ],
)
def test_nonsense_ends_with_one_sentence_and_leaves_nothing(capsys, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *arguments)
    assert code == 2
    assert out == ""
    assert words in err.lower()
    assert "traceback" not in err.lower()
    assert len(err.strip().splitlines()) == 1
    assert list(tmp_path.iterdir()) == []


def test_documents_that_are_no_documents_end_with_one_sentence(capsys, file):
    nested = file("nested.json", "[" * 100_000 + "]" * 100_000)
    assert run(capsys, "account", nested)[0] == 2
    people = file("people.csv", "holder,epsilon\na,1_0\nb,2\n")
    code, _, err = run(capsys, "plan", "--budgets", people, "--delta", "1e-5", "--steps", "5", "--batch", "1")
    assert (code, "line 2" in err) == (2, True)
    levels = file("levels.csv", "holder,level\na,strict\nb,open\n")
    policy = file("policy.toml", "delta = 1e-5\n[levels]\nstrict = true\nopen = 2\n")
    code, _, err = run(capsys, "plan", "--budgets", levels, "--policy", policy, "--steps", "5", "--batch", "1")
    assert (code, "strict" in err) == (2, True)


def test_the_version_is_told(capsys):
    code, out, _ = run(capsys, "--version")
    assert code == 0
    assert out.startswith("sartor 0.")


def test_an_output_that_nobody_reads_leaves_no_half_made_run(tmp_path):
    """As in `sartor train --out RUN | head -1`: the run is whole, or there is none and it can be begun."""
    reading, writing = os.pipe()
    process = started("train", "--dataset", "digits", "--steps", "20", "--out", tmp_path / "run", stdout=writing)
    os.close(writing)
    os.close(reading)
    _, err = process.communicate(timeout=300)
    assert (process.returncode, err) == (2, "error: standard output cannot be written: nobody reads it any more.\n")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("end", [SystemExit(0), SystemExit(1), BrokenPipeError(32, "Broken pipe"), DeprecationWarning("old\nways")])
def test_a_command_that_a_package_ends_has_neither_succeeded_nor_refuted_anything(capsys, monkeypatch, end):
    def ended(*given, **settings):
        raise end

    monkeypatch.setattr("sartor.plan", ended)
    code, _, err = run(capsys, "plan", *SMALL)
    assert (code, err.count("\n"), "Traceback" in err) == (2, 1, False)


def test_warnings_that_are_errors_end_with_one_sentence(tmp_path):
    process = started("plan", *SMALL, stdout=subprocess.PIPE, env={**os.environ, "PYTHONWARNINGS": "error"})
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.count("\n")) == (2, "", 1)
    assert "start without" in err


@pytest.mark.parametrize("seconds", most_are_long([0.1, 0.2, 0.05, 0.3, 0.4], 2))
def test_a_program_that_is_stopped_while_it_starts_ends_without_a_word(seconds):
    process = started("plan", *SMALL, stdout=subprocess.PIPE)
    time.sleep(seconds)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=300)
    assert (process.returncode, out, err.replace("stopped.\n", "")) == (130, "", "")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no device that is always full")
def test_an_output_that_is_full_or_closed_is_told(tmp_path):
    with open("/dev/full", "w") as full:
        process = started("plan", *SMALL, stdout=full)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 2
    assert "standard output" in err
    assert "Traceback" not in err
    closed = started("plan", *SMALL, preexec_fn=lambda: os.close(1))
    _, err = closed.communicate(timeout=300)
    assert closed.returncode == 2
    assert "standard output" in err


def test_a_terminal_without_our_letters_shows_others(tmp_path):
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii", "LC_ALL": "C", "PYTHONUTF8": "0"}
    process = started("plan", *SMALL, stdout=subprocess.PIPE, env=ascii_only)
    out, err = process.communicate(timeout=300)
    assert process.returncode == 0, err
    assert "epsilon" in out


def test_a_folder_whose_run_took_no_step_can_be_begun_again(capsys, tmp_path):
    folder = tmp_path / "run"
    (folder / "checkpoint").mkdir(parents=True)
    (folder / "config.toml").write_text('dataset = "digits"\n')
    (folder / ".plan.json.0123456789abcdef").write_text("{")
    code, _, err = run(capsys, "train", "--dataset", "digits", "--steps", "3", "--seed", "1", "--out", folder, "--json")
    assert code == 0, err
    assert json.loads((folder / "account.json").read_text())["steps"] == 3
    for begun in (folder, tmp_path / "other"):
        (begun / "checkpoint").mkdir(parents=True, exist_ok=True)
        (begun / "checkpoint" / "journal.json").write_text("")
        (begun / "config.toml").write_text('dataset = "digits"\n')
        code, _, err = run(capsys, "train", "--dataset", "digits", "--steps", "3", "--out", begun)
        assert (code, "exists already" in err) == (2, True)
    lost = tmp_path / "lost"
    lost.mkdir()
    (lost / "config.toml").write_text('dataset = "digits"\n')
    assert run(capsys, "train", "--dataset", "digits", "--steps", "3", "--out", lost)[0] == 2


def test_an_interrupted_run_goes_on_at_the_step_that_it_was_stopped_at(tmp_path):
    folder = tmp_path / "run"
    asked = ["--steps", "200000", "--batch", "20", "--accountant", "rdp", "--out", folder]
    process = started("train", "--dataset", "digits", *asked, stdout=subprocess.DEVNULL)
    for _ in range(1200):
        if (folder / "checkpoint" / "journal.json").exists() and process.poll() is None:
            break
        time.sleep(0.1)
    time.sleep(2)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=300)
    assert process.returncode == 130
    assert "--resume" in err
    assert "Traceback" not in err
    kept = json.loads((folder / "checkpoint" / "journal.json").read_text())["run"]
    assert (kept["orderly"], 0 < kept["charged"] < 200_000, kept["lost"]) == (True, True, 0)
