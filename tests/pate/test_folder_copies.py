"""Copies of an ensemble's folder, and of files in it, spend nothing a second time as far as the folder can tell."""

import shutil

import pytest

from sartor.errors import SartorError
from sartor.pate import folder
from sartor.pate.folder import EnsembleFolder
from sartor_testing.kept_ensembles import saved


def test_a_cheaper_charge_of_a_copy_is_not_taken_for_the_one_before_later_charges(tmp_path):
    made, copy = saved(tmp_path / "kept"), tmp_path / "copy"
    shutil.copytree(tmp_path / "kept", copy)
    EnsembleFolder(copy).aggregate(labels=1)
    made.aggregate(labels=5)
    made.aggregate(labels=1)
    shutil.copy(copy / "charge-00000", tmp_path / "kept")
    with pytest.raises(SartorError, match="damaged"):
        EnsembleFolder(tmp_path / "kept")


def test_nothing_is_handed_out_where_the_folder_was_replaced_meanwhile(tmp_path, monkeypatch):
    path, right = tmp_path / "kept", folder.aggregate
    made = saved(path)

    def replaced(*given, **more):
        path.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", path)
        return right(*given, **more)

    monkeypatch.setattr(folder, "aggregate", replaced)
    with pytest.raises(SartorError, match="moved"):
        made.aggregate(labels=2)
    assert not list(tmp_path.glob("*/charge-*"))
