"""The examples run as they are documented."""

import json
import os
import runpy
import sys
from pathlib import Path

import pytest

from sartor.cli import main
from sartor.data import read_schema, read_table

ROOT = Path(__file__).parents[2]
DATA = Path(os.environ.get("SARTOR_DATA", ROOT.parent / "shared/data"))


@pytest.mark.skipif(not (DATA / "adult/adult.data").exists(), reason="needs the data set Adult in ../shared/data or SARTOR_DATA")
def test_adult_as_a_table_with_consents_trains_with_one_command(tmp_path, capsys):
    runpy.run_path(str(ROOT / "examples/adult/make_table.py"))["main"](str(DATA / "adult"), str(tmp_path))
    example = ROOT / "examples/adult"
    asked = ["train", "--table", tmp_path / "people.csv", "--test", tmp_path / "public.csv", "--schema", example / "schema.toml"]
    with pytest.raises(SystemExit) as stop:
        main([str(word) for word in [*asked, "--policy", example / "policy.toml", "--out", tmp_path / "run", "--json"]])
    out, err = capsys.readouterr()
    assert stop.value.code == 0, err
    assert "PrivateScaling" not in err
    document = json.loads(out)
    assert document["accuracy"] > 0.8
    assert [group["epsilon"] for group in document["groups"]] == [1, 2, 4]
    assert sum(group["holders"] for group in document["groups"]) == 32_561
    assert all(group["spent"] <= group["epsilon"] for group in document["groups"])


@pytest.mark.skipif(
    not (DATA / "diabetes130/diabetic_data.csv.xz").exists(), reason="needs the data set diabetes130 in ../shared/data or SARTOR_DATA"
)
def test_encounters_of_patients_are_read_by_patient_and_nothing_is_learned_from_them():
    """The suite makes errors of warnings: one of `PrivateScaling` would say that the schema leaves something open."""
    data = read_table(DATA / "diabetes130/diabetic_data.csv.xz", **read_schema(ROOT / "examples/diabetes/schema.toml"))
    assert (data.people, len(data.train), len(data.ownership)) == (71_518, 101_766, 101_766)
    assert (data.shape, data.classes, data.notes) == ((192,), 3, ())
    assert data.train.tensors[1].bincount().tolist() == [54_864, 35_545, 11_357]
    inputs = data.train.tensors[0]
    assert float(inputs.min()) == 0
    assert float(inputs.max()) == 1


def test_opacus_and_sartor_side_by_side(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["from_opacus.py"])
    runpy.run_path(str(ROOT / "examples/from_opacus.py"), run_name="__main__")
    out = capsys.readouterr().out
    accuracies = [float(line.rpartition(" ")[2]) for line in out.splitlines() if "accuracy" in line]
    assert len(accuracies) == 2
    assert accuracies[0] > 0.6  # unseeded: both vary by some points
    assert accuracies[1] > 0.7
