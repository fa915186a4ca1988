"""People and what they allow, in data that are given as arrays and keys."""

import numpy as np
import pytest

import sartor
from sartor.data.people import refuse_budget_features, refuse_copies, refuse_shared
from sartor.errors import SartorError


def test_a_test_row_of_a_trained_holder_in_another_spelling_is_refused():
    with pytest.raises(SartorError, match="1 of 2 test rows"):
        refuse_shared(["Ann Lee", "7"], ["ann  lee", "8"])


def test_a_delta_in_the_arrays_is_refused():
    delta = np.array([1e-5, 1e-6] * 10)
    with pytest.raises(SartorError, match="equals the holders' budgets"):
        refuse_budget_features(np.stack([np.arange(20.0), delta], 1).astype(np.float32), sartor.Budgets([1.0] * 20, delta=delta))


GROUPS = np.random.default_rng(0).integers(3, size=600)
ALLOWED = sartor.Budgets(np.array([1.0, 2.0, 3.0])[GROUPS], delta=1e-4)
RARE = np.where(np.arange(600) % 50, 0, 1)
WORDS = [["low"], ["mid", "medium"], ["high", "High", "much"]]


def says(column, budgets=ALLOWED):
    try:
        refuse_copies({"column": [str(value) for value in column]}, ["column"], {}, budgets)
    except sartor.SartorError:
        return True
    return False


@pytest.mark.parametrize(
    "column",
    [
        [WORDS[group][i % len(WORDS[group])] for i, group in enumerate(GROUPS)],
        ["n/a", *GROUPS[1:]],
        [GROUPS[i] if i % 150 else (GROUPS[i] + 1) % 3 for i in range(600)],
        [10 * group + i % 10 for i, group in enumerate(GROUPS)],
    ],
    ids=["several words for one level", "one row without", "four rows otherwise", "ten words each"],
)
def test_what_people_allow_in_other_words_is_no_feature(column):
    assert says(column)


def test_what_few_people_allow_in_other_words_is_no_feature():
    few = sartor.Budgets(np.where(RARE, 1.0, 3.0), delta=1e-4)
    assert says([["open", "free"][i % 2] if not rare else "strict" for i, rare in enumerate(RARE)], few)
    assert not says([["open", "free"][i % 2] for i in range(600)], few)


@pytest.mark.parametrize(
    "column",
    [
        range(600),
        np.random.default_rng(1).integers(18, 90, 600),
        np.random.default_rng(2).random(600),
        np.random.default_rng(3).integers(0, 300, 600),
        np.random.default_rng(4).integers(0, 2, 600),
        [GROUPS[i] if i % 20 else i % 3 for i in range(600)],
        ["same"] * 600,
    ],
    ids=["keys", "ages", "measurements", "many words", "two words", "goes with it", "one value"],
)
def test_columns_from_which_budgets_do_not_follow_are_features(column):
    assert not says(column)
