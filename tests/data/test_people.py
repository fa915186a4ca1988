"""People and what they allow, in data that are given as arrays and keys."""

import numpy as np
import pytest

import sartor
from sartor.data.consent import refuse_budget_features
from sartor.data.holders import refuse_shared
from sartor.errors import SartorError


def test_a_test_row_of_a_trained_holder_in_another_spelling_is_refused():
    with pytest.raises(SartorError, match="1 of 2 test rows"):
        refuse_shared(["Ann Lee", "7"], ["ann  lee", "8"])


def test_a_delta_in_the_arrays_is_refused():
    delta = np.array([1e-5, 1e-6] * 10)
    with pytest.raises(SartorError, match="what people allow"):
        refuse_budget_features(np.stack([np.arange(20.0), delta], 1).astype(np.float32), sartor.Budgets([1.0] * 20, delta=delta))
