"""Tables on a terminal of 80 columns: no line is longer, no heading is cut or broken within a word."""

import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

import sartor
from sartor.layout import Table

PEOPLE = ["--epsilon", "1,2,3", "--share", "0.34,0.43,0.23", "--holders", "60000", "--delta", "1e-5"]
MANY = ["--epsilon", "0.1,1,10,inf", "--share", "0.4,0.3,0.2,0.1", "--holders", "9000", "--delta", "1e-6,2e-6,1e-5,1e-4"]
FEW = ["--epsilon", "0.5,1,2,3,4", "--share", "0.003,0.004,0.003,0.45,0.54", "--holders", "1000", "--delta", "1e-5"]
STEPS = ["--steps", "9375", "--batch", "512", "--clip", "0.2", "--accountant", "rdp"]
WORDS = ["epsilon", "delta", "holders", "rate", "clip", "noise", "multiplier", "expected", "uses", "spent"]
PLANS = {
    "sample": [*PEOPLE, *STEPS, "--scheme", "sample"],
    "scale": [*PEOPLE, *STEPS],
    "hybrid": [*MANY, *STEPS, "--scheme", "hybrid", "--mix", "0.5"],
    "sequential": [*PEOPLE, *STEPS, "--scheme", "sequential"],
    "sequential by different deltas": [*MANY, "--steps", "93750", "--batch", "51.25", "--accountant", "rdp", "--scheme", "sequential"],
    "exclude": [*PEOPLE, *STEPS, "--scheme", "exclude", "--threshold", "2"],
    "capped": ["--epsilon", "0.1,50", "--share", "0.99,0.01", "--holders", "60000", "--delta", "1e-5", *STEPS, "--scheme", "sample"],
    "merged": [*FEW, "--steps", "2000", "--batch", "50", "--accountant", "rdp", "--scheme", "sample"],
    "merged, in turns": [*FEW, "--steps", "2000", "--batch", "50", "--accountant", "rdp", "--scheme", "sequential", "--reserve", "0.1"],
    "public": [*MANY, *STEPS, "--public-rate", "0.123456", "--public-clip", "12345.678"],
}


@pytest.fixture(autouse=True)
def narrow(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")


def fits(out, *words):
    for line in out.splitlines():
        assert len(line.rstrip()) <= 80, line
    assert "…" not in out
    for word in words:
        assert word in out.split(), word


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.filterwarnings("ignore::sartor.SartorWarning")
def test_plans_fit_and_so_do_their_accounts(run, tmp_path, name):
    code, out, err = run("plan", *PLANS[name], "--out", tmp_path / "plan.json")
    assert code == 0, err
    fits(out, *WORDS, "excess", *(["steps"] if "--scheme sequential" in " ".join(PLANS[name]) else []))
    fits(run("account", tmp_path / "plan.json")[1], "epsilon", "delta", "holders", "rdp", "pld")


def test_a_plan_printed_in_python_fits():
    budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=1)
    fits(str(sartor.plan(budgets, "sequential", steps=9_375, batch=512, accountant="rdp")), *WORDS, "excess", "steps")


def test_training_fits(run):
    code, out, err = run("train", "--dataset", "digits", "--steps", "1", "--accountant", "rdp", "--scheme", "sample", "--seed", "1")
    assert code == 0, err
    fits(out, *WORDS)


@pytest.mark.long
@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--seeds", "1", "--page", "page.html"], ["scheme", "accuracy", "noise", "multiplier", "spent", "rate", "clip"]),
        (["pate", "--workers", "1"], ["votes", "holders", "spent"]),
        (["pate", "--teachers", "20", "--workers", "1", "--aggregator", "gnmax", "--noise", "2", "--epsilon", "90"], ["votes"]),
        (["federate", "--rounds", "1", "--clients", "40", "--per-round", "10", "--epochs", "1"], ["epsilon", "clients", "spent"]),
    ],
)
def test_longer_work_fits(tmp_path, arguments, words):
    # by itself: Ray leaves open what only the end of a process closes
    done = subprocess.run([sys.executable, "-m", "sartor", *arguments], cwd=tmp_path, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stderr
    fits(done.stdout, *words)


HEADINGS = st.sampled_from(["epsilon", "noise multiplier", "expected uses", "votes that one holder moves"])
CELLS = st.sampled_from(["1", "within budget", "0.0001234 to 0.0005678", "12,345 to 20,000", "1e-05", "", "0.5 · 1 · 2"])


@given(st.data(), st.integers(1, 12), st.integers(20, 120))
def test_nothing_is_cut_or_broken_within_a_word(data, columns, width):
    headings = data.draw(st.lists(HEADINGS, min_size=columns, max_size=columns))
    rows = data.draw(st.lists(st.lists(CELLS, min_size=columns, max_size=columns), max_size=4))
    text = Table(headings, rows, "a title", left=1).text(width)
    assert max(map(len, text.splitlines())) <= max(width, 22)  # two columns of the longest words
    given = sorted(word for cell in [*headings, *(cell for row in rows for cell in row)] for word in cell.split())
    found = [word for word in text.split() if set(word) != {"-"}]
    assert set(found) == {*given, "a", "title"}
    for word in set(given):
        assert found.count(word) >= given.count(word)  # the first column may be repeated
