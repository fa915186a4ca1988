"""How the groups fare, on the command line: by budget, class and column, out of the reserve, and on the page of the run."""

import csv
import json
import re
import shutil

import numpy as np
import pytest

from sartor.individual.request import CLASS, Figures
from sartor.individual.reserve import Reserve
from sartor.report.folder import RunFolder
from sartor_testing.commands import run

SCHEMA = """
target = "income"
classes = ["low", "high"]
features = ["age", "hours"]
[columns.age]
bounds = [0, 100]
[columns.hours]
bounds = [0, 100]
[columns.sex]
categories = ["f", "m"]
"""
PEOPLE = 240
SHORT = ("--epsilon", "1,4", "--share", "0.4,0.6", "--delta", "1e-4", "--accountant", "rdp", "--steps", "6", "--model", "logistic")


def rows():
    """People with one to three visits; a few moved, so that their rows say different things of where they live."""
    draw = np.random.default_rng(0)
    found = []
    for i in range(PEOPLE):
        for visit in range(1 + i % 3):
            age, hours = draw.uniform(0, 100, 2).round(3).tolist()
            home = "town" if i % 2 or (i % 24 == 2 and visit) else "land"
            income = "high" if i % 4 == 1 else "low"
            found.append({"person": f"p{i:03}", "age": age, "hours": hours, "sex": "fm"[i % 2], "home": home, "income": income})
    draw.shuffle(found)
    return found


def written(path, content):
    with open(path, "w", newline="") as out:
        writer = csv.DictWriter(out, list(content[0]))
        writer.writeheader()
        writer.writerows(content)


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A folder with a table, and with a run on it that has a reserve."""
    place = tmp_path_factory.mktemp("fare")
    written(place / "visits.csv", rows())
    (place / "schema.toml").write_text(SCHEMA)
    asked = ["train", "--table", place / "visits.csv", "--schema", place / "schema.toml", "--id-column", "person", *SHORT]
    found = run(*asked, "--individual", "strict", "--refresh", "3", "--reserve", "0.5", "--out", place / "run", "--json")
    assert found.exit_code == 0, found.stderr
    return place


@pytest.fixture
def place(trained, tmp_path):
    """The same, for one test alone."""
    shutil.copytree(trained / "run", tmp_path / "run")
    return tmp_path / "run"


def told(folder, *arguments, epsilon="0.01"):
    found = run("account", folder, "--release", "groups", "--epsilon", epsilon, "--json", *arguments)
    assert found.exit_code == 0, found.stderr
    return json.loads(found.stdout)


def asked_of(folder, monkeypatch, *arguments):
    """The figures that the reserve was asked about."""
    seen = []
    right = Reserve.release

    def release(reserve, figures, request, **more):
        seen.append((figures, request))
        return right(reserve, figures, request, **more)

    monkeypatch.setattr(Reserve, "release", release)
    told(folder, *arguments)
    return seen[0]


def test_people_are_counted_where_their_own_rows_put_them(place, monkeypatch):
    names = RunFolder(place).budgets().names or [None] * PEOPLE
    kept = {row["person"]: row for row in rows()}
    order = list(dict.fromkeys(row["person"] for row in rows()))
    assert set(names) <= {None, *order}
    figures, request = asked_of(place, monkeypatch, "--by", "class")
    assert (request.groups, tuple(request.categories)) == (CLASS, ("low", "high"))
    assert figures.group.tolist() == [int(kept[name]["income"] == "high") for name in order]
    monkeypatch.undo()
    figures, request = asked_of(place, monkeypatch, "--by", "sex")  # the schema lists what there is
    assert tuple(request.categories) == ("f", "m")
    assert figures.group.tolist() == ["fm".index(kept[name]["sex"]) for name in order]
    monkeypatch.undo()
    figures, _ = asked_of(place, monkeypatch, "--by", "home", "--categories", "town, land,moon")
    said = {name: {row["home"] for row in rows() if row["person"] == name} for name in order}
    assert figures.group.tolist() == [-1 if len(said[name]) > 1 else ["town", "land"].index(*said[name]) for name in order]
    assert -1 in figures.group
    assert isinstance(figures, Figures)


def test_the_shape_of_the_document_stays(place):
    found = run("account", place, "--release", "mean,quantiles,groups", "--by", "class", "--epsilon", "0.05", "--json")
    document = json.loads(found.stdout)
    assert set(document) == {"mean", "quantiles", "groups", "epsilon", "delta", "relation", "private", "noise"}
    assert set(document["quantiles"]) == {"0.1", "0.3", "0.5", "0.7", "0.9"}
    assert set(document["groups"][0]) == {"class", "holders", "account", "accuracy", "loss"}
    assert set(told(place)["groups"][0]) == {"epsilon", "delta", "holders", "account", "accuracy", "loss"}
    text = run("account", place, "--release", "groups", "--by", "class", "--epsilon", "0.01").stdout
    assert "how the groups fare" in text


def test_how_large_the_noise_is_stands_beside_the_figures(place):
    asked = ("account", place, "--release", "mean,quantiles,groups", "--by", "sex", "--epsilon", "0.4")
    document = json.loads(run(*asked, "--json").stdout)
    assert set(document["noise"]) == {"mean", "groups"}
    assert document["noise"]["mean"] > 0
    (first, _) = document["noise"]["groups"]
    assert set(first) == {"holders", "account", "accuracy", "loss"}
    text = " ".join(run(*asked).stdout.split())
    assert "± is the standard deviation of the noise" in text
    assert f"{document['mean']:.4g} ± {document['noise']['mean']:.2g}" in text
    assert f"{document['groups'][0]['holders']:,} ± {first['holders']:.2g}" in text


def test_the_page_has_what_the_reserve_was_charged_for_and_nothing_else(place):
    before = (place / "report.html").read_text()
    assert "nothing of it was released so far" in before
    first = told(place, "--by", "class", epsilon="0.2")
    page = (place / "report.html").read_text()
    assert "nothing of it was released so far" not in page
    assert "no guarantee" in page
    assert "Release 1 cost everybody epsilon 0.2 " in page
    for row in first["groups"]:
        for column in ("account", "accuracy", "loss"):
            assert row[column] is None or f"<td>{row[column]:.4g}</td>" in page
    run("account", place, "--release", "mean,quantiles,histogram,correlation", "--epsilon", "0.1")
    page = (place / "report.html").read_text()
    assert "Release 2 cost everybody epsilon 0.1 " in page
    assert "2 releases so far, which together cost everybody epsilon 0.3 " in page
    begin, end = "<!--released-->", "<!--end of released-->"
    for text in (before, page):
        assert (text.count(begin), text.count(end)) == (1, 1)
    outside = [text[: text.index(begin)] + text[text.index(end) :] for text in (before, page)]
    assert outside[0] == outside[1]
    ids = re.findall(r'\bid="([^"]+)"', page)
    assert len(ids) == len(set(ids))  # though two processes may have drawn
    assert sorted(path.name for path in place.iterdir() if path.name == "lock" or path.name.startswith(".")) == []


def test_the_page_follows_from_stored_answers_and_from_no_file_about_people(place):
    told(place, "--by", "class", epsilon="0.2")
    first, plan = (place / "report.html").read_text(), RunFolder(place).plan()
    for name in ("individual.npz", "budgets.npz", "plan-all.json"):
        (place / name).unlink()
    changed = first.replace("Release 1 cost", "Release 1 gave")
    assert changed != first
    (place / "report.html").write_text(changed)
    RunFolder(place).tell_released(plan)
    assert (place / "report.html").read_text() == first


def test_a_page_that_a_kill_left_behind_is_mended_by_the_same_question(place, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "tell_released", lambda *_: None)
        first = told(place, epsilon="0.1")
    assert "nothing of it was released" in (place / "report.html").read_text()
    assert told(place, epsilon="0.1") == first
    assert "Release 1 cost everybody epsilon 0.1 " in (place / "report.html").read_text()
    assert len(list((place / "reserve").glob("charge-*"))) == 1


def test_what_is_charged_is_told_though_the_page_cannot_be_written(place):
    (place / "report.html").write_text("<p>mine</p>")
    found = run("account", place, "--release", "groups", "--epsilon", "0.1", "--json")
    assert found.exit_code == 0
    assert json.loads(found.stdout)["epsilon"] == 0.1
    assert "not on the run's page" in found.stderr
    assert (place / "report.html").read_text() == "<p>mine</p>"


def test_a_stored_answer_needs_no_table_and_a_changed_table_is_refused(trained, place):
    table, kept = trained / "visits.csv", (trained / "visits.csv").read_bytes()
    try:
        first = told(place, "--by", "home", "--categories", "town,land")
        table.unlink()
        assert told(place, "--by", "home", "--categories", "town,land") == first
        gone = run("account", place, "--release", "groups", "--by", "sex", "--epsilon", "0.01")
        assert gone.exit_code == 2
        changed = rows()
        changed[0], changed[1] = changed[1], changed[0]
        written(table, changed)
        other = run("account", place, "--release", "groups", "--by", "sex", "--epsilon", "0.01")
        assert other.exit_code == 2
        assert "not what this run was trained on" in " ".join(other.stderr.split())
        written(table, [{**row, "new": "x"} for row in rows()])
        assert told(place, "--by", "new", "--categories", "x,y")["groups"]
    finally:
        table.write_bytes(kept)
    assert len(list((place / "reserve").glob("charge-*"))) == 2


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--release", "mean", "--by", "class"], "ask for groups"),
        (["--release", "groups", "--categories", "a,b"], "goes with --by COLUMN"),
        (["--release", "groups", "--by", "budget", "--categories", "a,b"], "goes with --by COLUMN"),
        (["--by", "class"], "--release"),
        (["--release", "groups", "--by", "home"], "without looking"),
        (["--release", "groups", "--by", "nowhere", "--categories", "a"], "no column"),
        (["--release", "groups", "--by", "nowhere"], "no column"),
        (["--release", "groups", "--by", "loss", "--categories", "a,b"], "name of its own"),
        (["--release", "groups", "--by", "home", "--categories", "a,a"], "differ"),
        (["--release", "groups", "--by", "home", "--categories", "a\x1b[2J"], "printed"),
    ],
)
def test_what_makes_no_sense_is_refused_and_costs_nothing(trained, arguments, sentence):
    charges = list((trained / "run" / "reserve").glob("charge-*"))
    found = run("account", trained / "run", *arguments, "--epsilon", "0.01")
    assert found.exit_code == 2
    assert sentence in " ".join(found.stderr.split())
    assert "Traceback" not in found.stderr
    assert list((trained / "run" / "reserve").glob("charge-*")) == charges


def test_a_category_that_nobody_has_is_no_error(place):
    """Whether anybody has it follows from people's rows."""
    assert told(place, "--by", "home", "--categories", "moon,mars")["groups"]
