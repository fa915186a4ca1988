"""Scores, and what they say by themselves, against scikit-learn and by counting pairs."""

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn import metrics

from sartor import SartorError
from sartor.audit.scores import Scores, auc, best_accuracy, bootstrap, roc, tpr_at
from sartor_testing import amount

sides = st.lists(st.integers(-6, 6).map(float), min_size=1, max_size=30)
TOLD = Scores([3.0, 1.0, 1.0, 0.0], [2.0, 1.0, 0.0, 0.0, -1.0])


def labelled(scores):
    return np.repeat([1, 0], [scores.inside.size, scores.outside.size]), np.concatenate([scores.inside, scores.outside])


@settings(max_examples=amount.examples(60, 400))
@given(sides, sides)
def test_the_area_counts_pairs_and_ties_half(inside, outside):
    scores = Scores(inside, outside)
    pairs = [1.0 if a > b else 0.5 if a == b else 0.0 for a in inside for b in outside]
    assert auc(scores) == pytest.approx(np.mean(pairs), abs=1e-12)
    assert auc(scores) == pytest.approx(metrics.roc_auc_score(*labelled(scores)), abs=1e-12)
    assert auc(Scores(outside, inside)) == pytest.approx(1 - auc(scores), abs=1e-12)
    assert auc(Scores(-scores.inside, -scores.outside)) == pytest.approx(1 - auc(scores), abs=1e-12)


@settings(max_examples=amount.examples(60, 400))
@given(sides, sides, st.floats(0, 1))
def test_a_rate_at_a_false_positive_rate_is_the_best_that_a_threshold_reaches(inside, outside, fpr):
    scores = Scores(inside, outside)
    reached = [
        np.mean(scores.inside >= threshold) for threshold in [*inside, *outside, np.inf] if np.mean(scores.outside >= threshold) <= fpr
    ]
    assert tpr_at(scores, fpr) == pytest.approx(max(reached), abs=1e-15)
    assert tpr_at(scores, fpr) <= tpr_at(scores, min(1.0, 1.2 * fpr))
    assert tpr_at(scores, 1.0) == 1


def test_a_rate_that_is_just_reached_counts():
    """1 of 1,000 is 0.1 %, whatever floats make of it."""
    for size in (1_000, 3_000, 7_000):
        outside = np.arange(size, dtype=float)
        allowed = size // 1_000
        assert tpr_at(Scores([size - allowed - 0.5, -1.0], outside), 0.001) == 0.5  # above all but the one in a thousand
        assert tpr_at(Scores([size - allowed - 1.5, -1.0], outside), 0.001) == 0.0
        assert tpr_at(Scores([size - 0.5, *[-1.0] * 3], outside), 0.0) == 0.25


@settings(max_examples=amount.examples(40, 400))
@given(sides, sides, st.sampled_from([0.5, 2.0, 8.0]), st.integers(-9, 9), st.randoms(use_true_random=False))
def test_only_the_order_of_scores_matters(inside, outside, scale, shift, random):
    scores = Scores(inside, outside)
    moved = Scores(scale * scores.inside + shift, scale * scores.outside + shift)
    bent = Scores(np.sinh(scores.inside), np.sinh(scores.outside))
    shuffled = Scores(random.sample(inside, len(inside)), random.sample(outside, len(outside)))
    for other in (moved, bent, shuffled):
        assert roc(other).fpr.tolist() == roc(scores).fpr.tolist()
        assert roc(other).tpr.tolist() == roc(scores).tpr.tolist()
        assert (auc(other), best_accuracy(other), tpr_at(other, 0.1)) == (auc(scores), best_accuracy(scores), tpr_at(scores, 0.1))


def test_the_curve_is_that_of_scikit_learn():
    fpr, tpr, _ = metrics.roc_curve(*labelled(TOLD), drop_intermediate=False)
    curve = roc(TOLD)
    np.testing.assert_allclose(curve.fpr, fpr)
    np.testing.assert_allclose(curve.tpr, tpr)


def test_the_best_accuracy_is_for_equally_many_of_both():
    assert best_accuracy(TOLD) == pytest.approx((0.75 + 0.6) / 2)
    assert best_accuracy(Scores([0.0], [1.0, 1.0])) == 0.5  # nobody is said to be in
    assert best_accuracy(Scores([1.0] * 9, [0.0])) == 1


def test_an_interval_covers_the_area_as_often_as_stated():
    generator = np.random.default_rng(0)
    truth, held = 0.760, 0  # Phi(1 / sqrt(2))
    for seed in range(25):
        scores = Scores(generator.normal(1, 1, 80), generator.normal(0, 1, 80))
        low, high = bootstrap(auc, scores, 0.9, resamples=100, seed=seed)
        assert low < high
        held += low <= truth <= high
    assert held >= 18


def test_an_interval_follows_its_seed_and_confidence():
    scores = Scores(np.arange(20) + 3.0, np.arange(20))
    assert bootstrap(auc, scores, 0.9, seed=1, resamples=50) == bootstrap(auc, scores, 0.9, seed=1, resamples=50)
    assert bootstrap(auc, scores, 0.9, seed=1, resamples=50) != bootstrap(auc, scores, 0.9, seed=2, resamples=50)
    low, high = bootstrap(auc, scores, 0.5, seed=1, resamples=50)
    wide = bootstrap(auc, scores, 0.99, seed=1, resamples=50)
    assert wide[0] < low < high < wide[1]


def test_sides_are_drawn_apart():
    seen = []

    def note(scores):
        seen.append((scores.inside.size, scores.outside.size, set(scores.inside) <= {1.0, 2.0}, set(scores.outside) <= {5.0, 6.0, 7.0}))
        return 0.0

    bootstrap(note, Scores([1.0, 2.0], [5.0, 6.0, 7.0]), 0.9, resamples=20)
    assert set(seen) == {(2, 3, True, True)}


def test_scores_do_not_show_themselves_and_do_not_change():
    given_ = np.array([0.125, 7.5])
    scores = Scores(given_, [0.25])
    given_[0] = 99
    assert scores.inside.tolist() == [0.125, 7.5]
    assert repr(scores) == "Scores(2 inside, 1 outside)"
    assert pickle.loads(pickle.dumps(scores)).inside.tolist() == [0.125, 7.5]
    with pytest.raises(ValueError, match="read-only"):
        scores.inside[0] = 1
    with pytest.raises(AttributeError):
        scores.inside = given_


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_scores_that_are_no_numbers_are_refused(bad):
    with pytest.raises(SartorError, match="1 of 3 outside are not"):
        Scores([1.0], [0.0, bad, 1.0])
    with pytest.raises(SartorError, match="shape"):
        Scores([[1.0]], [0.0])


def test_rates_of_nobody_are_refused():
    for scores in (Scores([], [1.0]), Scores([1.0], [])):
        for statistic in (auc, best_accuracy, roc):
            with pytest.raises(SartorError, match="both sides"):
                statistic(scores)
    with pytest.raises(SartorError, match="false positive rate"):
        tpr_at(TOLD, -0.1)
    with pytest.raises(SartorError, match="resample"):
        bootstrap(auc, TOLD, 0.9, resamples=0)
    with pytest.raises(SartorError, match="confidence"):
        bootstrap(auc, TOLD, 1.0)
