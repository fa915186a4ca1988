"""Arguments that people mix up: one sentence that says what was meant to be there."""

import numpy as np
import pytest
import torch

import sartor

BUDGETS = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
PLAN = sartor.plan(BUDGETS, steps=5, batch=20, accountant="rdp")
X, Y = torch.zeros(60, 2), torch.zeros(60, dtype=torch.long)


@pytest.mark.parametrize("wrong", [{"batch": "64"}, {"steps": None}, {"clip": [1.0]}, {"steps": True}])
def test_a_plan_of_what_is_no_number_is_refused_in_one_sentence(wrong):
    with pytest.raises(sartor.SartorError, match="must be a number"):
        sartor.plan(BUDGETS, **{"steps": 5, "batch": 20, **wrong})
    assert sartor.plan(BUDGETS, steps=np.int64(5), batch=np.float32(20), accountant="rdp") == PLAN


@pytest.mark.parametrize(
    ("data", "last", "words"),
    [
        (torch.utils.data.TensorDataset(X, Y), (PLAN, BUDGETS), "in this order"),
        ((X, Y), (BUDGETS, PLAN), "TensorDataset"),
    ],
)
def test_arguments_in_another_order_or_shape_are_named(data, last, words):
    model = torch.nn.Linear(2, 2)
    with pytest.raises(sartor.SartorError, match=words):
        sartor.make_private(model, torch.optim.SGD(model.parameters(), lr=0.1), data, *last)
