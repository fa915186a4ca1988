"""What `sartor train` was asked for is one value: from the command line, from files, over each other, to a run's folder and back."""

import inspect
import tomllib
from dataclasses import fields, replace

import pytest

from sartor.cli.train import train
from sartor.cli.train_settings import TrainSettings
from sartor.errors import SartorError
from sartor.report.folder import to_toml

ASKED = TrainSettings(dataset="digits", scheme="sample", epsilon="1,2", share="0.5,0.5", steps=7, batch=64.0, sensitive=False, seed=3)


def test_every_option_is_a_field_of_the_value():
    options = list(inspect.signature(train).parameters)
    assert options == [*(field.name for field in fields(TrainSettings)), "config", "out", "resume", "restarts", "json"]


def test_a_run_folders_document_reads_back_to_the_same_settings_and_recipe():
    recipe = ASKED.recipe(1_437)
    document = tomllib.loads(to_toml(ASKED.to_document(recipe)))
    again = TrainSettings.from_document(document, "config.toml")
    assert again.recipe(1_437) == recipe
    assert again.to_document(recipe) == ASKED.to_document(recipe)
    assert (again.seed, again.epsilon, again.share, again.dataset) == (3, "1,2", "0.5,0.5", "digits")
    assert list(document)[:10] == ["model", "scheme", "accountant", "steps", "batch", "clip", "lr", "optimizer", "momentum", "reserve"]


def test_what_is_said_above_wins_and_the_rest_is_from_below():
    below = TrainSettings(dataset="mnist", lr=0.5, sensitive=True)
    assert TrainSettings(dataset="digits", steps=3).over(below) == TrainSettings(dataset="digits", steps=3, lr=0.5, sensitive=True)


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (TrainSettings(), "one of --dataset, --table or --arrays."),
        (TrainSettings(dataset="digits", arrays="a"), "not --dataset and --arrays"),
        (TrainSettings(arrays="a", data="d"), "--data goes with --dataset"),
        (TrainSettings(dataset="digits", sensitive=True), "--sensitive goes with --table"),
        (TrainSettings(dataset="digits", epsilon="1", budgets="b.csv"), "--epsilon and --budgets both set budgets"),
        (TrainSettings(dataset="digits", seed=-1), "a seed must be"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(settings, words):
    with pytest.raises(SartorError, match=words):
        settings.check()


def test_paths_are_found_from_any_other_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    anchored = TrainSettings(table="t.csv", target="t.csv", budgets="b.csv").anchored()
    assert (anchored.table, anchored.budgets, anchored.target) == (str(tmp_path / "t.csv"), str(tmp_path / "b.csv"), "t.csv")


def test_numbers_for_groups_may_be_lists_and_whole_numbers_stay_as_they_are():
    read = TrainSettings.from_document({"epsilon": [1, 2.5], "delta": 1e-5, "batch": 64}, "c.toml")
    assert (read.epsilon, read.delta, read.batch) == ("1,2.5", "1e-05", 64)


def test_a_ladder_may_be_a_list_and_is_told_to_the_plan():
    asked = TrainSettings.from_document({"dataset": "digits", "individual": "ladder", "ladder": [1, 3, 9], "refresh": 7}, "own.toml")
    asked.check()
    found = asked.of_filter(asked.recipe(100), 100)
    assert found["ladder"] == (1, 3, 9)
    assert (found["filter"], found["refresh"]) == ("ladder", 7)
    assert TrainSettings.from_document(asked.to_document(asked.recipe(100)), "config.toml").ladder == "1,3,9"


def test_nothing_that_is_printed_of_them_gives_a_budget():
    assert "0.731" not in repr(replace(ASKED, epsilon="0.731,8", delta="0.731", share="0.731,1"))


def test_held_out_figures_without_held_out_rows_are_refused(run, file, tmp_path):
    rows = [{"age": i % 50, "income": "low" if i % 3 else "high"} for i in range(60)]
    schema = 'target = "income"\nclasses = ["low", "high"]\ntest_share = 0\n[columns.age]\nbounds = [0, 100]\n'
    asked = ("--table", file("t.csv", rows), "--schema", file("s.toml", schema), "--epsilon", "1", "--sensitive", "--out", tmp_path / "run")
    code, _, err = run("train", *asked)
    assert (code, "holds none out" in err, (tmp_path / "run").exists()) == (2, True, False)


@pytest.mark.parametrize(("option", "value"), [("--max-physical-batch", "0"), ("--max-physical-batch", "-1"), ("--clip", "1e300")])
def test_what_training_would_refuse_is_refused_before_a_folder_is_made(run, tmp_path, option, value):
    folder = tmp_path / "run"
    code, _, err = run("train", "--dataset", "digits", "--steps", "3", "--accountant", "rdp", "--out", folder, option, value)
    assert code == 2
    assert option in err
    assert not folder.exists()
