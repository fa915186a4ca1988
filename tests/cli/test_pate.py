"""`sartor pate`: an ensemble by everyone's budget, labels and a student, from one command."""

import json
import os
import re

import pytest

SMALL = ["pate", "--teachers", "8", "--workers", "1", "--epochs", "3", "--epsilon", "20,60", "--share", ".5,.5", "--delta", "1e-4"]
KEYS = {"variant", "labels", "queries", "label_accuracy", "student_accuracy", "teachers", "bound", "sensitive", "private", "groups"}


def document(run, *arguments):
    code, out, err = run(*SMALL, "--seed", "1", "--json", *arguments)
    assert code == 0, err
    return json.loads(out, parse_constant=pytest.fail)


@pytest.mark.parametrize("variant", ["standard", "upsample", "weight", "vanish"])
def test_every_variant_labels_and_keeps_every_budget(run, variant):
    found = document(run, "--variant", variant)
    assert found.keys() == KEYS
    assert found["variant"] == variant
    assert 0 < found["labels"] <= found["queries"] <= 260
    assert 0 <= found["label_accuracy"] <= 1
    assert 0 <= found["student_accuracy"] <= 1
    assert found["teachers"] == (16 if variant == "upsample" else 8)
    assert [group["holders"] for group in found["groups"]] == [719, 718]
    for group, allowed in zip(found["groups"], (20, 60), strict=True):
        assert group["epsilon"] == allowed
        assert 0 < group["spent"] <= allowed
    assert (found["bound"], found["sensitive"], found["private"]) == ("independent", False, False)  # seeded, so not private


def test_votes_in_a_file_are_charged_each_time_until_nothing_is_left(run, tmp_path):
    path = tmp_path / "votes.npz"
    first = document(run, "--votes", path, "--labels", "2")
    assert first["labels"] == 2
    assert os.stat(path).st_mode & 0o777 == 0o600
    second = document(run, "--votes", path)
    assert all(one["spent"] < two["spent"] <= two["epsilon"] for one, two in zip(first["groups"], second["groups"], strict=True))
    third = document(run, "--votes", path)
    assert third["labels"] == 0
    assert third["groups"] == second["groups"]
    assert third["student_accuracy"] is None
    code, out, err = run(*SMALL, "--seed", "1", "--votes", path, "--variant", "upsample")
    assert (code, out) == (2, "")
    assert "another plan" in err


def test_a_private_run_finds_its_finished_teachers_again(run, tmp_path):
    keep = ["--keep", tmp_path / "kept", "--variant", "upsample", "--json"]
    code, out, err = run(*SMALL, *keep)
    assert code == 0, err
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "teachers").iterdir()}
    assert run(*SMALL, *keep)[0] == 0
    assert files == {path: path.stat().st_mtime_ns for path in (tmp_path / "kept" / "teachers").iterdir()}
    assert os.stat(tmp_path / "kept" / "who.json").st_mode & 0o777 == 0o600
    assert json.loads(out)["private"] is True


def test_labels_are_written_as_a_table(run, tmp_path):
    found = document(run, "--out", tmp_path / "labels.csv")
    lines = (tmp_path / "labels.csv").read_text().splitlines()
    assert lines[0] == "query,label"
    assert len(lines) - 1 == found["labels"]


def test_the_dependent_bound_says_that_it_is_sensitive(run):
    code, out, err = run(*SMALL, "--seed", "1", "--json", "--bound", "dependent", "--accounting", "paper")
    assert code == 0
    assert json.loads(out)["sensitive"] is True
    assert "warning (DataDependent)" in err


def test_people_read_what_it_means(run):
    code, out, _ = run(*SMALL, "--seed", "1")
    assert code == 0
    assert re.search(r"weight: 8 teachers labelled \d+ of \d+ queries", out)
    assert "before anyone would have spent more than they allowed" in out


@pytest.mark.parametrize(
    "arguments",
    [
        ["--variant", "best"],
        ["--dataset", "cifar10"],
        ["--teachers", "0"],
        ["--teachers", "100000"],
        ["--aggregator", "mean"],
        ["--aggregator", "gnmax", "--threshold", "3"],
        ["--noise", "0"],
        ["--bound", "none"],
        ["--accounting", "loose"],
        ["--go-on", "--variant", "upsample"],
        ["--votes", "README.md"],
        ["--labels", "0"],
        ["--epsilon", "inf,1"],
        ["--reserve", "2"],
        ["--bound", "dependent", "--accounting", "exact"],
        ["--votes", "/nowhere/votes"],
        ["--noise", "1e200"],
    ],
    ids=" ".join,
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, arguments):
    code, out, err = run(*SMALL, *arguments)
    assert (code, out) == (2, "")
    assert re.search(r"error: \S[^\n]*\n$", err)
