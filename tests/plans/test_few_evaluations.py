"""Plans for many budgets stay cheap: what solving will leave unspent is aimed for, so that every group is solved for once and not again."""

import numpy as np
import pytest

import sartor
from sartor.accounting import spending


@pytest.mark.parametrize("scheme", ["sample", "hybrid"])
def test_three_thousand_budgets_cost_a_few_hundred_evaluations(monkeypatch, scheme):
    """Aimed too low or too high, the mean rate misses the one asked for, and everything is solved two or three times."""
    evaluated, right = [], spending._evaluated
    monkeypatch.setattr(spending, "_evaluated", lambda table, *how: evaluated.append(len(table)) or right(table, *how))
    spending._memory.clear()
    budgets = sartor.Budgets(np.random.default_rng(0).uniform(1, 6, 3_000), delta=1e-5)
    sartor.plan(budgets, scheme, steps=2_000, batch=50, accountant="rdp")
    assert 100 < sum(evaluated) < 900
