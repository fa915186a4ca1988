"""`sartor train`: nobody under two names, figures about public rows alone, consent that is never a feature, and how a run ends."""

import gzip
import json
import os
import random
import re
import stat

import numpy as np
import pytest
from safetensors.torch import load_file

from sartor.report.folder import RunFolder

FAST = ("--accountant", "rdp", "--steps", "6")
SCHEMA = """
target = "income"
classes = ["low", "high"]
[columns.age]
bounds = [0, 100]
[columns.hours]
bounds = [0, 100]
"""
POLICY = "delta = 1e-4\n[levels]\nstrict = 1\nopen = 4\n"
LEVELS = {"strict": 1, "open": 4}


def people(count, seed=0):
    draw = np.random.default_rng(seed)
    ages, hours = draw.uniform(0, 100, (2, count)).round(3).tolist()
    return [
        {
            "person": f"holder-{seed}-{i:04d}",
            "age": ages[i],
            "hours": hours[i],
            "consent": "strict" if draw.random() < 0.5 else "open",
            "income": "high" if ages[i] + hours[i] > 100 else "low",
        }
        for i in range(count)
    ]


@pytest.fixture
def asked(file):
    """The arguments that train on rows under a policy."""

    def arguments(rows, *more, schema=SCHEMA, name="census.csv"):
        known = ("train", "--table", file(name, rows), "--schema", file("schema.toml", schema), *FAST)
        return (*known, "--id-column", "person", "--budget-column", "consent", "--policy", file("policy.toml", POLICY), *more)

    return arguments


@pytest.fixture
def refused(run, tmp_path):
    """Runs a command that must end with one sentence that holds these words, before there is a folder."""

    def check(words, *arguments):
        code, out, err = run(*arguments, "--out", tmp_path / "refused")
        assert (code, out) == (2, "")
        assert re.fullmatch(r"(warning [^\n]*\n)*error: \S[^\n]*\n", err)
        assert re.search(words, err)
        assert "holder-" not in err
        assert not (tmp_path / "refused").exists()
        return err

    return check


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- who is who ---


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ("7", "7.0", "way a number is written"),
        ("1e3", "1000", "way a number is written"),
        ("Ann Lee", "ann  lee", "case"),
        ("Ann", "Ann\u200b", "spaces"),
        ("Ann", "", "have no holder"),
        ("Ann", "  ", "have no holder"),
    ],
)
def test_two_ways_to_write_one_person_are_refused(refused, asked, one, other, words):
    rows = people(30)
    rows[3]["person"], rows[20]["person"] = one, other
    err = refused(words, *asked(rows))
    assert one not in err


@pytest.mark.parametrize("again", ["holder-0-0003", " holder-0-0003 ", "HOLDER-0-0003"])
def test_a_file_of_budgets_that_names_someone_twice_is_refused(refused, file, again):
    rows = people(30)
    allowed = [{"holder": row["person"], "epsilon": 1} for row in rows]
    allowed[20]["holder"] = again
    table = file("t.csv", [{key: row[key] for key in ("age", "hours", "income")} for row in rows])
    given = ("train", "--table", table, "--schema", file("s.toml", SCHEMA), "--budgets", file("b.csv", allowed), "--delta", "1e-4")
    refused("more than once|may be one person", *given)


def test_fewer_budgets_than_rows_are_refused(refused, file):
    rows = people(30)
    allowed = file("b.csv", [{"holder": row["person"], "epsilon": 1} for row in rows[:20]])
    given = ("train", "--table", file("t.csv", rows), "--schema", file("s.toml", SCHEMA), "--budgets", allowed, "--delta", "1e-4")
    refused("20 budgets for 30 rows", *given)
    refused("10 of 30 holders have no budget", *given, "--id-column", "person")


# --- figures about public rows alone ---


def texts(folder):
    return {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".html", ".toml")}


@pytest.mark.parametrize("schema", [SCHEMA, "test_share = 0.3" + SCHEMA])
def test_without_public_rows_no_accuracy_is_told_anywhere(run, asked, tmp_path, schema):
    code, out, err = run(*asked(people(80), "--out", tmp_path / "run", schema=schema))
    assert code == 0
    code, document, _ = run(*asked(people(80), "--json", schema=schema))
    assert json.loads(document)["accuracy"] is None
    found = texts(tmp_path / "run")
    assert "held-out.json" not in found
    for text in (out, err, found["report.html"], found["account.json"]):
        assert not re.search(r"(?i)accuracy[ \":][^.]{0,40}\d", text)
    assert "no accuracy is told" in out


def test_accuracy_on_held_out_rows_goes_to_a_file_for_the_owner_alone(run, asked, tmp_path):
    folder = tmp_path / "run"
    code, out, err = run(*asked(people(90), "--out", folder, "--sensitive"))
    assert code == 0
    assert mode(folder / "held-out.json") == 0o600
    found = texts(folder)
    kept = json.loads(found.pop("held-out.json"))
    assert (kept["sensitive"], kept["rows"]) == (True, 18)
    assert 0 <= kept["accuracy"] <= 1
    for text in (out, err, found["report.html"], found["account.json"], found["plan.json"]):
        assert not re.search(r"(?i)accuracy[ \":][^.]{0,40}\d", text)
        assert f"{kept['accuracy']:.1%}" not in text
    assert "72 training rows, 0 public test rows" in out
    assert re.search(r"Keep to yourself[^:]*: [^:]*held-out\.json", " ".join(out.split()))


def test_a_sensitive_figure_needs_a_place_that_is_the_owners(run, asked):
    code, out, err = run(*asked(people(40), "--sensitive", "--json"))
    assert (code, out) == (2, "")
    assert "give that with --out" in err


COPIES = {
    "the same path": lambda path, rows, file: path,
    "a link": lambda path, rows, file: (os.symlink(path, path.with_name("link.csv")), path.with_name("link.csv"))[1],
    "a second name": lambda path, rows, file: (os.link(path, path.with_name("hard.csv")), path.with_name("hard.csv"))[1],
    "a copy": lambda path, rows, file: file("copy.csv", rows),
    "a compressed copy": lambda path, rows, file: (
        path.with_name("copy.csv.gz").write_bytes(gzip.compress(path.read_bytes())),
        path.with_name("copy.csv.gz"),
    )[1],
    "rows in another order without names": lambda path, rows, file: file(
        "other.csv", [{key: row[key] for key in ("income", "hours", "age")} for row in random.Random(1).sample(rows, len(rows))]
    ),
    "numbers in another format": lambda path, rows, file: file(
        "other.csv", [{"age": f"{row['age']:.6e}", "hours": f"+{row['hours']}0", "income": row["income"]} for row in rows]
    ),
    "a part": lambda path, rows, file: file("part.csv", [{**row, "person": "someone"} for row in rows[:20]]),
    "the rows and some more": lambda path, rows, file: file("more.csv", [{**row, "person": "someone"} for row in rows + people(100, 2)]),
    "fewer of them than others": lambda path, rows, file: file(
        "few.csv", [{**row, "person": f"someone {i}"} for i, row in enumerate(rows[:25] + people(35, 2))]
    ),
    "other rows of one person": lambda path, rows, file: file("p.csv", [*people(30, 3), {**people(1, 4)[0], "person": rows[5]["person"]}]),
}


@pytest.mark.parametrize("kind", COPIES)
def test_test_rows_that_are_trained_on_are_refused(refused, asked, file, tmp_path, kind):
    rows = people(60)
    arguments = asked(rows)
    refused("trained on|rows of the private data", *arguments, "--test", COPIES[kind](tmp_path / "census.csv", rows, file))


def test_others_test_rows_are_taken_although_some_are_equal_by_chance(run, file, asked):
    rows = people(60)
    code, out, err = run(*asked(rows, "--test", file("public.csv", [*people(30, 1), {**rows[0], "person": "other"}]), "--json"))
    assert (code, err) == (0, "")
    assert 0 <= json.loads(out)["accuracy"] <= 1


def test_arrays_that_are_tested_on_themselves_are_refused(refused, tmp_path):
    draw = np.random.default_rng(0)
    folder = tmp_path / "arrays"
    folder.mkdir()
    inputs, labels = draw.normal(size=(60, 5)).astype(np.float32), np.arange(60) % 3
    order = draw.permutation(60)
    for part, rows in (("train", slice(None)), ("test", order)):
        np.save(folder / f"x_{part}.npy", inputs[rows])
        np.save(folder / f"y_{part}.npy", labels[rows])
    refused("60 of 60 test rows", "train", "--arrays", folder, "--epsilon", "1", *FAST)


# --- consent is never a feature ---


@pytest.mark.parametrize(
    "copy",
    [
        lambda row: row["consent"],
        lambda row: LEVELS[row["consent"]],
        lambda row: f"{LEVELS[row['consent']]}.0",
        lambda row: row["consent"][0],
        lambda row: row["consent"][: 1 + int(row["age"]) % 2],
    ],
    ids=["levels", "epsilons", "other format", "other words", "two words for each"],
)
@pytest.mark.parametrize("listed", [False, True], ids=["found", "in the schema"])
def test_a_copy_of_what_people_allow_is_refused_as_a_feature(refused, asked, copy, listed):
    rows = [{**row, "tier": copy(row)} for row in people(60)]
    values = sorted({str(row["tier"]) for row in rows})
    schema = f"{SCHEMA}[columns.tier]\ncategories = {json.dumps(values)}\n" if listed else SCHEMA
    assert "drop" in refused('the column "tier"', *asked(rows, schema=schema))


def test_a_copy_of_who_it_is_is_refused_as_a_feature(refused, asked):
    rows = [{**row, "person": 1000 + i, "number": 1000 + i} for i, row in enumerate(people(60))]
    refused('"number" is a copy of "person"', *asked(rows))


def test_consent_in_the_table_is_refused_where_budgets_come_from_a_file(refused, file):
    rows = [{**row, "tier": row["consent"]} for row in people(60)]
    allowed = file("b.csv", [{"holder": row["person"], "epsilon": LEVELS[row["consent"]]} for row in rows])
    given = ("train", "--table", file("t.csv", rows), "--schema", file("s.toml", SCHEMA), "--id-column", "person")
    refused('the column "tier"', *given, "--budgets", allowed, "--delta", "1e-4")


def test_the_budget_column_in_a_list_of_features_is_refused(refused, asked):
    refused('"consent" cannot be features', *asked(people(60), schema='features = ["age", "consent"]' + SCHEMA))


def test_columns_named_after_what_people_allow_are_left_out_with_a_sentence(run, file, asked, tmp_path):
    """They are no features of the kept model, whoever's budgets they are."""
    draw = np.random.default_rng(5)
    rows = [{**row, "level": int(draw.integers(0, 3)), "Delta": 1e-4, "holder": f"x{i}"} for i, row in enumerate(people(60))]
    public = file("public.csv", people(20, 1))
    code, out, _ = run(*asked(rows, "--test", public, "--out", tmp_path / "column"))
    assert code == 0
    assert re.search(r'By its name "level", "Delta", "holder" says what people allow', " ".join(out.split()))
    given = ("train", "--table", tmp_path / "census.csv", "--schema", tmp_path / "schema.toml", "--id-column", "person", "--test", public)
    assert run(*given, "--epsilon", "1", *FAST, "--out", tmp_path / "shares")[0] == 0
    for folder in ("column", "shares"):
        weights = [tensor for tensor in load_file(tmp_path / folder / "model.safetensors").values() if tensor.ndim == 2]
        assert [tensor.shape[1] for tensor in weights] == [2]


def test_arrays_that_hold_the_budgets_are_refused(refused, tmp_path):
    draw = np.random.default_rng(0)
    folder = tmp_path / "arrays"
    folder.mkdir()
    epsilon = draw.choice([0.7, 2.0], 60)
    for part in ("train", "test"):
        np.save(folder / f"x_{part}.npy", np.column_stack([draw.normal(size=60), epsilon]).astype(np.float32))
        np.save(folder / f"y_{part}.npy", np.arange(60) % 2)
    np.save(folder / "epsilon.npy", epsilon)
    refused("one of the features equals the holders' budgets", "train", "--arrays", folder, "--delta", "1e-4", *FAST)


# --- how a run ends ---


@pytest.mark.parametrize("rate", [("--lr", "3e38", "--momentum", "0.99"), ("--lr", "1e39")])
def test_a_model_that_is_not_finite_ends_the_run_and_what_it_spent_is_kept(run, asked, tmp_path, rate):
    folder = tmp_path / "run"
    code, _, err = run(*asked(people(60), *rate, "--steps", "60", "--out", folder))
    assert code == 2
    assert re.search(r"no longer finite after step \d+ of 60, .* smaller learning rate", err)
    account = json.loads((folder / "account.json").read_text())
    assert 0 < account["steps"] < 60
    assert all(0 < group["spent"] < group["epsilon"] for group in account["groups"])
    assert "no longer finite" in account["ended"]
    assert not (folder / "model.safetensors").exists()
    before = (folder / "account.json").read_bytes()
    code, _, again = run("train", "--resume", "--out", folder)
    assert (code, again) == (2, err)
    assert (folder / "account.json").read_bytes() == before


def test_a_finished_run_keeps_no_key_and_says_what_may_be_shared(run, asked, tmp_path):
    folder = tmp_path / "run"
    code, out, _ = run(*asked(people(60), "--out", folder))
    assert code == 0
    shared = {"account.json", "config.toml", "model.safetensors", "plan.json", "report.html"}
    assert {path.name for path in folder.iterdir()} == shared | {"budgets.npz", "plan-all.json"}
    said = re.search(r"You may share ([^:]*)\. Keep to yourself, [^:]*: (.*?)\. The key", " ".join(out.split()))
    assert set(said[1].split(", ")) == shared
    assert said[2] == "budgets.npz, plan-all.json"
    code, out, err = run("train", "--resume", "--out", folder)
    assert (code, out) == (2, "")
    assert "is finished" in err


def test_settings_that_give_a_rare_budget_are_for_the_owner_alone(run, file, tmp_path):
    given = ("train", "--table", file("t.csv", people(60)), "--schema", file("s.toml", SCHEMA), "--id-column", "person")
    code, out, _ = run(*given, "--epsilon", "1,7.25", "--share", "0.95,0.05", *FAST, "--out", tmp_path / "run")
    assert code == 0
    assert mode(tmp_path / "run/config.toml") == 0o600
    assert re.search(r"Keep to yourself[^:]*:[^.]*\.[^.]*config\.toml", " ".join(out.split()))


def test_a_run_stopped_after_its_last_step_is_finished_by_a_resume(run, asked, tmp_path, monkeypatch):
    """What the run was for is written from what was released."""
    arguments = asked(people(60), "--seed", "1")
    assert run(*arguments, "--out", tmp_path / "whole")[0] == 0
    with monkeypatch.context() as patch:
        patch.setattr(RunFolder, "finish", lambda *given: (_ for _ in ()).throw(KeyboardInterrupt))
        assert run(*arguments, "--out", tmp_path / "cut")[0] == 130
    assert run("train", "--resume", "--out", tmp_path / "cut")[0] == 0
    for name in ("model.safetensors", "account.json"):
        assert (tmp_path / "cut" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    assert not (tmp_path / "cut/checkpoint").exists()
