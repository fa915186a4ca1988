"""A ledger whose folder was moved away."""

import shutil

import pytest
import torch

import sartor
from sartor import federated
from sartor.errors import SartorError
from sartor.federated import Ledger

BUDGETS = sartor.Budgets((1.0, 3.0) * 10, delta=1e-3)


def test_a_server_whose_folder_was_moved_away_charges_nothing_in_its_copy(tmp_path):
    path = tmp_path / "run"
    plan = federated.plan(BUDGETS, rounds=6, per_round=4, accountant="rdp")
    with Ledger.create(path, plan, [f"client {i}" for i in range(20)], BUDGETS, state={"model": torch.zeros(2)}) as ledger:
        path.rename(tmp_path / "moved")
        shutil.copytree(tmp_path / "moved", path)
        with pytest.raises(SartorError, match="moved"):
            ledger.charge()
