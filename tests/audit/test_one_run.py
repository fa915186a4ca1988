"""Bounds from one run with many canaries: never above the truth more often than stated, and the formulas by other means."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sartor import SartorError
from sartor.accounting.gaussian import epsilon_of, mu_for
from sartor.audit.bounds import correct_guesses, f_dp_bound, f_dp_bound_of, one_run_bound, one_run_bound_of
from sartor.audit.scores import Scores
from sartor_testing import amount
from sartor_testing.membership import KNOWN, by_coins, gaussian, randomised_response, share_is_plausible, told_outright

CANARIES = 400


def chance(correct, guesses, canaries, delta, epsilon):
    """The theorem term by term."""
    right = np.exp(epsilon) / (1 + np.exp(epsilon))
    at_least = [stats.binom.sf(count - 1, guesses, right) for count in range(correct + 1)]
    near = max([(at_least[correct - i] - at_least[correct]) / i for i in range(1, correct + 1)], default=0.0)
    return at_least[correct] + 2 * canaries * delta * near


@pytest.mark.parametrize("case", [(45, 50, 300, 1e-5), (20, 20, 20, 0.0), (150, 200, 400, 1e-3), (7, 8, 1000, 1e-4)])
def test_the_bound_is_where_the_theorem_stops_refuting(case):
    correct, guesses, canaries, delta = case
    for confidence in (0.8, 0.99):
        found = one_run_bound(correct, guesses, canaries, delta, confidence)
        if found == 0:
            assert chance(correct, guesses, canaries, delta, 0.0) > 1 - confidence
        else:
            assert chance(correct, guesses, canaries, delta, found) <= (1 - confidence) * (1 + 1e-6)
            assert chance(correct, guesses, canaries, delta, found + 1e-6) > (1 - confidence) * (1 - 1e-6)


def test_without_delta_it_is_the_limit_of_clopper_and_pearson():
    rate = stats.beta.ppf(0.05, 90, 11)
    assert one_run_bound(90, 100, 5_000, 0.0, 0.95) == pytest.approx(np.log(rate / (1 - rate)), abs=1e-7)


def walked(correct, guesses, canaries, risk, mu):
    """The probabilities, from the top down, as the inequality asks for them: whether they stay within 1."""
    probability = {correct: risk}
    for count in range(correct - 1, -1, -1):
        right = sum(i * p for i, p in probability.items()) / canaries
        wrong = sum((guesses - i) * p for i, p in probability.items()) / canaries
        if right > 1:
            return True
        least = stats.norm.cdf(stats.norm.ppf(right) - mu)
        probability[count] = max(0.0, least - wrong) * canaries / (guesses - count)
    return sum(probability.values()) > 1


@pytest.mark.parametrize("case", [(45, 50, 300), (30, 30, 30), (75, 100, 200), (10, 20, 20)])
def test_a_trade_off_curve_is_refuted_where_probabilities_do_not_fit(case):
    for confidence in (0.8, 0.99):
        epsilon = f_dp_bound(*case, 1e-5, confidence)
        mu = mu_for(epsilon, 1e-5)
        assert epsilon == 0 or walked(*case, 1 - confidence, mu - 1e-5)
        assert not walked(*case, 1 - confidence, mu + 1e-5)


def test_one_guess_about_one_canary_is_the_curve_itself():
    """A guess that is right with probability t is wrong with at least Phi(Phi^-1(t) - mu), and both sum to 1: t <= Phi(mu / 2)."""
    mu = 2 * stats.norm.ppf(0.9)
    assert f_dp_bound(1, 1, 1, 1e-5, 0.1 + 1e-9) == pytest.approx(float(epsilon_of(mu, np.array(1e-5))), abs=1e-6)


@pytest.mark.parametrize(
    ("bound", "mechanism"), [(one_run_bound_of, m) for m in (randomised_response, gaussian, told_outright)] + [(f_dp_bound_of, gaussian)]
)
@pytest.mark.parametrize("confidence", [0.5, 0.95])
def test_a_bound_exceeds_the_truth_as_often_as_stated_at_most(bound, mechanism, confidence):
    repetitions, found = amount.examples(25, 200), []
    for number in range(repetitions):
        scores = by_coins(mechanism, 1.0, CANARIES, np.random.default_rng([3, number]))
        found.append(bound(scores, KNOWN[mechanism], confidence, seed=number))
    assert share_is_plausible((np.array(found) > 1).sum(), repetitions, 1 - confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_at_one_number_of_guesses_randomised_response_exceeds_just_as_often(confidence):
    """All canaries guessed by their bits: the theorem without delta is then exact, up to whole numbers."""
    generator, epsilon = np.random.default_rng(4), 1.0
    correct = generator.binomial(300, 1 / (1 + np.exp(-epsilon)), size=200)
    bound = {count: one_run_bound(count, 300, 300, 0.0, confidence) for count in set(correct.tolist())}
    found = np.array([bound[count] for count in correct.tolist()])
    assert share_is_plausible((found > epsilon).sum(), 200, 1 - confidence)
    assert stats.binomtest(int((found > epsilon).sum()), 200, (1 - confidence) * 0.7, alternative="less").pvalue > 1e-3


def test_a_gaussian_shows_more_by_its_curve_than_by_epsilon_and_delta():
    found = []
    for number in range(3):
        scores = by_coins(gaussian, 4.0, 1_000, np.random.default_rng(number))
        found.append((f_dp_bound_of(scores, 1e-5, 0.95), one_run_bound_of(scores, 1e-5, 0.95)))
    by_curve, by_delta = np.mean(found, axis=0)
    assert by_curve > 1.2 * by_delta > 0


@pytest.mark.parametrize("bound", [one_run_bound, f_dp_bound])
@settings(max_examples=amount.examples(25, 200))
@given(st.data())
def test_more_delta_confidence_and_canaries_never_raise_a_bound_and_more_right_guesses_never_lower_it(bound, data):
    guesses = data.draw(st.integers(1, 60))
    correct, canaries = data.draw(st.integers(0, guesses)), data.draw(st.integers(guesses, 500))
    delta, confidence = data.draw(st.floats(1e-7, 1e-3)), data.draw(st.floats(0.55, 0.999))
    found = bound(correct, guesses, canaries, delta, confidence)
    assert 0 <= found < 50
    assert bound(correct, guesses, canaries, 2 * delta, confidence) <= found + 1e-7
    assert bound(correct, guesses, canaries, delta, (1 + confidence) / 2) <= found + 1e-7
    assert bound(correct, guesses, canaries + 50, delta, confidence) <= found + 1e-7
    if correct < guesses:
        assert bound(correct + 1, guesses, canaries, delta, confidence) >= found - 1e-7
    if correct <= guesses / 2:
        assert found == 0


def test_guesses_are_made_at_both_ends():
    scores = Scores([9.0, 8.0, 1.0], [7.0, 2.0, 0.0, -1.0])
    assert [correct_guesses(scores, guesses) for guesses in range(8)] == [0, 1, 2, 3, 4, 4, 4, 4]
    assert correct_guesses(Scores(scores.outside, scores.inside), 4) == 0
    assert correct_guesses(Scores([1.0, 2.0], []), 2) == 1


def test_ties_are_broken_without_a_look_at_who_was_in():
    alike = Scores(np.zeros(200), np.zeros(200))
    found = np.array([correct_guesses(alike, 100, seed=seed) for seed in range(40)])
    assert 47 < found.mean() < 53
    assert len(set(found)) > 5


def test_scores_that_anti_correlate_give_nothing():
    scores = by_coins(gaussian, 4.0, 500, np.random.default_rng(0))
    for bound in (one_run_bound_of, f_dp_bound_of):
        assert bound(scores, 1e-5, 0.9) > 0
        assert bound(Scores(scores.outside, scores.inside), 1e-5, 0.9) == 0
        assert bound(Scores(3 * scores.inside - 1, 3 * scores.outside - 1), 1e-5, 0.9) == bound(scores, 1e-5, 0.9)
        assert bound(Scores([], []), 1e-5, 0.9) == 0


def test_the_best_number_of_guesses_shares_the_risk():
    scores = Scores(np.ones(200), np.zeros(200))
    assert one_run_bound_of(scores, 0.0, 0.95) == pytest.approx(one_run_bound(267, 267, 400, 0.0, 1 - 0.05 / 4), abs=1e-7)


def test_counts_that_cannot_be_are_refused():
    for counts in ((3, 2, 5), (1, 6, 5), (-1, 2, 5)):
        for bound in (one_run_bound, f_dp_bound):
            with pytest.raises(SartorError, match="cannot be"):
                bound(*counts, 1e-5, 0.9)
    with pytest.raises(SartorError, match="delta 0"):
        f_dp_bound(1, 2, 5, 0.0, 0.9)
    with pytest.raises(SartorError, match="between 0 and 1"):
        one_run_bound(1, 2, 5, 0.0, 1.0)
    with pytest.raises(SartorError, match="cannot be"):
        correct_guesses(Scores([1.0], [0.0]), 3)


def test_ties_are_broken_otherwise_each_time():
    same = Scores(np.zeros(500), np.zeros(500))
    assert len({correct_guesses(same, 400) for _ in range(20)}) > 1
    assert correct_guesses(same, 400, seed=3) == correct_guesses(same, 400, seed=3)


@pytest.mark.parametrize("bound", [one_run_bound_of, f_dp_bound_of])
def test_ties_of_a_bound_are_broken_otherwise_each_time_unless_a_seed_is_given(bound):
    tied = Scores(np.repeat([1.0, 0.0], [150, 350]), np.zeros(500))
    assert len({bound(tied, 1e-5, 0.9) for _ in range(8)}) > 1
    assert bound(tied, 1e-5, 0.9, seed=0) == bound(tied, 1e-5, 0.9, seed=0)
