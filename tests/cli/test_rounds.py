"""Rounds on the command line: plans, training, and the published form, which wants to be asked for by name."""

import json

import pytest
from typer.testing import CliRunner

from sartor.cli import app
from sartor.errors import SartorError, Unsound

PLAN = "plan --epsilon 0.5,1 --share 0.5,0.5 --holders 400 --delta 1e-5 --steps 20 --batch 40 --accountant rdp --seed 1 --json"
TRAIN = "train --dataset digits --epsilon 1,4 --share 0.5,0.5 --delta 1e-4 --steps 6 --batch 100 --accountant rdp --seed 1"


def run(line: str):
    result = CliRunner().invoke(app, line.split())
    assert result.exit_code == 0, result.output + str(result.exception)
    return result


def refused(line: str) -> str:
    result = CliRunner().invoke(app, line.split())
    assert isinstance(result.exception, SartorError)
    return str(result.exception)


@pytest.mark.parametrize(
    "options",
    [
        "--scheme rounds --rounds 2 --spread onion --threshold fixed:0.7",
        "--scheme rounds --rounds 2 --spread even --threshold adaptive",
        "--scheme rounds --threshold 0.6,1",
        "--scheme jorgensen --threshold 0.8",
        "--scheme adapdp --rounds 2",
    ],
)
def test_plans_of_rounds_are_made(options):
    document = json.loads(run(f"{PLAN} {options}").stdout)
    assert sum(stage["steps"] for stage in document["stages"]) == 20
    assert len(document["options"]["thresholds"]) == len(document["stages"])
    assert all(group["spent"] <= group["epsilon"] for group in document["groups"])


def test_a_threshold_of_exclude_is_still_a_number():
    assert json.loads(run(f"{PLAN} --scheme exclude --threshold 0.8").stdout)["options"] == {"threshold": 0.8}
    for wrong in ("adaptive", "fixed:0.7", "0.5,1"):
        assert f'is one number, the smallest epsilon that takes part, not "{wrong}"' in refused(
            f"{PLAN} --scheme exclude --threshold {wrong}"
        )
    assert "1 round cannot have 2 thresholds" in refused(f"{PLAN} --scheme rounds --rounds 1 --threshold 0.6,1")


@pytest.mark.long
def test_rounds_are_trained_and_kept(tmp_path):
    document = json.loads(run(f"{TRAIN} --scheme rounds --threshold 1.5,4 --json --out {tmp_path / 'run'}").stdout)
    assert document["steps"] == 6
    assert len(document["plan"]["stages"]) == 2
    members = json.loads(run(f"{TRAIN} --scheme adapdp --threshold 1.5,4 --json --out {tmp_path / 'members'}").stdout)
    assert members["steps"] == 6
    assert (tmp_path / "members" / "model.safetensors").exists()


@pytest.mark.parametrize("scheme", ["rounds", "adapdp"])
@pytest.mark.parametrize(
    "options",
    [
        "--mix 0.5",
        "--order open-first",
        "--max-excess 0.1",
        "--spread even",
        "--individual ladder --refresh 2 --full-steps 4 --ladder 1,4",
        "--individual estimate",
        "--reserve 0.1",
        "--max-physical-batch 10",
    ],
)
def test_the_published_form_refuses_options_that_it_does_not_have(scheme, options):
    sentence = refused(f"{TRAIN} --scheme {scheme} --rounds 2 --form published --unsound {options}")
    assert f"has no option {options.split()[0]}; of those of rounds it takes --rounds and --threshold." in sentence


def test_the_published_form_is_trained_only_where_it_is_said_to_be_unsound(tmp_path):
    line = f"{TRAIN} --scheme rounds --rounds 2 --form published"
    assert "--unsound" in refused(line)
    assert "--out" in refused(f"{line} --unsound --out {tmp_path / 'run'}")
    assert not (tmp_path / "run").exists()
    assert "--form published" in refused(f"{TRAIN} --scheme rounds --unsound")
    assert "sound or published" in refused(f"{TRAIN} --scheme rounds --form best")
    with pytest.warns(Unsound):
        result = run(f"{line} --unsound --json")
    document = json.loads(result.stdout)
    assert document["sound"] is False
    assert {"promised", "really_spends", "holders"} <= set(document["groups"][0])
    with pytest.warns(Unsound):
        given = run(f"{TRAIN} --scheme rounds --form published --unsound --threshold 0.6,0.8 --json")
    assert json.loads(given.stdout)["rounds"] == 2
