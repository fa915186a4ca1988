"""`sartor pate`: an ensemble by everyone's budget, labels and a student, from one command."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from sartor.errors import SartorError
from sartor.pate import EnsembleFolder, teachers
from sartor.run import files

NETWORKS = ["pate", "--teachers", "8", "--workers", "1", "--model", "network"]
SMALL = [*NETWORKS, "--epochs", "3", "--noise", "1.5", "--epsilon", "20,60", "--share", ".5,.5", "--delta", "1e-4"]
KEYS = {
    "variant",
    "forecast",
    "labels",
    "queries",
    "label_accuracy",
    "student_accuracy",
    "teachers",
    "holders",
    "bound",
    "sensitive",
    "private",
    "groups",
    "repeated",
}


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
    assert found["holders"] == 1437
    for group, allowed in zip(found["groups"], (20, 60), strict=True):
        assert group["epsilon"] == allowed
        assert 0 < group["spent"] <= allowed
    assert (found["bound"], found["sensitive"], found["private"]) == ("independent", False, False)  # seeded, so not private


@pytest.mark.parametrize("seed", [1, 2])
def test_without_options_the_bundled_digits_give_a_student(run, seed):
    code, out, err = run("pate", "--workers", "1", "--json", "--seed", seed)
    assert code == 0, err
    found = json.loads(out)
    assert [group["epsilon"] for group in found["groups"]] == [1, 2, 3]
    assert "epsilon 1,2,3 for 0.34,0.43,0.23 of the people, at delta 1e-5 are assumed" in err
    assert "These budgets pay for 21 of 260 queries.\n" in err
    assert found["forecast"]["queries"] == found["queries"] == found["labels"] == 21
    assert found["student_accuracy"] > 0.6  # chance is a tenth


def test_the_forecast_comes_before_the_teachers_and_holds(run, monkeypatch):
    found = document(run)
    assert found["forecast"]["queries"] <= found["queries"]
    assert [group["holders"] for group in found["forecast"]["groups"]] == [719, 718]
    assert min(group["queries"] for group in found["forecast"]["groups"]) == found["forecast"]["queries"]

    def train(*_, **__):
        raise SartorError("teachers are trained.")

    monkeypatch.setattr(teachers.Teachers, "taught", train)
    code, _, err = run(*SMALL, "--aggregator", "confident")
    assert code == 2
    assert re.search(
        r"These budgets pay for \d+ of 260 queries, or for more where teachers disagree\.\n.*\nerror: teachers are trained", err
    )


def test_budgets_from_which_no_student_can_come_are_refused_before_any_teacher_is_trained(run, tmp_path, monkeypatch):
    monkeypatch.setattr(teachers.Teachers, "taught", pytest.fail)
    for keep in ([], ["--keep", tmp_path / "kept"]):
        code, out, err = run("pate", "--teachers", "25", *keep)
        assert (code, out) == (2, "")
        assert re.fullmatch(r"error: these budgets pay for 1 of 260 queries, [^\n]* times as large or [^\n]* would do\.\n", err)
    assert not (tmp_path / "kept").exists()


def test_what_follows_the_votes_has_no_forecast(run):
    code, out, err = run(*SMALL, "--seed", "1", "--json", "--bound", "dependent", "--labels", "1")
    assert code == 0, err
    assert json.loads(out)["forecast"] is None
    assert "pay for" not in err


def test_labels_of_one_class_make_no_student(run):
    code, out, err = run(*SMALL, "--seed", "1", "--labels", "1")
    assert code == 0, err
    assert "nothing to learn from labels of a single class" in out


def test_runs_that_keep_their_ensemble_together_spend_one_budget(run, tmp_path):
    keep = ["--keep", tmp_path / "kept"]
    first = document(run, *keep, "--labels", "2")
    assert first["labels"] == 2
    second = document(run, *keep)
    assert all(one["spent"] < two["spent"] <= two["epsilon"] for one, two in zip(first["groups"], second["groups"], strict=True))
    third = document(run, *keep, "--further", "--out", tmp_path / "third.csv")
    assert third["labels"] == 0
    assert third["groups"] == second["groups"]
    assert third["student_accuracy"] is None
    assert not (tmp_path / "third.csv").exists()
    accounts = EnsembleFolder(tmp_path / "kept").accounts
    assert [account.queries for account in accounts] == [first["queries"], second["queries"], 0]
    for other, sentence in {"--variant=upsample": "another plan", "--epochs=4": "other settings", "--seed=2": "another seed"}.items():
        code, out, err = run(*SMALL, "--seed", "1", *keep, other)
        assert (code, out) == (2, "")
        assert sentence in err
    assert len(EnsembleFolder(tmp_path / "kept").accounts) == 3


def test_a_private_run_finds_its_finished_teachers_again(run, tmp_path):
    keep = ["--keep", tmp_path / "a folder" / "kept", "--variant", "upsample", "--json"]
    code, out, err = run(*SMALL, *keep, "--labels", "1")
    assert code == 0, err
    files = {path: path.stat().st_mtime_ns for path in (tmp_path / "a folder" / "kept").iterdir() if path.name != "charged"}
    code, again, err = run(*SMALL, *keep, "--labels", "1", "--further")
    assert code == 0, err
    assert all(path.stat().st_mtime_ns == when for path, when in files.items())
    assert os.stat(tmp_path / "a folder" / "kept").st_mode & 0o777 == 0o700
    assert json.loads(out)["private"] is json.loads(again)["private"] is True
    assert json.loads(again)["groups"][0]["spent"] > json.loads(out)["groups"][0]["spent"]


def test_named_budgets_are_found_again_and_others_are_refused(run, tmp_path):
    rows = [f"holder {i},{(20, 60)[i % 2]}" for i in range(1_437)]
    (tmp_path / "budgets.csv").write_text("\n".join(["holder,epsilon", *rows]))
    (tmp_path / "others.csv").write_text("\n".join(["holder,epsilon", *rows[::-1]]))
    small = [*NETWORKS, "--epochs", "1", "--delta", "1e-4", "--labels", "1", "--keep", tmp_path / "kept"]
    for more in ([], ["--further"]):
        code, _, err = run(*small, *more, "--budgets", tmp_path / "budgets.csv")
        assert code == 0, err
    folder = EnsembleFolder(tmp_path / "kept")
    assert folder.budgets.names == tuple(row.split(",")[0] for row in rows)
    assert [account.queries > 0 for account in folder.accounts] == [True, True]
    code, out, err = run(*small, "--budgets", tmp_path / "others.csv")
    assert (code, out) == (2, "")
    assert "other budgets or holders" in err


def outs(tmp_path):
    """Places where labels must not or cannot be written, and why."""
    kept = tmp_path / "kept"
    (tmp_path / "link").symlink_to(kept)
    (tmp_path / "to votes").symlink_to(kept / "votes")
    os.link(kept / "charge-00000", tmp_path / "another name")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "round").symlink_to("round")
    return [
        tmp_path,
        kept,
        kept / "votes",
        kept / "charge-00000",
        kept / "labels.csv",
        tmp_path / "link" / "votes",
        tmp_path / "kept" / ".." / "kept" / "charged",
        tmp_path / "to votes",
        tmp_path / "another name",
        tmp_path / "pipe",
        tmp_path / "round",
        tmp_path / "none" / "labels.csv",
        tmp_path / ("long" * 100),
        "/dev/null",
        "/proc/labels.csv",
    ]


def test_labels_that_cannot_be_written_spend_nothing_and_destroy_nothing(run, tmp_path):
    keep = ["--keep", tmp_path / "kept"]
    document(run, *keep, "--labels", "1")
    places = outs(tmp_path)
    before = {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()}
    for out in places:
        code, _, err = run(*SMALL, "--seed", "1", *keep, "--out", out)
        assert code == 2, out
        assert re.search(r"error: --out \S[^\n]*\n$", err)
        assert {path: path.read_bytes() for path in (tmp_path / "kept").iterdir()} == before
    assert not (tmp_path / "none").exists()


def test_labels_do_not_replace_what_the_command_reads(run, tmp_path):
    (tmp_path / "budgets.csv").write_text("\n".join(["holder,epsilon", *(f"holder {i},20" for i in range(1_437))]))
    (tmp_path / "link").symlink_to("budgets.csv")
    options = ["pate", "--teachers", "8", "--delta", "1e-4", "--budgets", tmp_path / "budgets.csv", "--keep", tmp_path / "kept"]
    code, _, err = run(*options, "--out", tmp_path / "link")
    assert code == 2
    assert "reads" in err
    assert (tmp_path / "budgets.csv").read_text().startswith("holder")
    assert not (tmp_path / "kept").exists()


def test_labels_that_could_not_be_written_after_all_are_had_by_the_same_command(run, tmp_path, monkeypatch):
    keep, right = ["--keep", tmp_path / "kept", "--out", tmp_path / "labels.csv", "--labels", "3"], files._write

    def full(path, content, **new):
        if path.name == "labels.csv":
            raise SartorError(f"{path} cannot be written: no space left.")
        right(path, content, **new)

    with monkeypatch.context() as patch:
        patch.setattr(files, "_write", full)
        code, _, err = run(*SMALL, "--seed", "1", *keep)
    assert code == 2
    assert "the same command without --further writes them at no further cost" in err
    found = document(run, *keep)
    assert (found["labels"], found["repeated"]) == (3, True)
    assert len((tmp_path / "labels.csv").read_text().splitlines()) == 4
    assert len(EnsembleFolder(tmp_path / "kept").accounts) == 1


KILLED = """
import os, signal, sys
from sartor.cli import main, pate

def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)

pate._report = die
main(sys.argv[1:])
"""


def test_a_run_killed_between_the_charge_and_its_output_gives_the_same_labels_at_no_further_cost(run, tmp_path):
    keep = ["--keep", str(tmp_path / "kept"), "--labels", "3"]
    assert subprocess.run([sys.executable, "-c", KILLED, *SMALL, *keep], capture_output=True).returncode == -signal.SIGKILL
    paid = EnsembleFolder(tmp_path / "kept")
    code, out, err = run(*SMALL, *keep, "--json", "--out", tmp_path / "labels.csv")
    assert code == 0, err
    assert "were given and paid for before, and nothing further is charged; --further asks for more" in err
    assert "pay for" not in err
    found = json.loads(out)
    assert (found["labels"], found["repeated"], found["forecast"]) == (3, True, None)
    rows = [row.split(",") for row in (tmp_path / "labels.csv").read_text().splitlines()[1:]]
    assert [[int(cell) for cell in row] for row in rows] == [[query, label] for query, label in enumerate(paid.labels[0]) if label >= 0]
    assert len(EnsembleFolder(tmp_path / "kept").accounts) == 1
    code, out, err = run(*SMALL, *keep, "--json", "--further")
    assert code == 0, err
    assert json.loads(out)["repeated"] is False
    assert len(EnsembleFolder(tmp_path / "kept").accounts) == 2


def test_a_run_killed_before_its_labels_were_kept_says_that_they_are_lost_and_charged(run, tmp_path):
    keep = ["--keep", str(tmp_path / "kept"), "--labels", "3"]
    killed = "from sartor.run import charges\ncharges.Charges.settle = die\npate._report = die\n"
    done = subprocess.run([sys.executable, "-c", KILLED.replace("pate._report = die\n", killed), *SMALL, *keep], capture_output=True)
    assert done.returncode == -signal.SIGKILL
    code, out, err = run(*SMALL, *keep, "--json")
    assert code == 0, err
    assert "cut off before their labels were kept: 1. Each is charged with the most it could cost." in err
    assert json.loads(out)["repeated"] is False
    assert [account.queries for account in EnsembleFolder(tmp_path / "kept").accounts] == [3, 3]


STOPPED = """
import os, signal, sys
from sartor.run import files
from sartor.cli import main

right, left = os.replace, int(sys.argv.pop(1))

def dying(*given, **more):
    global left
    left -= 1
    if left < 0:
        os.kill(os.getpid(), signal.SIGKILL)
    return right(*given, **more)

os.replace = dying
main(sys.argv[1:])
"""


def test_a_killed_run_leaves_nothing_bare_and_goes_on(run, tmp_path):
    """Killed in the middle of writing a teacher: the part is in the folder, and gone when the folder is opened again."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    places = {"TMPDIR": str(temporary), "JOBLIB_TEMP_FOLDER": str(temporary)}
    arguments = [*SMALL, "--seed", "1", "--keep", str(tmp_path / "kept"), "--out", str(tmp_path / "labels.csv")]
    done = subprocess.run([sys.executable, "-c", STOPPED, "3", *arguments], env={**os.environ, **places}, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    kept = tmp_path / "kept"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["kept", "temporary"]
    assert not [path for path in temporary.rglob("*") if path.is_file()]
    assert kept.stat().st_mode & 0o777 == 0o700
    assert [path.name[:14] for path in kept.glob(".*")] == [".teacher-00003"]
    assert len(list(kept.glob("teacher-*"))) == 3
    found = document(run, "--keep", kept)
    assert not list(kept.glob(".*"))
    assert found == document(run)  # as if it had never stopped


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
        ["--keep", __file__],
        ["--keep", str(Path(__file__).parent)],
        ["--labels", "0"],
        ["--further"],
        ["--epsilon", "inf,1"],
        ["--reserve", "2"],
        ["--bound", "dependent", "--accounting", "exact"],
        ["--keep", "/dev/null/kept"],
        ["--noise", "1e200"],
        ["--model", "tree"],
        ["--model", "neighbour"],  # has no epochs
        ["--teachers", "2", "--epsilon", "1,2", "--noise", "0.5"],
    ],
    ids=lambda given: " ".join(Path(part).name for part in given),
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, arguments):
    code, out, err = run(*SMALL, *arguments)
    assert (code, out) == (2, "")
    assert re.search(r"error: \S[^\n]*\n$", err)
