"""Lower bounds on epsilon: never above the truth more often than stated, and close to it where that is possible."""

import functools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from sartor import SartorError
from sartor.accounting.gaussian import delta_of
from sartor.audit.bounds import bound_at, gaussian_bound, highest_rate, one_run_bound_of, threshold_bound
from sartor.audit.scores import Scores
from sartor_testing import amount, membership
from sartor_testing.membership import KNOWN, gaussian, laplace, randomised_response, share_is_plausible, told_outright

SIZE, CONFIDENCE, EPSILON = 1_000, 0.99, 4.0

FIXED = {randomised_response: [0.5], laplace: [-1.0, 0.0, 4.0, 5.0], gaussian: [-1.0, 1.0, 2.0], told_outright: [0.5]}


@functools.cache
def repeated(mechanism, epsilon, size, repetitions):
    return [mechanism(epsilon, size, np.random.default_rng([17, number])) for number in range(repetitions)]


def threshold_bounds(drawn, delta, confidence):
    return np.array([threshold_bound(scores, delta, confidence, seed=number) for number, scores in enumerate(drawn)])


# that the statements hold


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("mechanism", KNOWN)
def test_a_bound_at_fixed_thresholds_exceeds_the_truth_as_often_as_stated_at_most(mechanism, confidence):
    for epsilon in (1.0, EPSILON):
        drawn = repeated(mechanism, epsilon, SIZE, 200)
        found = np.array([bound_at(scores, FIXED[mechanism], KNOWN[mechanism], confidence) for scores in drawn])
        assert share_is_plausible((found > epsilon).sum(), 200, 1 - confidence)
        assert found.max() > 0.1 * epsilon or mechanism is gaussian  # the test can fail


@pytest.mark.parametrize("size", [30, pytest.param(SIZE, marks=pytest.mark.long)])
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("mechanism", KNOWN)
def test_a_bound_at_ranks_exceeds_the_truth_as_often_as_stated_at_most(mechanism, confidence, size):
    repetitions = amount.examples(50, 200)
    for epsilon in (0.5, EPSILON):
        found = threshold_bounds(repeated(mechanism, epsilon, size, repetitions), KNOWN[mechanism], confidence)
        assert share_is_plausible((found > epsilon).sum(), repetitions, 1 - confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.9])
def test_scores_that_know_nothing_refute_nothing_as_often_as_stated_at_least(confidence):
    alike = [Scores(np.zeros(50), np.zeros(70)), Scores(np.arange(50) % 3, np.arange(70) % 3)]
    for scores in alike:  # only the random order of ties is left
        found = np.array([threshold_bound(scores, 0.0, confidence, seed=seed) for seed in range(60)])
        assert share_is_plausible((found > 0).sum(), 60, 1 - confidence)


@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
@pytest.mark.parametrize("deviation", [1.0, None])
def test_a_bound_from_normal_scores_exceeds_the_truth_as_often_as_stated_at_most(confidence, deviation):
    repetitions = amount.examples(80, 200)
    for size in (5, SIZE):
        drawn = repeated(gaussian, EPSILON, size, repetitions)
        found = np.array([gaussian_bound(scores, 1e-5, confidence, deviation=deviation) for scores in drawn])
        assert share_is_plausible((found > EPSILON).sum(), repetitions, 1 - confidence)
        if deviation is not None:  # exact: nor much less often
            assert stats.binomtest(int((found > EPSILON).sum()), repetitions, 1 - confidence, alternative="less").pvalue > 1e-3


def test_whoever_is_told_outright_in_a_share_delta_of_cases_is_no_refutation_in_or_out():
    random = np.random.default_rng(5)
    told, rest = np.full(50, 100.0), random.normal(size=(2, 1_000))
    for scores in (Scores([*told, *rest[0][50:]], rest[1]), Scores(rest[0], [*-told, *rest[1][50:]])):
        assert threshold_bound(scores, 0.0, 0.9, seed=1) > 0.5
        assert threshold_bound(scores, 0.1, 0.9, seed=1) == 0


# how much they show


@pytest.mark.parametrize(("mechanism", "share"), [(randomised_response, 0.75), (gaussian, 0.2), (laplace, 0.7)])
def test_a_thousand_scores_on_each_side_show_their_share_of_epsilon(mechanism, share):
    repetitions = amount.examples(30, 200)
    found = threshold_bounds(repeated(mechanism, EPSILON, SIZE, repetitions), KNOWN[mechanism], CONFIDENCE)
    assert (found >= share * EPSILON).mean() >= 0.85


@pytest.mark.parametrize(("deviation", "share"), [(1.0, 0.8), (None, 0.7)])
def test_normal_scores_of_known_deviation_show_more(deviation, share):
    found = [
        gaussian_bound(scores, 1e-5, CONFIDENCE, deviation=deviation)
        for scores in repeated(gaussian, EPSILON, SIZE, amount.examples(80, 200))
    ]
    assert (np.array(found) >= share * EPSILON).mean() >= 0.85


def test_everybody_found_and_nobody_else_is_a_large_epsilon():
    apart = Scores(np.ones(SIZE), np.zeros(SIZE))
    assert threshold_bound(apart, 1e-5, 0.99) > 4.5
    assert bound_at(apart, [0.5], 1e-5, 0.99) > 5


@pytest.mark.parametrize("one_sided", [True, False])
@pytest.mark.parametrize("mechanism", [randomised_response, told_outright, laplace, gaussian])
def test_beside_the_formulas_of_jax_privacy_bounds_are_higher_and_no_oftener_wrong(mechanism, one_sided):
    bits = mechanism in (randomised_response, told_outright)  # as far apart as they can be for theirs: the margin is small
    repetitions, delta = 200 if bits else amount.examples(20, 200), KNOWN[mechanism]
    drawn = repeated(mechanism, EPSILON, SIZE, repetitions)
    if bits and not one_sided:  # whose threshold is known beforehand
        ours = np.array([bound_at(scores, [0.5], delta, CONFIDENCE) for scores in drawn])
    else:
        ours = threshold_bounds(drawn, delta, CONFIDENCE)
    risk, generators = 1 - CONFIDENCE, map(np.random.default_rng, range(repetitions))
    theirs = np.array([membership.auditor_bonferroni(scores, delta, risk, one_sided) for scores in drawn])
    halves = [membership.auditor_split(scores, delta, risk, *own, one_sided) for scores, *own in zip(drawn, generators, strict=True)]
    for other in (theirs, np.array(halves)):
        assert ours.mean() >= other.mean()
        assert (ours > EPSILON).sum() <= max((other > EPSILON).sum(), (1 - CONFIDENCE) * repetitions)


def test_at_one_given_threshold_the_bound_is_theirs_from_both_inequalities():
    scores = laplace(2.0, 300, np.random.default_rng(0))
    fnr, fpr, _ = membership._auditor_limits(None, scores, np.array([1.3]), lambda _: 0.05)
    assert bound_at(scores, [1.3], 0.01, 0.95) == pytest.approx(membership._logs(fnr, fpr, 0.01, False)[0], rel=1e-12)


# exact small cases


@pytest.mark.parametrize(("found", "among"), [(0, 1), (0, 10), (3, 10), (9, 10), (10, 10), (7, 1000)])
def test_the_limit_of_clopper_and_pearson_leaves_exactly_its_risk(found, among):
    for risk in (0.4, 0.01, 1e-9):
        rate = float(highest_rate(found, among, risk))
        if found == among:
            assert rate == 1
        else:
            assert stats.binom.cdf(found, among, rate) == pytest.approx(risk, rel=1e-9)


def test_limits_known_in_closed_form():
    assert float(highest_rate(0, 10, 0.05)) == pytest.approx(1 - 0.05**0.1)
    assert float(highest_rate(9, 10, 0.05)) == pytest.approx(0.95**0.1)


def test_a_bound_by_hand():
    scores = Scores([0.0, *[1.0] * 9], [0.0] * 10)
    fnr, fpr = (stats.beta.isf(0.025, found + 1, 10 - found) for found in (1, 0))
    assert bound_at(scores, [0.5], 0.0, 0.95) == pytest.approx(max(np.log((1 - fnr) / fpr), np.log((1 - fpr) / fnr)))
    assert bound_at(scores, [0.5, 7.0], 0.0, 0.9) == pytest.approx(bound_at(scores, [0.5], 0.0, 0.95))  # two thresholds share the risk
    assert bound_at(scores, [], 0.0, 0.95) == 0


def test_one_score_on_each_side_shows_nothing():
    """It is the higher one with probability 1/2 at epsilon 0, which is no less than the risk of one of two thresholds."""
    assert threshold_bound(Scores([1.0], [0.0]), 0.0, 0.01) == 0
    assert threshold_bound(Scores([1.0, 1.0], [0.0, 0.0]), 0.0, 0.3) > 0  # of two and two, with probability 1/6


@pytest.mark.parametrize(("above", "rank", "delta"), [(20, 1, 0.0), (15, 2, 0.0), (15, 1, 0.05)])
def test_the_probability_behind_a_rank_is_the_integral(above, rank, delta):
    """The sum over intervals is above the integral, and close to it."""
    from scipy import integrate

    from sartor.audit.bounds import _refuted

    others = np.arange(20) * 10
    found = np.concatenate([np.full(above, others[-rank] + 1), np.full(20 - above, -1)])
    risk = 0.01
    epsilon = _refuted(found, others, rank, delta, risk)

    def tail(rate):
        return stats.binom.sf(above - 1, 20, min(1.0, np.exp(epsilon) * rate + delta)) * stats.beta.pdf(rate, rank, 21 - rank)

    exact = integrate.quad(tail, 0, 1, points=[min(1.0, (1 - delta) * np.exp(-epsilon))], limit=200)[0]
    assert epsilon > 0.3
    assert 0.75 * risk <= exact <= risk


# laws


sides = st.lists(st.floats(-8, 8).map(lambda x: round(x, 2)), min_size=1, max_size=40)
bounds = [
    lambda scores, delta, confidence: threshold_bound(scores, delta, confidence, seed=0),
    lambda scores, delta, confidence: bound_at(scores, [-1.0, 0.5, 2.0], delta, confidence),
    lambda scores, delta, confidence: gaussian_bound(scores, delta, confidence, deviation=1.5),
    lambda scores, delta, confidence: gaussian_bound(scores, delta, confidence, deviation=None),
]


@settings(max_examples=amount.examples(25, 200))
@given(sides, sides, st.floats(1e-6, 0.5), st.floats(1e-6, 0.5), st.floats(0.05, 0.999), st.floats(0.05, 0.999), st.floats(0, 6))
def test_more_delta_and_more_confidence_never_raise_a_bound(inside, outside, delta, other, confidence, another, shift):
    scores = Scores(np.array(inside) + shift, outside)
    for bound in bounds:
        found = bound(scores, min(delta, other), min(confidence, another))
        assert 0 <= found < np.inf
        assert bound(scores, max(delta, other), min(confidence, another)) <= found + 1e-9
        assert bound(scores, min(delta, other), max(confidence, another)) <= found + 1e-2  # intervals of quantiles move with the risk


@settings(max_examples=amount.examples(25, 200))
@given(sides, sides, st.randoms(use_true_random=False), st.floats(0.25, 4), st.integers(-64, 64))
def test_order_unit_and_origin_of_scores_do_not_matter(inside, outside, random, scale, shift):
    scores = Scores(inside, outside)
    moved = Scores(np.array(inside) * scale + shift, np.array(outside) * scale + shift)
    shuffled = Scores(random.sample(inside, len(inside)), random.sample(outside, len(outside)))
    at = np.array([-1.0, 0.505, 2.005])
    assert bound_at(shuffled, at, 1e-3, 0.9) == bound_at(scores, at, 1e-3, 0.9)
    assert gaussian_bound(shuffled, 1e-3, 0.9, deviation=2.0) == pytest.approx(gaussian_bound(scores, 1e-3, 0.9, deviation=2.0), abs=1e-9)
    assert threshold_bound(moved, 1e-3, 0.9, seed=0) == threshold_bound(scores, 1e-3, 0.9, seed=0)
    for deviation in (2.0, None):
        known = gaussian_bound(moved, 1e-3, 0.9, deviation=deviation and deviation * scale)
        assert known == pytest.approx(gaussian_bound(scores, 1e-3, 0.9, deviation=deviation), abs=1e-6)
    if len({*inside, *outside}) == len(inside) + len(outside):  # the seed orders nothing but ties
        assert threshold_bound(shuffled, 1e-3, 0.9, seed=5) == threshold_bound(scores, 1e-3, 0.9, seed=0)


@pytest.mark.parametrize("mechanism", KNOWN)
def test_scores_that_anti_correlate_give_nothing(mechanism):
    scores = mechanism(EPSILON, SIZE, np.random.default_rng(1))
    for opposite in (Scores(scores.outside, scores.inside), Scores(-scores.inside, -scores.outside)):
        for bound in bounds:
            assert bound(opposite, 1e-5, 0.9) == 0


def test_what_cannot_be_known_is_not_stated():
    assert [bound(Scores([1.0], []), 1e-5, 0.9) for bound in bounds] == [0, 0, 0, 0]
    assert gaussian_bound(Scores([5.0, 5.0], [1.0, 1.0]), 1e-5, 0.9, deviation=None) == 0  # constants have no deviation
    assert gaussian_bound(Scores([5.0], [1.0, 2.0]), 1e-5, 0.9, deviation=None) == 0


def test_a_bound_of_normal_scores_is_the_epsilon_of_its_ratio():
    scores = Scores([3.0] * 8, [0.0] * 8)
    epsilon = gaussian_bound(scores, 1e-5, 0.95, deviation=2.0)
    ratio = 1.5 - stats.norm.isf(0.05) * 0.5
    assert float(delta_of(ratio, np.array(epsilon))) == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize(
    ("delta", "confidence"), [(-0.1, 0.9), (1.0, 0.9), (0.1, 0.0), (0.1, 1.0), (float("nan"), 0.9), (0.1, float("nan"))]
)
def test_statements_that_cannot_be_made_are_refused(delta, confidence):
    for bound in bounds:
        with pytest.raises(SartorError, match="lies between 0 and 1"):
            bound(Scores([1.0], [0.0]), delta, confidence)


def test_a_gaussian_needs_a_delta_and_a_deviation():
    with pytest.raises(SartorError, match="delta 0"):
        gaussian_bound(Scores([1.0], [0.0]), 0.0, 0.9, deviation=1.0)
    for deviation in (0.0, -1.0, float("inf"), float("nan")):
        with pytest.raises(SartorError, match="positive and finite"):
            gaussian_bound(Scores([1.0], [0.0]), 0.1, 0.9, deviation=deviation)


def test_an_unknown_deviation_costs_its_part_of_the_risk():
    """Few scores far apart: the deviation, which is often estimated too low, decides."""
    drawn = repeated(gaussian, 60.0, 5, 100)
    found = np.array([gaussian_bound(scores, 1e-5, 0.8, deviation=None) for scores in drawn])
    assert share_is_plausible((found > 60).sum(), 100, 0.2)
    scores = Scores([8.0, 9.0, 10.0, 13.0], [0.0, 1.0, 2.0])
    deviation = np.std(scores.inside, ddof=1)  # the larger one
    ratio = (9 / deviation - stats.t.isf(0.1, 5) * np.sqrt(1 / 4 + 1 / 3)) * np.sqrt(stats.chi2.ppf(0.1, 5) / 5)
    assert float(delta_of(ratio, np.array(gaussian_bound(scores, 1e-5, 0.8, deviation=None)))) == pytest.approx(1e-5, rel=1e-6)


def test_ties_are_broken_otherwise_each_time_or_for_other_scores():
    """One order of ties over and over would be for members or for others."""
    same = Scores(np.zeros(983), np.zeros(983))
    assert share_is_plausible(sum(threshold_bound(same, 0.0, 0.9) > 0 for _ in range(100)), 100, 0.1)
    assert len({threshold_bound(same, 0.0, 0.1) for _ in range(20)}) > 5
    others = [Scores(np.arange(983) == number, np.zeros(983)) for number in range(100)]  # as good as the same, but for the lots
    found = np.array([threshold_bound(scores, 0.0, 0.9, seed=0) for scores in others])
    assert share_is_plausible((found > 0).sum(), 100, 0.1)
    assert np.array_equal(found, [threshold_bound(scores, 0.0, 0.9, seed=0) for scores in others])


@pytest.mark.parametrize("bound", [threshold_bound, one_run_bound_of])
def test_a_seed_that_drew_the_scores_as_well_orders_no_ties_by_them(bound):
    told = np.exp(EPSILON) / (1 + np.exp(EPSILON))
    found = []
    for seed in range(20):
        drawn = np.random.default_rng(seed)
        scores = Scores(drawn.random(SIZE) < told, drawn.random(SIZE) >= told)
        found.append(bound(scores, 1e-5, CONFIDENCE, seed=seed))
    assert max(found) <= EPSILON
