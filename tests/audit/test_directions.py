"""Directions: of length 1, at right angles where they can be, and with a share of every array."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.audit.directions import MOST, Directions
from sartor.errors import SartorError


@given(sizes=st.lists(st.integers(1, 3000), min_size=1, max_size=6), count=st.integers(1, 60), seed=st.integers(0, 5))
def test_directions_have_length_one_and_lie_in_every_array(sizes, count, seed):
    found = Directions(sizes, count, seed)
    assert found.coordinates <= min(sum(sizes), MOST)
    assert all(len(places) and len(set(places.tolist())) == len(places) for places in found.places)
    assert all(places.max() < size for places, size in zip(found.places, sizes, strict=True))
    for member in (0, count - 1):
        whole = found.full(member, 3.0)
        assert [len(part) for part in whole] == sizes
        assert sum(float(part @ part) for part in whole) == pytest.approx(9.0, rel=1e-5)
        assert found.dots(found.at(whole)).sum(1)[member] == pytest.approx(3.0, rel=1e-5)


def test_directions_are_at_right_angles_where_there_are_coordinates_enough():
    found = Directions([1000, 60], 1024, seed=1)
    everybody = np.stack([np.concatenate(found.summed(np.array([i]), np.ones(1))) for i in range(1024)])
    assert np.abs(everybody @ everybody.T - np.eye(1024)).max() < 1e-4


def test_more_directions_than_coordinates_are_independent_signs():
    found = Directions([20], 500, seed=1)
    dots = found.dots(found.summed(np.array([7]), np.ones(1)))[:, 0]
    assert dots[7] == pytest.approx(1.0, rel=1e-5)
    assert np.std(np.delete(dots, 7)) == pytest.approx(1 / np.sqrt(found.coordinates), rel=0.15)


def test_nothing_has_no_direction():
    with pytest.raises(SartorError, match="directions need"):
        Directions([], 3, seed=1)


def test_a_small_array_beside_a_large_one_has_all_of_its_coordinates_in_sight():
    assert Directions([1_000_000, 64, 3, 200], count=4, seed=1).blocks[[1, 2]].tolist() == [64, 3]
    assert Directions([1_000_000, 64, 3, 200], count=4, seed=1).blocks[3] >= 64
