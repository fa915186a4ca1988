"""The cost of one vote: the lemma of the paper to the last digits, and the exact divergence of small ensembles below it."""

import mpmath
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import norm

from sartor.pate import bounds
from sartor_testing import pate_reference as reference

ORDERS = np.array([1.05, 1.5, 2.0, 3.0, 8.0, 20.0, 50.0])
noises = st.floats(0.5, 60.0)
sensitivities = st.floats(0.2, 4.0)


def votes_of(classes, teachers, seed):
    rng = np.random.default_rng(seed)
    return rng.multinomial(teachers, rng.dirichlet(np.full(classes, 0.4))).astype(float)


@settings(max_examples=40)
@given(noises, sensitivities, st.integers(2, 10), st.integers(5, 300), st.integers(0, 10**6))
def test_an_answer_costs_what_lemma_5_says_of_votes_and_noise_over_the_sensitivity(noise, sensitivity, classes, teachers, seed):
    counts = votes_of(classes, teachers, seed)
    log_q = float(bounds.log_q_of_answers(counts, noise))
    q = min(reference.probability_of_another_label(counts / sensitivity, noise / sensitivity), 1 - mpmath.mpf(1) / classes)
    assert log_q == pytest.approx(float(mpmath.log(q)), rel=1e-9)
    found = bounds.answer(ORDERS, noise, [sensitivity], log_q)[0]
    expected = [reference.tight_or_loose(order, noise / sensitivity, mpmath.exp(log_q)) for order in ORDERS]
    assert found == pytest.approx(expected, rel=1e-9)


@settings(max_examples=40)
@given(noises, sensitivities, st.floats(0, 300), st.floats(0, 300))
def test_a_test_costs_what_lemma_5_says_with_half_the_divergence(noise, sensitivity, largest, threshold):
    log_q = float(bounds.log_q_of_tests(largest, threshold, noise))
    distance = abs(mpmath.mpf(largest) - mpmath.mpf(threshold)) / mpmath.mpf(noise)
    assert log_q == pytest.approx(float(mpmath.log(mpmath.erfc(distance / mpmath.sqrt(2)) / 2)), rel=1e-9)
    found = bounds.comparison(ORDERS, noise, [sensitivity], log_q)[0]
    expected = [reference.tight_or_loose(order, noise / sensitivity, mpmath.exp(log_q), 0.5) for order in ORDERS]
    assert found == pytest.approx(expected, rel=1e-9)


def test_without_the_votes_the_cost_is_that_of_the_gaussians():
    found = bounds.answer(ORDERS, 5.0, [1.0, 3.0])
    assert found == pytest.approx(np.array([ORDERS * (d / 5.0) ** 2 for d in (1.0, 3.0)]), rel=1e-14)
    assert bounds.comparison(ORDERS, 5.0, [1.0, 3.0]) == pytest.approx(found / 2, rel=1e-14)


def test_two_nearly_unanimous_examples_of_the_paper_are_far_below_the_loose_bound():
    log_q = bounds.log_q_of_answers([250.0] + [0.0] * 9, 40.0)
    assert bounds.answer([20.0], 40.0, [1.0], log_q)[0, 0] < 0.01 * 20 / 1600


@settings(max_examples=60)
@given(noises, sensitivities)
def test_costs_rise_with_q_and_never_above_the_loose_bound(noise, sensitivity):
    log_q = -np.geomspace(1e-6, 3000.0, 3000)[::-1]
    found = bounds.answer(ORDERS, noise, sensitivity, log_q)
    loose = bounds.answer(ORDERS, noise, sensitivity)
    assert found.shape == (3000, len(ORDERS))
    assert np.all(found <= loose * (1 + 1e-12))
    assert np.all(found >= 0)
    assert np.all(np.diff(found, axis=0) >= -1e-9 * found[1:] - 1e-300)


@settings(max_examples=25)
@given(noises, st.lists(sensitivities, min_size=1, max_size=5), st.integers(0, 10**6))
def test_shapes_are_queries_then_groups_then_orders(noise, groups, seed):
    counts = np.array([votes_of(4, 40, seed + i) for i in range(3)])
    log_q = bounds.log_q_of_answers(counts, noise)
    found = bounds.answer(ORDERS, noise, groups, log_q)
    assert found.shape == (3, len(groups), len(ORDERS))
    for i in range(3):
        for g, sensitivity in enumerate(groups):
            assert found[i, g] == pytest.approx(bounds.answer(ORDERS, noise, sensitivity, log_q[i]), rel=1e-12)


def test_a_holder_whose_teachers_rest_pays_nothing():
    assert np.all(bounds.answer(ORDERS, 5.0, [0.0, 1.0], -20.0)[0] == 0)
    assert np.all(bounds.answer(ORDERS, 5.0, [0.0, 1.0])[0] == 0)


def small_ensembles():
    """Counts, noise and sensitivity at which Lemma 5 is really below the loose bound for some orders."""
    for counts in ([30.0, 2.0], [24.0, 0.0], [20.0, 3.0, 1.0], [25.0, 5.0, 5.0], [16.0, 0.0, 0.0], [12.0, 10.0, 0.0]):
        for noise in (2.0, 3.0, 5.0):
            for sensitivity in (0.5, 1.0, 2.0):
                yield counts, noise, sensitivity


def divergences_of_neighbours(counts, noise, sensitivity, order):
    """Rényi divergence of the labels from those of every neighbour, both ways."""
    own = reference.label_probabilities(counts, noise)
    there, back = [0.0], [0.0]
    for other in reference.moves(counts, sensitivity):
        theirs = reference.label_probabilities(other, noise)
        there.append(reference.renyi(own, theirs, order))
        back.append(reference.renyi(theirs, own, order))
    return max(there), max(back)


def test_the_label_differs_at_most_as_often_as_equation_18_says():
    for counts, noise, _ in small_ensembles():
        own = reference.label_probabilities(counts, noise)
        assert 1 - own[int(np.argmax(counts))] <= np.exp(bounds.log_q_of_answers(counts, noise)) * (1 + 1e-6)


def test_the_exact_divergence_of_the_labels_stays_below_lemma_5():
    tighter = 0
    for counts, noise, sensitivity in small_ensembles():
        log_q = bounds.log_q_of_answers(counts, noise)
        for order in (1.5, 2.0, 3.0, 6.0):
            bound = float(bounds.answer([order], noise, sensitivity, log_q)[0])
            tighter += bound < 0.999 * float(bounds.answer([order], noise, sensitivity)[0])
            there, _ = divergences_of_neighbours(counts, noise, sensitivity, order)
            assert there <= bound * (1 + 1e-6) + 1e-12, (counts, noise, sensitivity, order)
    assert tighter > 20


def test_the_way_back_is_bounded_by_the_neighbours_votes_and_not_by_ones_own():
    above = 0
    for counts, noise, sensitivity in small_ensembles():
        own = reference.label_probabilities(counts, noise)
        for other in reference.moves(counts, sensitivity):
            back = reference.renyi(reference.label_probabilities(other, noise), own, 2.0)
            theirs, mine = (float(bounds.answer([2.0], noise, sensitivity, bounds.log_q_of_answers(c, noise))[0]) for c in (other, counts))
            assert back <= theirs * (1 + 1e-6) + 1e-12
            above += back > 2 * mine + 1e-12
    assert above > 0


def test_the_exact_divergence_of_the_labels_stays_below_the_loose_bound_both_ways():
    for counts, noise, sensitivity in small_ensembles():
        for order in (1.5, 3.0, 6.0):
            bound = float(bounds.answer([order], noise, sensitivity)[0])
            assert max(divergences_of_neighbours(counts, noise, sensitivity, order)) <= bound * (1 + 1e-6) + 1e-12


def test_the_exact_divergence_of_the_test_stays_below_its_bound():
    for largest in np.linspace(0, 60, 13):
        for sensitivity in (0.5, 1.0, 3.0):
            noise, threshold = 6.0, 30.0
            log_q = bounds.log_q_of_tests(largest, threshold, noise)
            for order in (1.5, 2.0, 5.0):
                bound = float(bounds.comparison([order], noise, sensitivity, log_q)[0])
                own = norm.sf([threshold, -threshold], [largest, -largest], noise)
                for other in (largest - sensitivity, largest + sensitivity):
                    theirs = norm.sf([threshold, -threshold], [other, -other], noise)
                    assert reference.renyi(own, theirs, order) <= bound * (1 + 1e-9) + 1e-14


def test_the_exact_delta_of_a_label_stays_below_that_of_the_gaussian_that_is_charged():
    for counts, noise, sensitivity in small_ensembles():
        own = reference.label_probabilities(counts, noise)
        mu = np.sqrt(2) * sensitivity / noise
        for other in reference.moves(counts, sensitivity):
            theirs = reference.label_probabilities(other, noise)
            for epsilon in (0.0, 0.1, 0.5, 1.0):
                charged = float(reference.gaussian_delta(mu, epsilon))
                assert max(reference.hockey_stick(own, theirs, epsilon), reference.hockey_stick(theirs, own, epsilon)) <= charged + 1e-9


def test_with_one_class_the_label_is_certain_and_nothing_warns():
    assert np.all(np.isneginf(bounds.log_q_of_answers(np.full((3, 1), 7.0), 2.0)))


def test_ties_and_counts_of_zero_have_a_probability_below_one():
    for counts in ([0.0, 0.0, 0.0], [5.0, 5.0], [3.0, 3.0, 3.0]):
        log_q = float(bounds.log_q_of_answers(counts, 2.0))
        assert log_q <= np.log1p(-1 / len(counts)) + 1e-12
        assert np.all(np.isfinite(bounds.answer(ORDERS, 2.0, [1.0], log_q)))
