"""`sartor train`: data and budgets in; a model, an account and a page in one folder, with nothing of one holder in what is shown."""

import json
import re
import stat
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import sartor
from sartor import usual
from sartor.cli.train_job import prepared
from sartor.cli.train_settings import TrainSettings
from sartor.data import load
from sartor.models import registry
from sartor.sgd import PrivateOptimizer

FAST = ("--accountant", "rdp", "--steps", "20")
DIGITS = ("train", "--dataset", "digits", *FAST)
POLICY = "delta = 1e-5\n[levels]\nstrict = 1\nbalanced = 2\nopen = 4\n"
SCHEMA = """
target = "income"
classes = ["low", "high"]
id_column = "person"
[columns.age]
bounds = [0, 100]
[columns.hours]
bounds = [0, 100]
[columns.sex]
categories = ["F", "M"]
"""


def people(count, seed=0):
    """A census of people whose income follows from age and hours, and who chose a level."""
    draw = np.random.default_rng(seed)
    rows = []
    for i in range(count):
        age, hours = int(draw.integers(0, 100)), int(draw.integers(0, 100))
        rows.append(
            {
                "person": f"holder-{seed}-{i:04d}",
                "age": age,
                "hours": hours,
                "sex": "FM"[i % 2],
                "consent": ("strict", "balanced", "open")[i % 3],
                "income": "high" if age + hours > 100 else "low",
            }
        )
    return rows


@pytest.fixture
def table(file):
    """The arguments that train on a table with a consent column and a policy."""
    return (
        *("train", "--table", file("census.csv", people(600)), "--test", file("public.csv", people(200, seed=1))),
        *("--schema", file("schema.toml", SCHEMA), "--budget-column", "consent", "--policy", file("policy.toml", POLICY)),
    )


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


# --- what comes out ---


def test_the_document_has_the_documented_keys_and_keeps_every_budget(run):
    code, out, err = run(*DIGITS, "--scheme", "sample", "--json")
    assert (code, err) == (0, "")
    document = json.loads(out, parse_constant=pytest.fail)
    assert document.keys() == {"accuracy", "seconds", "steps", "holders", "records", "plan", "groups"}
    assert document["holders"] == document["records"] == 1_437
    assert 0 <= document["accuracy"] <= 1
    assert document["seconds"] > 0
    assert document["steps"] == 20
    assert (document["plan"]["scheme"], document["plan"]["accountant"]) == ("sample", "rdp")
    assert [(group["epsilon"], group["holders"]) for group in document["groups"]] == [(1, 489), (2, 618), (3, 330)]
    assert all(0.99 * group["epsilon"] <= group["spent"] <= group["epsilon"] for group in document["groups"])
    assert sartor.Plan.from_json(document["plan"]).to_json() == document["plan"]


def test_the_run_folder_holds_what_it_should_with_sensitive_files_for_the_owner_alone(run, tmp_path):
    folder = tmp_path / "run"
    code, out, _ = run(*DIGITS, "--seed", "1", "--out", folder)
    assert code == 0
    expected = {
        "config.toml",
        "plan.json",
        "plan-all.json",
        "budgets.npz",
        "model.safetensors",
        "account.json",
        "report.html",
    }
    assert {path.name for path in folder.iterdir()} == expected
    assert mode(folder / "budgets.npz") == mode(folder / "plan-all.json") == 0o600
    account = json.loads((folder / "account.json").read_text())
    assert (account["steps"], account["planned_steps"], account["private"]) == (20, 20, False)
    assert json.loads((folder / "plan.json").read_text())["groups"][0]["holders"] == 489
    assert tomllib.loads((folder / "config.toml").read_text())["dataset"] == "digits"
    # the kept model is the one whose accuracy was told
    model = registry.build("logistic", shape=(1, 8, 8), classes=10)
    model.load_state_dict(load_file(folder / "model.safetensors"))
    inputs, labels = load("digits").test.tensors
    accuracy = float((model(inputs).argmax(1) == labels).float().mean())
    assert f"Accuracy on the public test rows: {accuracy:.1%}" in out
    assert f"Accuracy on the public test rows: {accuracy:.1%}." in (folder / "report.html").read_text()


def test_people_read_what_is_trained_the_plan_the_accuracy_the_account_and_what_it_means(run):
    code, out, err = run(*DIGITS)
    assert (code, err) == (0, "")
    at = [
        out.index(text)
        for text in ("data: digits", "model: logistic", "noise multiplier", "Accuracy on", "after 20 of 20 steps", "Whoever")
    ]
    assert at == sorted(at)
    assert "seeded" not in out
    assert "Nothing was written" in out


def test_a_seeded_run_says_that_it_is_not_private_and_can_be_repeated(run, tmp_path):
    for name in ("a", "b"):
        _, out, _ = run(*DIGITS, "--seed", "3", "--out", tmp_path / name)
        assert "protects nobody" in out
        assert "protects nobody" in (tmp_path / name / "report.html").read_text()
    assert (tmp_path / "a/model.safetensors").read_bytes() == (tmp_path / "b/model.safetensors").read_bytes()


def test_runs_without_a_seed_differ(run, tmp_path):
    for name in ("a", "b"):
        assert run(*DIGITS, "--out", tmp_path / name)[0] == 0
        assert "protects nobody" not in (tmp_path / name / "report.html").read_text()
    assert (tmp_path / "a/model.safetensors").read_bytes() != (tmp_path / "b/model.safetensors").read_bytes()
    assert (tmp_path / "a/budgets.npz").read_bytes() != (tmp_path / "b/budgets.npz").read_bytes()


# --- tables and arrays of one's own ---


def test_a_table_with_a_consent_column_trains_with_one_command(run, table, tmp_path):
    code, out, err = run(*table, "--seed", "0", "--json", "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    document = json.loads(out)
    assert [(group["epsilon"], group["holders"]) for group in document["groups"]] == [(1, 200), (2, 200), (4, 200)]
    assert document["accuracy"] > 0.8
    with np.load(tmp_path / "run/budgets.npz") as kept:
        assert kept["holders"][:3].tolist() == ["holder-0-0000", "holder-0-0001", "holder-0-0002"]
        assert kept["epsilon"][:3].tolist() == [1, 2, 4]


def test_a_file_of_budgets_follows_the_rows_by_key(run, file, tmp_path):
    rows = people(300)
    budgets = [{"holder": row["person"], "epsilon": 1 + int(row["age"] >= 50)} for row in rows][::-1]
    for row in rows:
        del row["consent"]
    arguments = ("train", "--table", file("census.csv", rows), "--schema", file("s.toml", SCHEMA), "--budgets", file("b.csv", budgets))
    code, _, err = run(*arguments, "--delta", "1e-4", *FAST, "--out", tmp_path / "run")
    assert (code, err) == (0, "")
    age = {row["person"]: row["age"] for row in rows}
    with np.load(tmp_path / "run/budgets.npz") as kept:
        assert len(kept["holders"]) == 300
        assert kept["holders"].tolist() == sorted(kept["holders"])  # the order of the table, not of the file
        assert kept["epsilon"].tolist() == [1 + int(age[name] >= 50) for name in kept["holders"]]


def test_arrays_bring_their_own_budgets(run, tmp_path):
    draw = np.random.default_rng(0)
    folder = tmp_path / "arrays"
    folder.mkdir()
    for part, count in (("train", 120), ("test", 40)):
        np.save(folder / f"x_{part}.npy", draw.normal(size=(count, 5)).astype(np.float32))
        np.save(folder / f"y_{part}.npy", np.arange(count) % 3)
    np.save(folder / "epsilon.npy", np.repeat([1.0, 2.0], 60))
    code, out, _ = run("train", "--arrays", folder, "--delta", "1e-4", *FAST, "--json")
    assert code == 0
    assert [(group["epsilon"], group["holders"]) for group in json.loads(out)["groups"]] == [(1, 60), (2, 60)]


def test_nothing_that_is_shown_names_a_holder_or_a_rare_budget(run, file, tmp_path):
    rows = people(300)
    for i, row in enumerate(rows):
        row["consent"] = "0.7531" if i in (3, 4) else "4.4417" if i == 5 else ("1", "2")[i // 2 % 2]
    arguments = ("train", "--table", file("census.csv", rows), "--test", file("p.csv", people(50, 1)), "--schema", file("s.toml", SCHEMA))
    out, err = "", ""
    for scheme in ("scale", "uniform"):
        code, *said = run(
            *arguments, "--budget-column", "consent", "--delta", "1e-4", "--scheme", scheme, *FAST, "--out", tmp_path / scheme
        )
        assert code == 0
        out, err = out + said[0], err + said[1]
    code, *said = run(*arguments, "--budget-column", "consent", "--delta", "1e-4", *FAST, "--json")
    texts = [out, err, *said]
    for name in ("config.toml", "plan.json", "account.json", "report.html"):
        texts += [(tmp_path / scheme / name).read_text() for scheme in ("scale", "uniform")]
    for text in texts:
        assert "holder-0" not in text
        said = re.sub(r'\b[a-zA-Z0-9-]+="[^"]*[0-9][^"]*"', "", text)  # places in a drawing, which follow the noise, may have any digits
        assert not re.search(r"0\.753|4\.44", said)


# --- settings ---


def test_a_file_of_settings_gives_what_the_command_line_does_not(run, file, tmp_path):
    config = file("c.toml", 'dataset = "digits"\nsteps = 30\naccountant = "rdp"\nepsilon = [1, 4]\nshare = [0.5, 0.5]\ndelta = 1e-4\n')
    code, out, _ = run("train", "--config", config, "--steps", "10", "--json", "--out", tmp_path / "run")
    document = json.loads(out)
    assert (code, document["steps"]) == (0, 10)
    assert [group["epsilon"] for group in document["groups"]] == [1, 4]
    kept = tomllib.loads((tmp_path / "run/config.toml").read_text())
    assert (kept["steps"], kept["epsilon"], kept["share"], kept["delta"]) == (10, "1,4", "0.5,0.5", "0.0001")


def test_the_papers_data_sets_have_the_papers_settings():
    for name, stated in {"mnist": (9375, 512, 0.2, 0.6), "svhn": (2146, 1024, 0.9, 0.2), "cifar10": (1465, 1024, 0.4, 0.7)}.items():
        found = usual.recipe(name)
        assert (found.steps, found.batch, found.clip, found.lr) == stated


def test_budgets_are_the_papers_unless_said_otherwise():
    job = prepared(TrainSettings(dataset="digits", accountant="rdp", seed=1), None)
    assert job.budgets == sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=1437, delta=1e-5, seed=1)


def test_building_a_model_leaves_torchs_generator_alone():
    before = torch.get_rng_state()
    prepared(TrainSettings(dataset="digits", accountant="rdp", seed=1), None)
    assert torch.equal(torch.get_rng_state(), before)


# --- interrupted ---


def stop_at(monkeypatch, call):
    """Has the person at the terminal press Ctrl-C in the middle of training; the model is left alone, for another one is not continued."""
    step, calls = PrivateOptimizer.step, iter(range(10**6))

    def interrupted(self, closure=None):
        if next(calls) == call:
            raise KeyboardInterrupt
        step(self, closure)

    monkeypatch.setattr(PrivateOptimizer, "step", interrupted)


def test_an_interrupted_run_continues_to_its_last_step(run, tmp_path, monkeypatch):
    arguments = (*DIGITS, "--seed", "5", "--scheme", "sample")
    with monkeypatch.context() as patch:
        stop_at(patch, 15)
        code, _, err = run(*arguments, "--out", tmp_path / "cut")
    assert code == 130
    assert f"sartor train --resume --out {tmp_path / 'cut'}" in err
    assert not (tmp_path / "cut/model.safetensors").exists()
    code, out, _ = run("train", "--resume", "--out", tmp_path / "cut", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 20)
    account = json.loads((tmp_path / "cut/account.json").read_text())
    assert account["steps"] == account["taken"] + account["lost"] == 20


def test_an_unseeded_run_continues_with_the_budgets_that_it_began_with(run, tmp_path, monkeypatch):
    with monkeypatch.context() as patch:
        stop_at(patch, 15)
        assert run(*DIGITS, "--out", tmp_path / "run")[0] == 130
    before = (tmp_path / "run/budgets.npz").read_bytes()
    code, out, _ = run("train", "--resume", "--out", tmp_path / "run", "--json")
    assert (code, json.loads(out)["steps"]) == (0, 20)
    assert (tmp_path / "run/budgets.npz").read_bytes() == before


def test_a_table_given_by_a_relative_path_continues_from_another_folder(run, table, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    relative = [argument.name if isinstance(argument, Path) else argument for argument in table]
    with monkeypatch.context() as patch:
        stop_at(patch, 15)
        assert run(*relative, *FAST, "--out", "run")[0] == 130
    monkeypatch.chdir("/")
    assert run("train", "--resume", "--out", tmp_path / "run")[0] == 0


def test_stopping_without_a_folder_says_that_nothing_was_kept(run, monkeypatch):
    stop_at(monkeypatch, 5)
    code, _, err = run(*DIGITS)
    assert code == 130
    assert re.fullmatch(r"stopped; [^\n]*\n", err)


# --- bad input ---


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one of --dataset, --table or --arrays"),
        (("--dataset", "digits", "--table", "x.csv"), "not --dataset and --table"),
        (("--dataset", "mnist", "--data", "/nowhere"), "there is no folder /nowhere"),
        (("--dataset", "birds"), 'no data set "birds"'),
        (("--dataset", "digits", "--model", "oracle"), 'no model "oracle"'),
        (("--dataset", "digits", "--model", "char-lstm"), "reads tokens"),
        (("--dataset", "digits", "--scheme", "none"), 'no scheme "none"'),
        (("--dataset", "digits", "--optimizer", "magic"), 'no optimizer "magic"'),
        (("--dataset", "digits", "--optimizer", "adam", "--momentum", "0.9"), "goes with the optimizer sgd"),
        (("--dataset", "digits", "--lr", "0"), "learning rate must be positive"),
        (("--dataset", "digits", "--lr", "nan"), "learning rate must be positive"),
        (("--dataset", "digits", "--steps", "0"), "steps"),
        (("--dataset", "digits", "--batch", "1e6"), "batch"),
        (("--dataset", "digits", "--seed", "-1"), "seed"),
        (("--dataset", "digits", "--epsilon", "1,x", "--share", ".5,.5"), "numbers separated by commas"),
        (("--dataset", "digits", "--epsilon", "1,2", "--share", "1"), "2 epsilons but 1 share:"),
        (("--dataset", "digits", "--share", "1"), "--share goes with --epsilon"),
        (("--dataset", "digits", "--epsilon", "1", "--budgets", "b.csv"), "--epsilon and --budgets both set budgets"),
        (("--dataset", "digits", "--budgets", "/nowhere.csv", "--delta", "1e-5"), "cannot be read"),
        (("--dataset", "digits", "--mix", "0.5"), "mix"),
        (("--dataset", "digits", "--target", "x"), "--target goes with --table"),
        (("--dataset", "digits", "--max-physical-batch", "0"), "physical batch"),
        (("--table", "/nowhere.csv", "--target", "x", "--epsilon", "1"), "no table /nowhere.csv"),
        (("--table", "/nowhere.csv", "--epsilon", "1"), "--target"),
        (("--arrays", "/nowhere", "--epsilon", "1"), "no folder /nowhere"),
        (("--resume",), "give it with --out"),
        (("--resume", "--out", "/nowhere"), "no checkpoint in /nowhere"),
        (("--resume", "--out", "/nowhere", "--steps", "5"), "leave out --steps"),
        (("--config", "/nowhere.toml"), "cannot be read"),
        (("--dataset", "digits", "--out", str(Path(__file__) / "here")), "cannot be written"),
    ],
)
def test_bad_input_ends_with_one_sentence_and_exit_code_2(run, arguments, words):
    fast = () if "--resume" in arguments or "--steps" in arguments else FAST
    code, out, err = run("train", *arguments, *fast, "--json")
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: \S[^\n]*\n", err)
    assert words in err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('dataset = "digits"\nstep = 5\n', "a setting step that does not exist"),
        ('dataset = "digits"\nsteps = 5.5\n', "steps must be a whole number"),
        ('dataset = "digits"\nlr = "fast"\n', "lr must be a number"),
        ('dataset = "digits"\nepsilon = true\n', "epsilon must be a text"),
        ("dataset = 3\n", "dataset must be a text"),
        ("out = 'run'\n", "a setting out that does not exist"),
        ("dataset\n", "is not TOML"),
    ],
)
def test_a_wrong_file_of_settings_is_refused_by_name(run, file, content, words):
    code, out, err = run("train", "--config", file("c.toml", content))
    assert (code, out) == (2, "")
    assert re.fullmatch(r"error: \S[^\n]*\n", err)
    assert words in err


def test_a_folder_that_holds_something_is_never_written_over(run, tmp_path):
    (tmp_path / "note.txt").write_text("keep me")
    code, _, err = run(*DIGITS, "--out", tmp_path)
    assert (code, list(tmp_path.iterdir())) == (2, [tmp_path / "note.txt"])
    assert "exists already" in err


def test_a_request_that_cannot_be_planned_leaves_no_folder(run, tmp_path):
    code, _, err = run(*DIGITS, "--epsilon", "0", "--out", tmp_path / "run")
    assert (code, (tmp_path / "run").exists()) == (2, False)
    assert "epsilon is zero" in err


def test_own_people_are_never_given_budgets_that_nobody_chose(run, file):
    code, _, err = run("train", "--table", file("census.csv", people(100)), "--schema", file("s.toml", SCHEMA))
    assert code == 2
    assert "the budgets are missing" in err.splitlines()[-1]
