"""Differences between groups: against SciPy, by going through all permutations, and as often by chance as stated."""

from itertools import combinations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sartor import SartorError
from sartor.audit.scores import permutation, welch
from sartor_testing import amount
from sartor_testing.membership import share_is_plausible

figures = st.lists(st.integers(-50, 50).map(float), min_size=3, max_size=12).filter(lambda values: len(set(values)) > 1)


@settings(max_examples=amount.examples(40, 400))
@given(figures, figures)
def test_the_test_is_that_of_welch(first, second):
    found, expected = welch(first, second), stats.ttest_ind(first, second, equal_var=False, alternative="greater")
    assert found.t == pytest.approx(expected.statistic, abs=1e-12)
    assert found.p == pytest.approx(expected.pvalue, rel=1e-9)
    assert found.mean == pytest.approx(np.mean(first) - np.mean(second))
    assert welch(second, first).p == pytest.approx(1 - found.p, abs=1e-9)
    assert welch(np.array(first) * 4 + 3, np.array(second) * 4 + 3).p == pytest.approx(found.p, rel=1e-6)


@pytest.mark.parametrize("second", [[1.0, 2.0, 2.5, 6.0], [3.0, 4.0, 5.5, 5.0], [7.0, 8.0, 9.5, 0.5]])
def test_permutations_come_to_the_share_over_all_of_them(second):
    first = [3.0, 4.5, 6.5, 2.2]
    pooled = np.array(first + second)
    t = stats.ttest_ind(first, second, equal_var=False).statistic
    all_of_them = []
    for chosen in combinations(range(8), 4):
        rest = [i for i in range(8) if i not in chosen]
        all_of_them.append(stats.ttest_ind(pooled[list(chosen)], pooled[rest], equal_var=False).statistic >= t - 1e-9)
    assert permutation(first, second, seed=1).p == pytest.approx(np.mean(all_of_them), abs=0.02)


@pytest.mark.parametrize("level", [0.01, 0.1, 0.5])
@pytest.mark.parametrize("sizes", [(5, 5), (10, 40)])
def test_equal_groups_differ_as_often_as_stated(level, sizes):
    generator = np.random.default_rng(0)
    drawn = [(generator.exponential(size=sizes[0]), generator.exponential(size=sizes[1])) for _ in range(200)]
    below = sum(permutation(first, second, permutations=199, seed=number).p <= level for number, (first, second) in enumerate(drawn))
    assert share_is_plausible(below, 200, level)
    normal = [(generator.normal(0, 1, sizes[0]), generator.normal(0, 3, sizes[1])) for _ in range(200)]
    assert share_is_plausible(sum(welch(first, second).p <= level for first, second in normal), 200, level * 1.2)


def test_a_difference_is_found_and_its_opposite_is_not():
    generator = np.random.default_rng(1)
    better, worse = generator.normal(0.6, 0.05, 20), generator.normal(0.5, 0.1, 20)
    for test in (welch, permutation):
        assert test(better, worse).p < 0.01
        assert test(worse, better).p > 0.95


def test_permutations_follow_their_seed_and_never_give_0():
    first, second = [10.0, 11.0, 12.0, 13.0, 14.0], [1.0, 2.0, 3.0, 4.0, 5.0]
    assert permutation(first, second, seed=3) == permutation(first, second, seed=3)
    assert permutation(first, second, permutations=9).p >= 0.1
    assert permutation([2.0, 2.0], [2.0, 2.0]).p == 1


def test_figures_without_spread_are_for_the_permutation_test():
    with pytest.raises(SartorError, match="take the permutation test"):
        welch([2.0, 2.0], [1.0, 1.0])
    assert permutation([2.0, 2.0], [1.0, 1.0]).p > 0.1


def test_what_is_no_pair_of_groups_is_refused():
    for first in ([1.0], [], [[1.0, 2.0]], [1.0, np.nan]):
        for test in (welch, permutation):
            with pytest.raises(SartorError, match="two or more finite figures"):
                test(first, [1.0, 2.0])
    with pytest.raises(SartorError, match="at least one permutation"):
        permutation([1.0, 2.0], [1.0, 2.0], permutations=0)
