"""`sartor train`: the folder of a run is one process's at a time, from its beginning to its end, so that all in it is of one run."""

import json
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest

import sartor.run.journal
from sartor.report.folder import RunFolder
from sartor.sgd.optimizer import PrivateOptimizer
from sartor_testing.amount import most_are_long

ASKED = ("train", "--dataset", "digits", "--model", "logistic", "--accountant", "rdp", "--steps", "5", "--share", "1", "--delta", "1e-4")
PAUSED = """
import sys
from sartor.cli import main
from sartor.report.folder import RunFolder
name = sys.argv[1]
done = getattr(RunFolder, name)
def paused(*given):
    found = done(*given)
    print("here", flush=True)
    sys.stdin.readline()
    return found
setattr(RunFolder, name, paused)
main(sys.argv[2:])
"""


@contextmanager
def paused_after(name, *arguments):
    """Another process that trains, and waits for a line once it has called this method of its folder."""
    command = [sys.executable, "-W", "ignore", "-c", PAUSED, name, *map(str, arguments)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as other:
        try:
            while (line := other.stdout.readline()) and line != "here\n":
                pass
            assert line, other.stderr.read()
            yield other
        finally:
            other.kill()


def go_on(other):
    out, err = other.communicate("\n", timeout=60)
    return other.returncode, out, err


def told(folder):
    """Epsilons in all that a folder tells of a run."""
    return {json.loads((folder / name).read_text())["groups"][0]["epsilon"] for name in ("plan.json", "plan-all.json", "account.json")}


def stopped(run, monkeypatch, folder):
    """A run that was stopped in a step."""

    def interrupted(self, closure=None):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(PrivateOptimizer, "step", interrupted)
        assert run(*ASKED, "--epsilon", "8", "--seed", "1", "--out", folder)[0] == 130


def test_of_two_that_begin_in_one_folder_the_second_is_refused(run, tmp_path):
    folder = tmp_path / "run"
    with paused_after("create", *ASKED, "--epsilon", "8", "--out", folder) as first:
        code, _, err = run(*ASKED, "--epsilon", "1", "--out", folder)
        assert (code, "in use by another run" in err) == (2, True)
        assert go_on(first)[0] == 0
    assert told(folder) == {8}
    assert run("account", folder)[0] == 0
    assert not (folder / "lock").exists()


@pytest.mark.long
def test_one_that_looked_before_another_began_and_ended_is_refused(run, tmp_path):
    folder = tmp_path / "run"
    with paused_after("check_new", *ASKED, "--epsilon", "8", "--out", folder) as first:
        assert run(*ASKED, "--epsilon", "1", "--out", folder)[0] == 0
        first.stdin.write("\n" * 5)
        code, _, err = go_on(first)
    assert (code, "exists already" in err) == (2, True)
    assert told(folder) == {1}


@pytest.mark.long
def test_a_killed_process_leaves_a_folder_that_can_be_begun_again(run, tmp_path):
    folder = tmp_path / "run"
    with paused_after("create", *ASKED, "--epsilon", "8", "--out", folder) as first:
        first.send_signal(signal.SIGKILL)
        first.wait()
    assert (folder / "lock").exists()
    assert run(*ASKED, "--epsilon", "1", "--out", folder)[0] == 0
    assert told(folder) == {1}


@pytest.mark.long
def test_a_run_is_continued_by_one_process_at_a_time(run, tmp_path, monkeypatch):
    folder = tmp_path / "run"
    stopped(run, monkeypatch, folder)
    with paused_after("resume", "train", "--resume", "--out", folder) as first:
        code, _, err = run("train", "--resume", "--out", folder)
        assert (code, "in use by another run" in err) == (2, True)
        assert go_on(first)[0] == 0
    assert told(folder) == {8}
    assert "is finished" in run("train", "--resume", "--out", folder)[2]


@pytest.mark.parametrize("written", most_are_long([2, 1, 3], 1))
def test_a_run_that_was_stopped_while_it_was_finished_is_finished_again(run, tmp_path, monkeypatch, written):
    folder = tmp_path / "run"
    ends = ("model.safetensors", "account.json", "report.html")
    with monkeypatch.context() as patch:
        patch.setattr(sartor.run.journal, "remove", lambda path: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*ASKED, "--epsilon", "8", "--seed", "1", "--out", folder)[0] == 130
    before = {name: (folder / name).read_bytes() for name in ends}
    for name in ends[written:]:
        (folder / name).unlink()
    assert run("train", "--resume", "--out", folder)[0] == 0
    assert {name: (folder / name).read_bytes() for name in ends[:2]} == {name: before[name] for name in ends[:2]}
    assert not (folder / "checkpoint").exists()


@pytest.mark.parametrize("name", ["plan.json", "config.toml"])
def test_a_run_whose_plan_or_settings_were_edited_is_not_continued_nor_read(run, tmp_path, monkeypatch, name):
    folder = tmp_path / "run"
    stopped(run, monkeypatch, folder)
    written = (folder / name).read_text()
    (folder / name).write_text(written.replace("5", "6"))
    for command in (("train", "--resume", "--out", folder), ("account", folder), ("audit", folder)):
        code, out, err = run(*command)
        assert (code, out, "changed since the run wrote it" in err) == (2, "", True)
    (folder / name).write_text(written)
    assert run("train", "--resume", "--out", folder)[0] == 0
    (folder / name).write_text(written.replace("5", "6"))
    assert run("account", folder)[0] == 2


@pytest.mark.parametrize("change", ["an end", "no lock"])
def test_nothing_is_written_where_another_run_may_have_ended(run, tmp_path, monkeypatch, change):
    folder, finish = tmp_path / "run", RunFolder.finish

    def late(self, *given):
        if change == "an end":
            (folder / "account.json").write_text("{}")
        else:
            (folder / "lock").unlink()
        finish(self, *given)

    monkeypatch.setattr(RunFolder, "finish", late)
    code, _, err = run(*ASKED, "--epsilon", "8", "--out", folder)
    assert (code, ("another run has ended" if change == "an end" else "lock was removed") in err) == (2, True)
    assert not (folder / "model.safetensors").exists()
    assert (folder / "checkpoint").exists()


def test_a_file_of_somebodys_that_is_called_lock_is_left_alone(run, tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/lock").write_text("mine")
    code, _, err = run(*ASKED, "--epsilon", "8", "--out", tmp_path / "run")
    assert (code, "exists already" in err) == (2, True)
    assert (tmp_path / "run/lock").read_text() == "mine"
