"""`sartor train --resume`: a run goes on with what people allowed when it began, and not where they say otherwise now."""

import re

import numpy as np
import pytest

from sartor.sgd.optimizer import PrivateOptimizer
from sartor_testing.amount import most_are_long

FAST = ("--accountant", "rdp", "--steps", "6")
SCHEMA = """
target = "income"
classes = ["low", "high"]
[columns.age]
bounds = [0, 100]
"""
POLICY = "delta = 1e-4\n[levels]\nstrict = 1\nopen = 4\n"
SENTENCE = r"error: what people allow has changed since this run began, for ([^:]*): [^\n]*begin another run[^\n]*\n"


def people(count=60):
    ages = np.random.default_rng(0).uniform(0, 100, count).round(3).tolist()
    return [
        {"person": f"holder-{i:04d}", "age": age, "consent": ("strict", "open")[i % 2], "income": "high" if age > 50 else "low"}
        for i, age in enumerate(ages)
    ]


def said_by(rows):
    return [{"holder": row["person"], "epsilon": {"strict": 1, "open": 4}[row["consent"]]} for row in rows]


def without_consent(rows):
    return [{key: row[key] for key in ("person", "age", "income")} for row in rows]


@pytest.fixture
def stopped(run, file, tmp_path, monkeypatch):
    """Begins a run on these people, which is stopped in a step."""

    def interrupted(self, closure=None):
        raise KeyboardInterrupt

    def begin(way, rows, *more):
        table = file("census.csv", rows if way == "column" else without_consent(rows))
        known = ("train", "--table", table, "--schema", file("schema.toml", SCHEMA), *FAST)
        if way == "column":
            allowed = ("--id-column", "person", "--budget-column", "consent", "--policy", file("policy.toml", POLICY))
        else:
            allowed = ("--budgets", file("b.csv", said_by(rows)), "--delta", "1e-4", *(("--id-column", "person") if way == "file" else ()))
        with monkeypatch.context() as patch:
            patch.setattr(PrivateOptimizer, "step", interrupted)
            assert run(*known, *allowed, *more, "--out", tmp_path / "run")[0] == 130
        return tmp_path / "run"

    return begin


def flipped(rows, count):
    return [row | {"consent": {"strict": "open", "open": "strict"}[row["consent"]]} if i < count else row for i, row in enumerate(rows)]


@pytest.mark.parametrize("way", most_are_long(["column", "file", "file in the order of rows"], 1))
@pytest.mark.parametrize(
    ("count", "words"),
    [(1, "fewer than 10 of 60 holders"), (20, "20 of 60 holders"), (55, "all but fewer than 10 of 60 holders"), (60, "60 of 60 holders")],
)
def test_a_run_does_not_continue_where_people_allow_something_else(run, file, stopped, way, count, words):
    rows = people()
    folder = stopped(way, rows)
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    changed = flipped(rows, count)
    file("census.csv", changed) if way == "column" else file("b.csv", said_by(changed))
    code, out, err = run("train", "--resume", "--out", folder)
    assert (code, out, re.search(SENTENCE, err)[1]) == (2, "", words)
    assert "holder-" not in err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before
    file("census.csv", rows) if way == "column" else file("b.csv", said_by(rows))
    assert run("train", "--resume", "--out", folder)[0] == 0


def test_a_policy_that_gives_other_numbers_is_a_change(run, file, stopped):
    folder = stopped("column", people())
    file("policy.toml", POLICY.replace("strict = 1", "strict = 0.5"))
    code, _, err = run("train", "--resume", "--out", folder)
    assert (code, re.search(SENTENCE, err)[1]) == (2, "30 of 60 holders")


def test_who_is_no_longer_in_the_file_allows_nothing(run, file, stopped):
    folder = stopped("file", people())
    file("b.csv", said_by(people())[12:])
    code, _, err = run("train", "--resume", "--out", folder)
    assert (code, re.search(SENTENCE, err)[1]) == (2, "12 of 60 holders")


def test_a_file_in_another_order_is_a_change_only_where_rows_have_no_names(run, file, stopped):
    folder = stopped("file", people())
    file("b.csv", said_by(people())[::-1])
    assert run("train", "--resume", "--out", folder)[0] == 0


def test_a_file_in_another_order_is_a_change_where_rows_follow_it(run, file, stopped):
    folder = stopped("file in the order of rows", people())
    file("b.csv", said_by(people())[::-1])
    code, _, err = run("train", "--resume", "--out", folder)
    assert (code, re.search(SENTENCE, err)[1]) == (2, "60 of 60 holders")


def test_held_out_people_may_say_what_they_like(run, stopped, tmp_path):
    folder = stopped("file", people(), "--sensitive")
    assert run("train", "--resume", "--out", folder)[0] == 0


def test_a_run_whose_file_of_budgets_is_gone_is_not_continued(run, stopped, tmp_path):
    folder = stopped("file", people())
    (tmp_path / "b.csv").unlink()
    code, out, err = run("train", "--resume", "--out", folder)
    assert (code, out) == (2, "")
    assert re.search(r"error: [^\n]*b\.csv[^\n]*\n$", err)
