"""A folder of checkpoints is one run's, and one process's at a time."""

import os
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.utils.data import TensorDataset

import sartor

torch.manual_seed(0)
DATA = TensorDataset(torch.randn(40, 3), torch.randint(0, 2, (40,)))
BUDGETS = sartor.Budgets.from_groups([(2.0, 20), (8.0, 20)], delta=1e-2)
PLAN = sartor.plan(BUDGETS, steps=6, batch=10)


def fit(folder, *, every=None, resume=False, **options):
    kept = sartor.Checkpoints(folder, every=every, resume=resume)
    return sartor.fit(nn.Linear(3, 2), DATA, BUDGETS, PLAN, lr=0.1, progress=False, seed=1, checkpoints=kept, **options)


def test_a_second_run_in_the_folder_of_one_that_trains_is_refused(tmp_path):
    """However both came past the look at the folder: the first checkpoint is written before the first step."""
    refusals = []

    def meanwhile(progress):
        if progress.step == 2:
            for options in ({"resume": True}, {}):
                with pytest.raises(sartor.SartorError) as failure:
                    fit(tmp_path, **options)
                refusals.append(str(failure.value))

    assert fit(tmp_path, callbacks=[meanwhile]).steps == 6
    assert "is in use" in refusals[0]
    assert "holds a run already" in refusals[1]


def test_a_run_that_was_overtaken_writes_nothing_more(tmp_path):
    """As one that was suspended while another, elsewhere, removed the folder."""

    def away(progress):
        if progress.step == 2:
            os.rename(tmp_path / "run", tmp_path / "elsewhere")

    with pytest.raises(sartor.SartorError, match="was moved or closed"):
        fit(tmp_path / "run", every=1, callbacks=[away])
    assert not (tmp_path / "run").exists()


def test_two_processes_never_both_train_in_one_folder(tmp_path):
    code = f"""
import sys, sartor, sartor.sgd.training as training
sys.path.insert(0, {os.path.dirname(__file__)!r})
import test_one_run_one_folder as here
training.refuse_begun = lambda folder: None  # both are past the look at the folder
try:
    print("took", here.fit({str(tmp_path / "run")!r}).steps)
except sartor.SartorError as error:
    print("refused")
"""
    both = [subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    assert sorted(process.communicate()[0].split() for process in both) == [["refused"], ["took", "6"]]
