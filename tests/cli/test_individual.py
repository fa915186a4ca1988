"""Individual accounts on the command line: train with them, tell one holder their own, release statistics out of the reserve."""

import contextlib
import io
import json
import stat
import subprocess
import sys
from typing import NamedTuple

import numpy as np
import pytest

import sartor
from sartor.cli import main
from sartor.individual.reserve import Reserve
from sartor.report.folder import RunFolder
from sartor.run.charges import Charges
from sartor.sgd.optimizer import PrivateOptimizer

SHORT = ["--dataset", "digits", "--steps", "24", "--batch", "64", "--refresh", "4"]


class Ran(NamedTuple):
    exit_code: int
    stdout: str
    stderr: str


def run(*arguments):
    """One command, here; also for fixtures that many tests share."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main([str(argument) for argument in arguments])
    return Ran(stop.value.code, out.getvalue(), err.getvalue())


def trained(folder, *arguments):
    found = run("train", *SHORT, "--out", folder, "--json", *arguments)
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout)


@pytest.fixture(scope="module")
def ladder(tmp_path_factory):
    """A run with a filter and a reserve, and what it printed."""
    folder = tmp_path_factory.mktemp("individual") / "run"
    return folder, trained(folder, "--individual", "ladder", "--full-steps", "16", "--reserve", "0.5")


def test_train_says_when_full_norm_rests(ladder):
    _, printed = ladder
    assert printed["individual"] == {"kind": "ladder", "refresh": 4, "full_steps": 16}
    assert [group["rests_at"] for group in printed["groups"]] == [16, 16, 16]
    assert printed["plan"]["filter"] == printed["individual"]


def test_train_prints_of_the_training_records_nothing_but_how_many_there_are(ladder):
    """All else is the plan's, or was found on public rows; readings are not for everybody."""
    folder, printed = ladder
    assert set(printed) == {"accuracy", "seconds", "steps", "holders", "records", "individual", "plan", "groups"}
    assert printed["plan"] == RunFolder(folder).plan().to_json()
    assert all(set(group) == {"epsilon", "holders", "spent", "rests_at"} for group in printed["groups"])
    assert set(json.loads((folder / "account.json").read_text())["groups"][0]) == {"epsilon", "delta", "holders", "spent"}


@pytest.mark.long
def test_a_ladder_of_ones_own_is_kept_with_the_run(tmp_path):
    (tmp_path / "own.toml").write_text("ladder = [1, 3, 9]\n")
    printed = trained(tmp_path / "run", "--individual", "ladder", "--config", tmp_path / "own.toml")
    assert printed["plan"]["filter"] == {"kind": "ladder", "refresh": 4, "full_steps": 16}
    assert RunFolder(tmp_path / "run").plan().filter.costs.tolist() == [[1, 3, 9]] * 3
    assert 'ladder = "1,3,9"' in (tmp_path / "run" / "config.toml").read_text()


def test_what_tells_of_single_people_is_for_the_owner_alone(ladder):
    folder, _ = ladder
    assert stat.S_IMODE((folder / "individual.npz").stat().st_mode) == 0o600
    assert stat.S_IMODE((folder / "reserve").stat().st_mode) == 0o700
    shared, kept = RunFolder(folder).shared(RunFolder(folder).plan())
    assert "individual.npz" in kept
    assert "individual.npz" not in shared


def test_the_plan_in_the_folder_is_judged_again(ladder):
    folder, _ = ladder
    found = run("account", folder, "--json")
    assert found.exit_code == 0, found.stderr
    plan = RunFolder(folder).plan()
    assert [group["pld"] for group in json.loads(found.stdout)["groups"]] == pytest.approx(plan.spent.tolist())
    assert sartor.Plan.load(folder / "plan.json") == plan


def test_a_statement_is_of_one_holder(ladder):
    folder, _ = ladder
    reading, _, _ = RunFolder(folder).reading()
    budgets = RunFolder(folder).budgets()
    found = json.loads(run("account", folder, "--holder", 7, "--json").stdout)
    assert found["guarantee"]["epsilon"] == budgets.epsilon[7]
    assert found["reading"]["epsilon"] == pytest.approx(reading.accounts(sensitive=True)[7])
    assert found["reading"]["ex_post"] is True
    text = run("account", folder, "--holder", "7").stdout
    assert "not a guarantee" in " ".join(text.split())


def test_a_release_is_charged_once_and_no_more_than_the_reserve(ladder):
    folder, _ = ladder
    asked = ["account", folder, "--release", "mean,quantiles,groups", "--epsilon", "0.3", "--json"]
    first = run(*asked)
    assert first.exit_code == 0, first.stderr
    found = json.loads(first.stdout)
    assert set(found) >= {"mean", "quantiles", "groups", "epsilon"}
    assert set(found["quantiles"]) == {"0.1", "0.3", "0.5", "0.7", "0.9"}
    assert len(found["groups"]) == 3
    assert found["epsilon"] == 0.3
    assert json.loads(run(*asked).stdout) == found
    charges = sorted(path.name for path in (folder / "reserve").glob("charge-*"))
    assert len(charges) == 1
    beyond = run("account", folder, "--release", "mean", "--epsilon", "0.3")
    assert beyond.exit_code == 2
    assert "reserve" in beyond.stderr
    assert sorted(path.name for path in (folder / "reserve").glob("charge-*")) == charges
    assert run("account", folder, "--release", "mean,histogram,correlation", "--epsilon", "0.1").exit_code == 0


def charged(folder):
    return sorted(path.name for path in (folder / "reserve").glob("charge-*"))


@pytest.mark.parametrize("shown", [[], ["--json"]], ids=["table", "json"])
def test_nothing_is_printed_that_is_not_charged(ladder, monkeypatch, shown):
    def failing(charges, charge, lock):
        raise sartor.SartorError("no space left on the disk.")

    monkeypatch.setattr(Charges, "add", failing)
    before = charged(ladder[0])
    found = run("account", ladder[0], "--release", "mean,quantiles,groups", "--epsilon", "0.04", *shown)
    assert found.exit_code == 2
    assert "no space" in found.stderr
    assert found.stdout == ""
    assert charged(ladder[0]) == before


def test_what_is_released_is_of_the_runs_own_people(ladder, monkeypatch):
    seen = []

    def looking(reserve, figures, request, *, epsilon):
        seen.append(figures)
        raise sartor.SartorError("seen.")

    monkeypatch.setattr(Reserve, "release", looking)
    run("account", ladder[0], "--release", "groups,correlation", "--epsilon", "0.04")
    folder = RunFolder(ladder[0])
    plan, budgets, (reading, _, _) = folder.plan(), folder.budgets(), folder.reading()
    assert np.array_equal(seen[0].account, reading.accounts(sensitive=True))
    assert np.array_equal(plan.epsilon[seen[0].group], budgets.epsilon)
    assert np.all((seen[0].correct == 0) | (seen[0].correct == 1))  # one record each
    assert np.mean(seen[0].loss[seen[0].correct == 1]) < np.mean(seen[0].loss[seen[0].correct == 0])


def test_of_a_run_that_is_not_private_nothing_is_released_and_nothing_guaranteed(ladder, monkeypatch):
    monkeypatch.setattr(RunFolder, "account", lambda folder: {"private": False})
    before = charged(ladder[0])
    found = run("account", ladder[0], "--release", "mean", "--epsilon", "0.04")
    assert found.exit_code == 2
    assert "not private" in " ".join(found.stderr.split())
    assert found.stdout == ""
    assert charged(ladder[0]) == before
    assert "guarantees nothing" in " ".join(run("account", ladder[0], "--holder", "7").stdout.split())


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--holder", "1437"], "place"),
        (["--holder", "9" * 30], "a place from 0 to 1,436"),
        (["--holder", "9" * 9_000], "a place from 0 to 1,436"),
        (["--holder", "ann"], "no names"),
        (["--holder", "1", "--release", "mean"], "one of"),
        (["--holder", "1", "--epsilon", "1"], "costs nothing"),
        (["--holder", "1", "--steps", "3"], "folder alone"),
        (["--release", "mean"], "--epsilon"),
        (["--release", "median", "--epsilon", "0.1"], "median"),
        (["--release", "", "--epsilon", "0.1"], "some of"),
        (["--release", "mean", "--epsilon", "0"], "0.0001 or more"),
        (["--release", "mean", "--epsilon", "nan"], "0.0001 or more"),
        (["--epsilon", "0.1"], "one of"),
    ],
)
def test_what_makes_no_sense_is_refused_in_one_sentence(ladder, arguments, sentence):
    found = run("account", ladder[0], *arguments)
    assert found.exit_code == 2
    assert sentence in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--individual", "natural"], "natural"),
        (["--refresh", "4"], "--individual"),
        (["--individual", "strict", "--full-steps", "4"], "filter"),
        (["--individual", "ladder", "--refresh", "0"], "--refresh"),
        (["--individual", "ladder", "--full-steps", "0"], "--full-steps"),
        (["--individual", "ladder", "--full-steps", "301"], "full_steps"),
        (["--individual", "renyi", "--accountant", "pld"], "rdp"),
        (["--individual", "strict", "--ladder", "1,2"], "--individual ladder"),
        (["--individual", "ladder", "--ladder", "2,1"], "ascending"),
        (["--scheme", "equal"], "filter"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(tmp_path, arguments, sentence):
    found = run("train", "--dataset", "digits", "--out", tmp_path / "run", *arguments)
    assert found.exit_code == 2
    assert sentence in " ".join(found.stderr.split())
    assert not (tmp_path / "run").exists()


def test_without_a_reserve_nothing_is_released(tmp_path):
    printed = trained(tmp_path / "run", "--individual", "strict")
    assert printed["individual"] == {"kind": "strict", "refresh": 4, "full_steps": 24}
    found = run("account", tmp_path / "run", "--release", "mean", "--epsilon", "0.1")
    assert found.exit_code == 2
    assert "reserve" in found.stderr
    assert run("account", tmp_path / "run", "--holder", "3").exit_code == 0


def test_a_run_without_individual_accounts_has_none(tmp_path):
    plain = run("train", "--dataset", "digits", "--steps", "4", "--out", tmp_path / "plain", "--json")
    assert "individual" not in json.loads(plain.stdout)
    found = run("account", tmp_path / "plain", "--holder", "3")
    assert found.exit_code == 2
    assert "--individual" in found.stderr


@pytest.mark.long
def test_a_seeded_run_releases_nothing(tmp_path):
    trained(tmp_path / "run", "--individual", "renyi", "--reserve", "0.5", "--seed", "1")
    found = run("account", tmp_path / "run", "--release", "mean", "--epsilon", "0.1")
    assert found.exit_code == 2
    assert "not private" in " ".join(found.stderr.split())


def test_a_reserve_that_cannot_be_read_stops_a_resumed_run_before_its_first_step(tmp_path, monkeypatch):
    def interrupted(self, closure=None):
        raise KeyboardInterrupt

    monkeypatch.setattr(PrivateOptimizer, "step", interrupted)
    given = ["train", *SHORT, "--individual", "estimate", "--reserve", "0.5", "--out", tmp_path / "run"]
    assert run(*given).exit_code == 130
    (tmp_path / "run/reserve/reserve.json").write_text("")
    found = run("train", "--resume", "--out", tmp_path / "run")
    assert (found.exit_code, "reserve.json is not JSON" in found.stderr) == (2, True)


@pytest.mark.long
def test_a_killed_run_resumes_to_the_same_readings(tmp_path):
    """Killed between two steps, by the process itself, and continued by another."""
    arguments = [*SHORT, "--individual", "ladder", "--seed", "1"]
    trained(tmp_path / "whole", "--individual", "ladder", "--seed", "1")
    code = (
        "import os, sartor.sgd.run as r\n"
        "finish = r.Run.finish\n"
        "def dying(run):\n"
        "    if run.steps == 13: os._exit(9)\n"
        "    return finish(run)\n"
        "r.Run.finish = dying\n"
        "from sartor.cli import main\n"
        f"main({['train', *arguments, '--out', str(tmp_path / 'cut')]!r})\n"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 9
    assert run("train", "--resume", "--out", tmp_path / "cut").exit_code == 0
    whole, cut = (RunFolder(tmp_path / name).reading() for name in ("whole", "cut"))
    for then, now in zip((whole[0].accounts(sensitive=True), *whole[1:]), (cut[0].accounts(sensitive=True), *cut[1:]), strict=True):
        assert np.array_equal(then, now)
    model = [(tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "cut")]
    assert model[0] == model[1]
