"""`sartor train` on people with several rows: the person is planned for, drawn, told of and held out, and never a row of theirs."""

import json
import re
import tomllib

import numpy as np
import pytest

from sartor import Ownership
from sartor.cli import train_job
from sartor.cli.train import _introduction
from sartor.cli.train_settings import TrainSettings
from sartor.errors import SartorError
from sartor.report.folder import RunFolder
from sartor.sgd import PrivateOptimizer

FAST = ("--accountant", "rdp", "--steps", "6")
SHARES = ("--epsilon", "1,4", "--share", "0.4,0.6", "--delta", "1e-4")
SCHEMA = """
target = "income"
classes = ["low", "high"]
features = ["age", "hours"]
[columns.age]
bounds = [0, 100]
[columns.hours]
bounds = [0, 100]
"""
POLICY = "delta = 1e-4\n[levels]\nstrict = 1\nopen = 4\n"
PEOPLE, MOST = 120, 53


def visits(count=PEOPLE, seed=0, most=MOST):
    """Visits of people, one to three each, and of one person many more."""
    draw = np.random.default_rng(seed)
    counts = [most if i == 7 else 1 + i % 3 for i in range(count)]
    rows = []
    for i, times in enumerate(counts):
        for _ in range(times):
            age, hours = draw.uniform(0, 100, 2).round(3).tolist()
            consent = "strict" if i % 3 == 1 else "open"
            income = "high" if age + hours > 100 else "low"
            rows.append(
                {"person": f"holder-{seed}-{i:04d}", "age": age, "hours": hours, "consent": consent, "other": i // 2, "income": income}
            )
    draw.shuffle(rows)
    return rows


ROWS = visits()


@pytest.fixture
def table(file):
    """Arguments that train on rows of people."""

    def arguments(rows=ROWS, *more, allowed=SHARES):
        known = ("train", "--table", file("visits.csv", rows), "--schema", file("schema.toml", SCHEMA), "--id-column", "person")
        return (*known, *allowed, *FAST, *more)

    return arguments


@pytest.fixture
def prepared(file):
    """What would be trained, and how."""

    def job(rows=ROWS, folder=None, **asked):
        known = {"table": str(file("visits.csv", rows)), "schema": str(file("schema.toml", SCHEMA)), "id_column": "person"}
        usual = {"epsilon": "1,4", "share": "0.4,0.6", "delta": "1e-4", "accountant": "rdp", "steps": 6, "seed": 1}
        return train_job.prepared(TrainSettings(**{**known, **usual, **asked}), folder)

    return job


@pytest.fixture
def refused(run, tmp_path):
    """Runs a command that must end with one sentence that holds these words, before there is a folder."""

    def check(words, *arguments):
        code, out, err = run(*arguments, "--out", tmp_path / "refused")
        assert (code, out) == (2, "")
        assert re.fullmatch(r"(warning [^\n]*\n)*error: \S[^\n]*\n", err)
        assert re.search(words, err), err
        assert "holder-" not in err
        assert not (tmp_path / "refused").exists()

    return check


# --- what is planned ---


def test_shares_are_of_holders_and_not_of_rows(prepared):
    job = prepared()
    assert job.plan.holders.tolist() == [48, 72]
    assert (job.plan.records, len(job.data.train), len(job.budgets)) == (len(ROWS), len(ROWS), PEOPLE)


def test_the_usual_batch_follows_the_number_of_holders(prepared):
    assert prepared().plan.batch == PEOPLE // 6
    with pytest.raises(SartorError, match="cannot be drawn from 120 holders"):
        prepared(batch=121.0)


def test_the_plan_knows_how_many_records_of_a_holder_enter_a_step_and_how(prepared):
    usual, asked = prepared().plan, prepared(records_per_holder=2, combine="sum").plan
    assert (usual.records_per_holder, usual.combine) == (None, "mean")
    assert (asked.records_per_holder, asked.combine) == (2, "sum")
    assert asked.spent.tolist() == usual.spent.tolist()


def test_the_introduction_says_how_many_people_there_are_and_what_one_is(prepared):
    said = _introduction(prepared())
    assert f"120 holders ({len(ROWS)} records), 0 public test rows" in said
    assert 'one holder: all rows that name them in "person"' in said
    alone = _introduction(prepared(visits(most=1)[:1] + [row for row in visits(seed=3, most=1) if row["other"] == 3][:1]))
    assert "2 training rows" in alone
    assert "one holder: one training row" in alone


def test_the_column_of_holders_may_be_named_by_the_schema(prepared, file):
    schema = str(file("own.toml", 'id_column = "person"' + SCHEMA))
    job = prepared(schema=schema, id_column=None)
    assert job.data.people == PEOPLE
    assert job.data.one_holder == 'all rows that name them in "person"'


def test_without_a_column_of_holders_every_row_is_one(prepared):
    rows = [{key: row[key] for key in ("age", "hours", "income")} for row in ROWS]
    job = prepared(rows, id_column=None)
    assert (job.data.ownership, job.plan.by_holder, job.data.people) == (None, False, len(ROWS))


def test_a_file_of_budgets_is_read_by_holder(prepared, file):
    budgets = file("b.csv", [{"holder": f"holder-0-{i:04d}", "epsilon": 1 + i % 2} for i in reversed(range(PEOPLE))])
    job = prepared(epsilon=None, share=None, budgets=str(budgets))
    assert job.budgets.epsilon.tolist() == [1 + int(name[-4:]) % 2 for name in job.data.holders]


def test_held_out_rows_are_of_people_who_are_not_trained_on(prepared):
    rows = [row | {"hours": int(row["person"][-4:]) / 2} for row in ROWS]
    with pytest.warns(UserWarning, match="24 holders, with all of their rows, were held out"):
        job = prepared(rows, sensitive=True)
    trained, held = (set(np.rint(part.tensors[0][:, 1].numpy() * 200).astype(int)) for part in (job.data.train, job.data.held_out))
    assert (len(trained), len(held), len(trained & held)) == (96, 24, 0)
    assert job.plan.records == len(job.data.train) == len(ROWS) - len(job.data.held_out)


def test_arrays_with_holders_take_a_file_of_budgets_by_name(tmp_path, file):
    draw = np.random.default_rng(0)
    names = np.array([f"p{i}" for i in draw.permutation(np.repeat(np.arange(20), 3))])
    inputs, labels = draw.normal(size=(60, 3)).astype(np.float32), np.arange(60) % 2
    np.savez(tmp_path / "a.npz", x_train=inputs, y_train=labels, x_test=inputs[:4] + 7, y_test=labels[:4], holders=names)
    budgets = file("b.csv", [{"holder": f"p{i}", "epsilon": 1 + i % 2} for i in range(20)])
    asked = {"arrays": str(tmp_path / "a.npz"), "budgets": str(budgets), "delta": "1e-4", "accountant": "rdp", "steps": 6}
    job = train_job.prepared(TrainSettings(**asked), None)
    assert job.data.ownership.of_record.tolist() == Ownership.of(names, job.budgets).of_record.tolist()
    assert job.budgets.epsilon.tolist() == [1 + int(name[1:]) % 2 for name in job.data.holders]
    feature = 1.0 + np.array([int(name[1:]) % 2 for name in names])
    np.savez(tmp_path / "a.npz", x_train=feature[:, None], y_train=labels, x_test=inputs[:4, :1], y_test=labels[:4], holders=names)
    with pytest.raises(SartorError, match="equals the holders' budgets"):
        train_job.prepared(TrainSettings(**asked), None)


# --- what is refused ---


def test_two_spellings_blanks_and_nobody_are_refused(refused, table):
    for name, words in (("HOLDER-0-0007", "may be one person"), ("", "1 of .* rows have no holder")):
        refused(words, *table([ROWS[0] | {"person": name}, *ROWS[1:]]))
    refused("name nobody", *table([row | {"person": "NULL"} if i < 5 else row for i, row in enumerate(ROWS)]))


def test_rows_of_one_holder_that_allow_different_things_need_the_strictest(refused, prepared, table, file):
    rows = [row | {"consent": "strict" if i % 2 else "open"} if row["person"].endswith("0007") else row for i, row in enumerate(ROWS)]
    policy = file("policy.toml", POLICY)
    allowed = ("--budget-column", "consent", "--policy", policy)
    refused("1 of 120 holders have records with different budgets: .*--strictest", *table(rows, allowed=allowed))
    asked = {"epsilon": None, "share": None, "delta": None, "budget_column": "consent", "policy": str(policy)}
    job = prepared(rows, strictest=True, **asked)
    assert dict(zip(job.data.holders, job.budgets.epsilon.tolist(), strict=True))["holder-0-0007"] == 1
    assert job.plan.holders.tolist() == [40, 80]


@pytest.mark.parametrize("option", [("--strictest",), ("--records-per-holder", "2"), ("--combine", "sum")], ids=lambda option: option[0])
def test_what_is_for_several_records_is_refused_where_there_are_none(refused, table, file, option):
    allowed = ("--budget-column", "consent", "--policy", file("policy.toml", POLICY))
    alone = list({row["person"]: row for row in ROWS}.values())
    refused(f"{option[0]} goes with holders who have several rows", *table(alone, *option, allowed=allowed))
    refused(f"{option[0]} goes with --table or --arrays", "train", "--dataset", "digits", *FAST, *option)


def test_the_strictest_needs_a_column_to_choose_from(refused, table, tmp_path):
    refused("--strictest chooses .* --budget-column", *table(ROWS, "--strictest"))
    rows, labels = np.random.default_rng(0).normal(size=(8, 2)), np.arange(8) % 2
    np.savez(tmp_path / "a.npz", x_train=rows, y_train=labels, x_test=rows[:2] + 9, y_test=labels[:2], holders=np.arange(8) // 2)
    refused("--strictest chooses .* no epsilon", "train", "--arrays", tmp_path / "a.npz", *SHARES, *FAST, "--strictest")


@pytest.mark.parametrize(
    ("option", "words"),
    [
        (("--records-per-holder", "0"), "--records-per-holder must be 1 or more, not 0"),
        (("--combine", "median"), '--combine is mean or sum, not "median"'),
        (("--batch", "121"), "120 holders"),
        (("--id-column", "nosuch"), 'no column "nosuch"'),
    ],
    ids=lambda value: value[0] if isinstance(value, tuple) else "",
)
def test_bad_options_end_with_one_sentence(refused, table, option, words):
    refused(words, *table(ROWS, *option))


# --- other people than when the run began ---


def begun(job, path):
    folder = RunFolder(path)
    folder.create(job.asked.to_document(job.recipe), job.plan, job.budgets)
    return folder


@pytest.mark.parametrize(
    "change",
    [
        lambda rows: [row | {"person": row["other"]} for row in rows],
        lambda rows: [row | {"person": f"{row['person']}x"} for row in rows],
        lambda rows: [row | {"person": f"only-{i}"} for i, row in enumerate(rows)],
        lambda rows: rows[:-1],
    ],
    ids=["fewer people", "other names", "one row each", "a row less"],
)
def test_a_run_does_not_continue_with_other_people(prepared, file, tmp_path, change):
    named = {
        "epsilon": None,
        "share": None,
        "budgets": str(file("b.csv", [{"holder": f"holder-0-{i:04d}", "epsilon": 2} for i in range(120)])),
    }
    folder = begun(prepared(**named), tmp_path / "run")
    assert prepared(folder=folder, **named).data.people == PEOPLE
    with pytest.raises(SartorError, match="other holders than when this run began"):
        prepared(change(ROWS), folder=folder, **named)


def test_a_run_of_rows_does_not_continue_with_people(prepared, tmp_path):
    alone = [row | {"person": f"only-{i}"} for i, row in enumerate(ROWS)]
    folder = begun(prepared(alone), tmp_path / "run")
    assert prepared([row | {"person": "other " + row["person"]} for row in alone], folder=folder).data.ownership is None
    with pytest.raises(SartorError, match="other holders than when this run began"):
        prepared(ROWS, folder=folder)


# --- whole runs ---


def numbers_in(text):
    """The whole numbers in a text; places in a drawing, which follow the noise, may be any."""
    said = re.sub(r'\b[a-zA-Z0-9-]+="[^"]*[0-9][^"]*"', "", text)
    return {int(found.replace(",", "")) for found in re.findall(r"(?<![\w.,-])\d[\d,]*(?![\w.]|\.\d)", said)}


def test_the_search_finds_whole_numbers_alone():
    assert numbers_in('at 53, of 1,053 (53.5 or 0.53) <rect x="12"/>') == {53, 1053}


def test_people_read_how_many_they_are_and_nobodys_number_of_rows(run, table, file, tmp_path):
    """Neither how many rows one person has is told, nor how many the people of a group have together."""
    allowed = ("--budget-column", "consent", "--policy", file("policy.toml", POLICY))
    public = file("public.csv", visits(20, seed=1, most=1))
    folder = tmp_path / "run"
    code, out, err = run(*table(ROWS, "--out", folder, "--test", public, "--records-per-holder", "2", allowed=allowed))
    assert (code, err) == (0, "")
    code, document, _ = run(*table(ROWS, "--json", "--test", public, allowed=allowed))
    found = json.loads(document)
    assert (found["holders"], found["records"]) == (PEOPLE, len(ROWS))
    assert [group["holders"] for group in found["groups"]] == [40, 80]
    account = json.loads((folder / "account.json").read_text())
    assert (account["holders"], account["records"]) == (PEOPLE, len(ROWS))
    page = (folder / "report.html").read_text()
    lent = f"{PEOPLE} holders ({len(ROWS)} records)"
    for text in (" ".join(out.split()), page, " ".join(run("account", folder)[1].split())):
        assert lent in text
    for text in (out, page):
        assert "all rows that name them in" in " ".join(text.split())
    strict = sum(row["consent"] == "strict" for row in ROWS)
    secrets = {MOST, strict, len(ROWS) - strict}
    texts = {path.name: path.read_text() for path in folder.iterdir() if path.suffix in (".json", ".html", ".toml")}
    del texts["plan-all.json"]
    document = re.sub(r'"(seconds|accuracy)": [\d.e-]+', "", document)
    for name, text in {"stdout": out, "json": document, **texts}.items():
        assert not numbers_in(text) & secrets, name
        assert "holder-0" not in text


def test_accuracy_on_held_out_people_stays_in_a_file_for_the_owner(run, table, tmp_path):
    folder = tmp_path / "run"
    code, out, _ = run(*table(ROWS, "--sensitive", "--out", folder))
    assert code == 0
    kept = json.loads((folder / "held-out.json").read_text())
    trained = json.loads((folder / "plan.json").read_text())["records"]
    assert kept["rows"] == len(ROWS) - trained
    assert f"96 holders ({trained} records)" in out
    assert "24 holders, with all of their rows, were held out" in " ".join(out.split())


def stop_at(monkeypatch, call):
    """Has the person at the terminal press Ctrl-C in the middle of training."""
    step, calls = PrivateOptimizer.step, iter(range(10**6))

    def interrupted(self, closure=None):
        if next(calls) == call:
            raise KeyboardInterrupt
        step(self, closure)

    monkeypatch.setattr(PrivateOptimizer, "step", interrupted)


@pytest.fixture
def interrupted(run, table, tmp_path, monkeypatch):
    """A run that was stopped; gives its folder."""
    with monkeypatch.context() as patch:
        stop_at(patch, 4)
        asked = table(ROWS, "--seed", "5", "--records-per-holder", "2", "--combine", "sum", "--out", tmp_path / "run")
        assert run(*asked)[0] == 130
    return tmp_path / "run"


def test_an_interrupted_run_continues_with_the_same_people_and_account(run, table, interrupted, tmp_path):
    kept = tomllib.loads((interrupted / "config.toml").read_text())
    assert (kept["id_column"], kept["records_per_holder"], kept["combine"]) == ("person", 2, "sum")
    assert run("train", "--resume", "--out", interrupted)[0] == 0
    assert run(*table(ROWS, "--seed", "5", "--records-per-holder", "2", "--combine", "sum", "--out", tmp_path / "whole"))[0] == 0
    accounts = [json.loads((folder / "account.json").read_text()) for folder in (interrupted, tmp_path / "whole")]
    assert all(accounts[0][name] == accounts[1][name] for name in ("steps", "charged", "holders", "records", "groups"))
    assert accounts[0]["lost"] <= 1


def exchanged(rows):
    """The rows with two of them given to each other's holders: as many people, with as many rows each."""
    one = next(i for i, row in enumerate(rows) if row["person"].endswith("0007"))
    other = next(i for i, row in enumerate(rows) if row["person"].endswith("0008"))
    names = {one: rows[other]["person"], other: rows[one]["person"]}
    return [row | {"person": names.get(i, row["person"])} for i, row in enumerate(rows)]


def test_a_run_whose_id_column_has_changed_is_not_continued(run, file, interrupted):
    before = {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()}
    for change in (exchanged, lambda rows: [row | {"person": row["other"]} for row in rows]):
        file("visits.csv", change(ROWS))
        code, out, err = run("train", "--resume", "--out", interrupted)
        assert code == 2
        assert re.search(r"error: \S[^\n]*\n$", err)
        assert "holder-" not in out + err
        assert {path: path.read_bytes() for path in interrupted.rglob("*") if path.is_file()} == before
    file("visits.csv", ROWS)
    settings = interrupted / "config.toml"
    settings.write_text(settings.read_text().replace('id_column = "person"', 'id_column = "other"'))
    code, _, err = run("train", "--resume", "--out", interrupted)
    assert (code, "config.toml or plan.json or budgets.npz beside it" in err) == (2, True)
    code, _, err = run("train", "--resume", "--out", interrupted, "--id-column", "person")
    assert (code, "leave out --id-column" in err) == (2, True)
    settings.write_bytes(before[settings])
    assert run("train", "--resume", "--out", interrupted)[0] == 0
