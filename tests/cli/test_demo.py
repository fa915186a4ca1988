"""`sartor demo`: no privacy, one budget for all, and individual budgets, side by side; one page with the plots."""

import json
import re

import pytest

from sartor.cli import main

SCHEMES = ["none", "uniform", "sample", "scale"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The demo as people run it, once: its document, its page and what it said beside them."""
    from contextlib import redirect_stderr, redirect_stdout
    from io import StringIO

    page = tmp_path_factory.mktemp("demo") / "page.html"
    out, err = StringIO(), StringIO()
    with redirect_stdout(out), redirect_stderr(err), pytest.raises(SystemExit) as stop:
        main(["demo", "--json", "--page", str(page)])
    assert not stop.value.code
    return json.loads(out.getvalue(), parse_constant=pytest.fail), page.read_text(), err.getvalue()


@pytest.mark.long
def test_the_document_compares_four_schemes(whole):
    document, _, err = whole
    assert document.keys() == {"runs", "seconds"}
    assert [run["scheme"] for run in document["runs"]] == SCHEMES
    assert all(run.keys() == {"scheme", "accuracy", "accuracy_std", "groups"} for run in document["runs"])
    assert re.fullmatch(r"wrote .+page\.html\.\n", err)


@pytest.mark.long
def test_individual_budgets_gain_more_than_two_and_a_half_points_over_uniform(whole):
    accuracy = {run["scheme"]: run["accuracy"] for run in whole[0]["runs"]}
    assert accuracy["uniform"] > 0.82  # a fair rival: as good as its best learning rate makes it
    assert min(accuracy["sample"], accuracy["scale"]) >= accuracy["uniform"] + 0.025
    assert accuracy["none"] >= max(accuracy["sample"], accuracy["scale"])
    assert all(0 < run["accuracy_std"] < 0.05 for run in whole[0]["runs"])


@pytest.mark.long
def test_nobody_spends_more_than_they_allow_and_uniform_leaves_budgets_unused(whole):
    none, uniform, *individual = whole[0]["runs"]
    assert none["groups"] == []
    for run in (uniform, *individual):
        assert [(group["epsilon"], group["holders"]) for group in run["groups"]] == [(0.5, 489), (1, 618), (2, 330)]
        assert all(group["spent"] <= group["epsilon"] for group in run["groups"])
    assert all(group["spent"] <= 0.5 for group in uniform["groups"])
    assert all(group["spent"] >= 0.995 * group["epsilon"] for run in individual for group in run["groups"])


@pytest.mark.long
def test_the_page_stands_alone_and_shows_what_the_document_says(whole):
    document, page, _ = whole
    assert "http" not in page
    assert not re.search(r"<(script|link|img|iframe)\b", page)
    assert page.count("<svg") == 6
    for run in document["runs"]:
        assert f"{run['accuracy']:.1%} ± {run['accuracy_std']:.1%}" in page
    for words in ("accuracy on test rows", "epsilon spent", "epsilon of the group", "protects nobody"):
        assert words in page


def test_people_read_the_comparison_and_what_it_means(run, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    code, out, _ = run("demo", "--seeds", "1", "--page", tmp_path / "p.html")
    assert code == 0
    assert all(len(line.rstrip()) <= 80 for line in out.splitlines() if str(tmp_path) not in line)
    assert {"scheme", "accuracy", "noise", "multiplier", "spent", "rate", "clip", "group"} <= set(out.split())
    at = [out.index(text) for text in ("1,437 people", "none ", "uniform ", "sample ", "scale ", "uniform is what", "a single run")]
    assert at == sorted(at)
    for words in ("delta 0.0001", "they demonstrate, they do not protect", "points", "best for uniform"):
        assert words in " ".join(out.split())
    assert (tmp_path / "p.html").exists()


@pytest.mark.long
def test_other_budgets_can_be_compared(run, tmp_path):
    code, out, _ = run("demo", "--seeds", "1", "--epsilon", "1,2,3", "--json", "--page", tmp_path / "p.html")
    assert code == 0
    scale = json.loads(out)["runs"][-1]["groups"]
    assert [group["epsilon"] for group in scale] == [1, 2, 3]
    assert "34% allow epsilon 1, 43% allow epsilon 2" in (tmp_path / "p.html").read_text()


def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, tmp_path):
    for arguments in (
        ["--fast"],
        ["more"],
        ["--seeds", "0"],
        ["--epsilon", "1,2"],
        ["--epsilon", "3,2,1"],
        ["--epsilon", "a,b,c"],
        ["--seeds", "1", "--page", tmp_path / "no" / "p.html"],
    ):
        code, out, err = run("demo", *arguments)
        assert (code, out) == (2, "")
        assert re.fullmatch(r"error: \S[^\n]*\n", err)
