"""Public rows that are private ones are told from those that strangers have as well."""

from collections import Counter

import numpy as np
import pytest

from sartor.overlap import shared


def drawn(count: int, kinds: int, seed: int) -> Counter[int]:
    """Rows of so many kinds, the first ones far more usual than the last."""
    return Counter((kinds * np.random.default_rng(seed).random(count) ** 3).astype(int).tolist())


@pytest.mark.parametrize("public", [30, 1_000, 20_000])
@pytest.mark.parametrize("kinds", [20, 1_000, 30_000, 10**6, 10**9, 10**15])
def test_strangers_are_never_taken_for_the_private_rows(kinds, public):
    for seed in range(0, 60, 2):
        assert shared(drawn(1_000, kinds, seed), drawn(public, kinds, seed + 1)) == 0


@pytest.mark.parametrize(
    ("private", "public", "common"), [(1_000, 950, 450), (1_000, 950, 25), (1_000, 100_000, 25), (20, 1_000, 12), (400, 20, 5)]
)
def test_unique_rows_in_common_are_refused_beyond_chance(private, public, common):
    rows = Counter(range(private))
    assert shared(rows, Counter(range(private - common, private - common + public))) == common
    assert shared(rows, Counter(range(private, private + public))) == 0


def test_a_few_repeated_rows_do_not_hide_many_others():
    private = Counter([0] * 40 + list(range(1, 961)))
    assert shared(private, Counter(range(500, 1_500))) == 461


def test_many_public_rows_that_repeat_do_not_hide_most_of_the_private_ones():
    private = Counter([0] * 80 + list(range(1, 921)))
    public = Counter(dict.fromkeys(range(10_000, 60_000), 2))
    assert shared(private, public) == 0
    assert shared(private, public + Counter(range(300, 900))) == 600


def test_rows_that_were_made_different_in_public_say_nothing_of_chance():
    """All kinds of rows once, as a public table may list them."""
    assert shared(drawn(1_000, 500, 1), Counter(range(500))) == 0
