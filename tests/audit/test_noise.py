"""Noise: numbers of one's own are never taken for anything else, and what comes again is seen wherever it does."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.audit.noise import ARRAYS, DEVIATION, FINITE, STEPS, WITHIN, faults_of_noise
from sartor_testing.amount import examples


def normal(releases=12, places=60, seed=0):
    return np.random.default_rng(seed).standard_normal((releases, places))


@settings(max_examples=examples(100, 2_000), deadline=None)
@given(releases=st.integers(1, 40), sizes=st.lists(st.integers(1, 60), min_size=1, max_size=6), seed=st.integers(0, 10**9))
def test_noise_as_it_should_be_is_no_fault(releases, sizes, seed):
    assert faults_of_noise(normal(releases, sum(sizes), seed), sizes) == []


def in_place(places, values):
    def change(given_):
        given_[places] = values(given_)
        return given_

    return change


BROKEN = {
    "two per cent too low in many": (lambda v: normal(12, 20_000) * 0.98, DEVIATION),
    "a third in one array": (in_place(np.s_[:, 20:40], lambda v: v[:, 20:40] / 3), DEVIATION),
    "none in one place": (in_place(np.s_[:, -1], lambda v: 0.0), DEVIATION),
    "not a number": (in_place(np.s_[0, 0], lambda v: np.nan), FINITE),
    "of the step before": (in_place(np.s_[7], lambda v: v[6]), STEPS),
    "with the other sign": (in_place(np.s_[7], lambda v: -v[2]), STEPS),
    "every third step again": (lambda v: np.concatenate([v[:3]] * 4), STEPS),
    "one step's noise in all": (lambda v: np.repeat(v[:1], 12, axis=0), STEPS),
    "of another array": (in_place(np.s_[:, 20:40], lambda v: v[:, :20]), ARRAYS),
    "antithetic": (in_place(np.s_[:, 30:], lambda v: -v[:, :30]), WITHIN),
}


@pytest.mark.parametrize("name", BROKEN)
def test_what_is_not_as_it_should_be_is_named(name):
    change, fault = BROKEN[name]
    values = change(normal())
    assert faults_of_noise(values, [20, 20, 20] if values.shape[1] == 60 else [values.shape[1]]) == [fault]


AGAIN = {"same": lambda half: half, "minus": lambda half: -half, "turned": lambda half: half[:, ::-1], "both": lambda half: -half[:, ::-1]}


@pytest.mark.parametrize("again", AGAIN.values(), ids=AGAIN)
def test_noise_that_comes_again_within_one_array_is_named(again):
    half = normal(4, 60)
    assert faults_of_noise(np.concatenate([half, again(half)], axis=1), [120]) == [WITHIN]


@pytest.mark.parametrize("width", [1, 2, 5])
def test_few_numbers_that_come_again_are_named_too(width):
    values = normal(20, width)
    values[1::2] = values[::2]
    assert faults_of_noise(values, [width]) == [STEPS]


def test_small_arrays_that_share_their_noise_are_named():
    values = normal(6, 9)
    values[:, 6:] = values[:, 3:6]
    assert faults_of_noise(values, [3, 3, 3]) == [ARRAYS]


def test_noise_that_is_too_low_is_named_as_such_though_steps_share_it():
    values = normal(12, 600)
    values[::2] = values[1::2]
    assert faults_of_noise(values, [600]) == [STEPS]
    assert faults_of_noise(values / 3, [600]) == [DEVIATION, STEPS]


@pytest.mark.parametrize("kind", ["uniform", "laplace", "signs"])
def test_noise_of_the_right_deviation_and_another_shape_is_named(kind):
    generator, shape = np.random.default_rng(3), (50, 1_000)
    made = {
        "uniform": generator.uniform(-np.sqrt(3), np.sqrt(3), shape),
        "laplace": generator.laplace(0, 1 / np.sqrt(2), shape),
        "signs": generator.choice([-1.0, 1.0], shape),
    }
    assert faults_of_noise(made[kind], [1_000])
