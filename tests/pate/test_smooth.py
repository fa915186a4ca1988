"""Smooth sensitivity of PATE's data-dependent bound, against every histogram of small ensembles and numerical divergences."""

import itertools
import math
from functools import cache

import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sartor.accounting import rdp
from sartor.errors import Infeasible, SartorError
from sartor.pate import smooth

ENSEMBLES = [(2, 8), (3, 8), (4, 7), (3, 5), (3, 1), (2, 2)]
MECHANISMS = list(itertools.product([0.4, 0.7, 1.0, 1.5, 2.2, 4.0], [1.2, 2.0, 3.5, 6.0]))


def local_sensitivity(counts, noise, order, distance):
    """How much each query's bound can change by one vote, from any histogram within so many moved votes, by the table that is used."""
    votes = smooth._checked(counts)
    table = smooth._table(votes.shape[1], smooth._teachers(votes), noise, order)
    ranges = smooth._ranges(votes, noise)
    near = far = next(ranges)
    for _ in range(min(distance, smooth._teachers(votes)) + 1):
        near, far = far, next(ranges)
    return table.largest_change(near, far)


def lemma_five(votes, noise: float, order: float) -> float:
    """Equations 15 to 18 of individualized PATE as printed, with mu2 = noise sqrt(log 1/q) and mu1 = mu2 + 1."""
    return _lemma_five(tuple(sorted((int(v) for v in votes), reverse=True)), noise, order)


@cache
@mp.workdps(40)
def _lemma_five(ranked: tuple[int, ...], noise: float, order: float) -> float:
    s, a, loose = mp.mpf(noise), mp.mpf(order), order / noise**2
    q = sum(mp.erfc((ranked[0] - other) / (2 * s)) for other in ranked[1:]) / 2
    if q >= 1:
        return loose
    second = s * mp.sqrt(mp.log(1 / q))
    first = second + 1
    if second <= 1 or a > first:
        return loose
    loose_first, loose_second = first / s**2, second / s**2
    if q > mp.exp((second - 1) * loose_second) / (first / (first - 1) * second / (second - 1)) ** second:
        return loose
    likely = ((1 - q) / (1 - (q * mp.exp(loose_second)) ** ((second - 1) / second))) ** (a - 1)
    rare = (mp.exp(loose_first) / q ** (1 / (first - 1))) ** (a - 1)
    return min(loose, float(mp.log((1 - q) * likely + q * rare) / (a - 1)))


@cache
def all_histograms(classes: int, teachers: int) -> np.ndarray:
    return np.array([v for v in itertools.product(range(teachers + 1), repeat=classes) if sum(v) == teachers])


@cache
def distances(classes: int, teachers: int) -> np.ndarray:
    votes = all_histograms(classes, teachers)
    return np.abs(votes[:, None] - votes[None]).sum(axis=2) // 2


def exact(classes: int, teachers: int, noise: float, order: float, signed: bool = False) -> np.ndarray:
    """Local sensitivity of every histogram at every distance, (distance, histogram); signed counts increases only."""
    apart = distances(classes, teachers)
    bounds = np.array([lemma_five(v, noise, order) for v in all_histograms(classes, teachers).tolist()])
    change = bounds[None, :] - bounds[:, None]
    change = np.where(apart == 1, change if signed else np.abs(change), 0.0)
    here = change.max(axis=1)
    return np.array([np.where(apart <= d, here, 0.0).max(axis=1) for d in range(teachers + 1)])


def test_the_bound_is_lemma_five():
    for noise, order in MECHANISMS:
        votes = all_histograms(3, 8)
        ours = smooth._bound(smooth._log_q(np.sort(votes)[:, ::-1], smooth._log_tails(8, noise)), noise, order)
        assert ours == pytest.approx([lemma_five(v, noise, order) for v in votes], rel=1e-10)


@settings(deadline=None)
@given(st.floats(-1, 3).map(lambda x: 10**x), st.floats(-2, 2).map(lambda x: 1 + 10**x))
def test_the_bound_grows_with_q(noise, order):
    bounds = smooth._bound(-np.geomspace(1e4, 1e-3, 4000), noise, order)
    assert np.all(np.diff(bounds) >= -1e-9 * bounds[1:])
    assert bounds[-1] == order / noise**2


def test_a_lead_of_one_vote_has_the_loose_bound_at_every_noise():
    for noise in np.geomspace(1e-2, 1e5, 20_000):
        assert smooth._bound(smooth._log_tail(np.array([1.0]), noise), noise, 1.0 + 1e-9)[0] == pytest.approx(
            (1 + 1e-9) / noise**2, rel=1e-12
        )


@settings(deadline=None)
@given(st.floats(2, 30), st.lists(st.floats(0, 20), min_size=1, max_size=8), st.booleans(), st.floats(-0.3, 1.5).map(lambda x: 10**x))
def test_no_vote_raises_q_further_than_the_table_says(smallest, wider, steepest, noise):
    gaps = np.array([smallest, *(smallest + np.array(wider) if not steepest else np.full(len(wider), max(2 * smallest - 1.5, 2.0)))])
    moved = gaps - np.array([2, *[1] * len(wider)])
    before, after = (np.logaddexp.reduce(smooth._log_tail(g, noise)) for g in (gaps, moved))
    table = smooth._table(len(gaps) + 1, 30, noise, 2.0)
    assert table.log_raised[np.searchsorted(table.log_q, min(before, math.log(0.5)))] >= min(after, math.log(0.5)) - 1e-9


@pytest.mark.few(2)
@pytest.mark.parametrize(("classes", "teachers"), ENSEMBLES)
def test_local_sensitivity_is_never_below_the_exact_one_and_mostly_close(classes, teachers):
    ratios = [np.ones(1)]
    for noise, order in MECHANISMS:
        truth = exact(classes, teachers, noise, order)
        ours = np.array([local_sensitivity(all_histograms(classes, teachers), noise, order, d) for d in range(teachers + 1)])
        assert np.all(ours >= truth * (1 - 1e-9) - 1e-13)
        assert np.all(np.diff(ours, axis=0) >= 0)
        assert ours[0] == pytest.approx(truth[0], rel=2e-3, abs=1e-13)
        ratios.append((ours / np.maximum(truth, 1e-300))[truth > 1e-9])
    every = np.concatenate(ratios)
    assert np.max(every) < 2
    assert np.median(every) < 1.1


def test_local_sensitivity_of_the_mnist_ensemble_is_close_to_its_steepest_path():
    votes = np.array([[250, *[0] * 9], [240, 4, 2, 1, 1, 1, 1, 0, 0, 0], [200, 40, 10, *[0] * 7], [150, 100, *[0] * 8]])
    for distance, factor in [(0, 1.001), (40, 1.35), (80, 1.15)]:
        steepest = np.zeros(len(votes))
        for moved in range(distance + 1):
            bounds = [
                [lemma_five((v[0] - d, v[1] + d, *v[2:]), 40.0, 14.0) if v[0] - d >= v[1] + d else 14 / 40**2 for v in votes.tolist()]
                for d in (moved, moved + 1)
            ]
            steepest = np.maximum(steepest, np.subtract(bounds[1], bounds[0]))
        ours = local_sensitivity(votes, 40.0, 14.0, distance)
        assert np.all(ours >= steepest)
        assert np.all(ours[steepest > 0] <= factor * steepest[steepest > 0])


@pytest.mark.few(2)
@pytest.mark.parametrize(("classes", "teachers", "beta"), [(2, 8, 0.02), (3, 8, 0.3), (4, 6, 0.1), (3, 5, 1.5), (3, 1, 0.1)])
def test_smooth_sensitivity_is_smooth_and_never_below_the_exact_one(classes, teachers, beta):
    votes, neighbours = all_histograms(classes, teachers), distances(classes, teachers) == 1
    for noise, order in MECHANISMS[::3]:
        truth = np.max(np.exp(-beta * np.arange(teachers + 1))[:, None] * exact(classes, teachers, noise, order), axis=0)
        ours = np.array([smooth.smooth_sensitivity(v[None], noise, order, beta) for v in votes])
        assert np.all(ours >= truth * (1 - 1e-9) - 1e-13)
        assert np.all(ours <= 2 * truth + 1e-9)
        assert np.all(np.where(neighbours, ours[:, None], 0) <= np.exp(beta) * ours[None] * (1 + 1e-12))


@st.composite
def neighbouring_sequences(draw):
    classes, teachers, queries = draw(st.integers(2, 6)), draw(st.integers(1, 25)), draw(st.integers(1, 4))
    pairs = []
    for _ in range(queries):
        answers = draw(st.lists(st.sampled_from([0, 0, 0, *range(classes)]), min_size=teachers, max_size=teachers))
        other = [draw(st.integers(0, classes - 1)), *answers[1:]]
        pairs.append([np.bincount(a, minlength=classes) for a in (answers, other)])
    return np.array([p[0] for p in pairs]), np.array([p[1] for p in pairs])


positive = st.floats(-0.5, 1.5).map(lambda x: 10**x)


@settings(max_examples=100, deadline=None)
@given(neighbouring_sequences(), positive, positive.map(lambda x: 1 + x), st.floats(-3, 0.3).map(lambda x: 10**x))
def test_one_teacher_changes_bound_and_smooth_sensitivity_by_no_more_than_stated(sequences, noise, order, beta):
    first, second = (smooth.smooth_sensitivity(votes, noise, order, beta) for votes in sequences)
    assert first <= math.exp(beta) * second * (1 + 1e-12)
    assert second <= math.exp(beta) * first * (1 + 1e-12)
    sums = [sum(lemma_five(v, noise, order) for v in votes.tolist()) for votes in sequences]
    assert abs(sums[0] - sums[1]) <= min(first, second) * (1 + 1e-6) + 1e-12
    changed = [local_sensitivity(votes, noise, order, 2 + i) for i, votes in enumerate(sequences)]
    assert np.all(changed[0] <= changed[1] * (1 + 1e-12))


def test_queries_share_their_distance():
    votes, discount = all_histograms(3, 5), np.exp(-0.2 * np.arange(6))
    for noise, order in MECHANISMS[::3]:
        rises, changes = exact(3, 5, noise, order, signed=True), exact(3, 5, noise, order)
        for i, j in [(0, 5), (3, 17), (20, 20), (11, 2)]:
            ours = smooth.smooth_sensitivity(votes[[i, j]], noise, order, 0.2)
            assert ours >= np.max(discount * (rises[:, i] + rises[:, j])) * (1 - 1e-9) - 1e-13
            assert ours <= 2 * np.max(discount * (changes[:, i] + changes[:, j])) + 1e-9


def test_order_of_queries_and_names_of_classes_do_not_matter():
    votes = np.random.default_rng(3).multinomial(30, [0.6, 0.2, 0.1, 0.1], size=7)
    shuffled = votes[::-1][:, [2, 0, 3, 1]]
    assert smooth.smooth_sensitivity(shuffled, 5.0, 4.0, 0.1) == pytest.approx(smooth.smooth_sensitivity(votes, 5.0, 4.0, 0.1), rel=1e-12)
    assert smooth.smooth_sensitivity(votes[:0], 5.0, 4.0, 0.1) == 0


def divergence(order: float, centre: float, deviation: float, other: float) -> float:
    """Rényi divergence of N(0, deviation^2) from N(centre, other^2), by the trapezoidal rule."""
    x = np.linspace(-1500, 1500, 600_001)
    log_p, log_q = -0.5 * (x / deviation) ** 2 - np.log(deviation), -0.5 * ((x - centre) / other) ** 2 - np.log(other)
    terms = order * log_p + (1 - order) * log_q
    assert max(terms[0], terms[-1]) < terms.max() - 50
    return float((np.log(np.sum(np.exp(terms - terms.max()))) + terms.max() + np.log((x[1] - x[0]) / np.sqrt(2 * np.pi))) / (order - 1))


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("beta", "scale", "order"), [(0.05, 1.0, 9.9), (0.05, 5.0, 9.9), (0.02, 3.0, 14.0), (0.3, 2.0, 1.4), (0.2, 4.0, 2.9)]
)
def test_cost_is_the_largest_divergence_of_any_allowed_pair(beta, scale, order):
    largest = 0.0
    for y in np.linspace(-beta, beta, 9):
        deviations = scale, scale * math.exp(y)
        for centre in np.array([0.0, 0.5, 1.0]) * min(deviations) / scale:
            largest = max(largest, divergence(order, centre, *deviations))
    assert smooth.cost(beta, scale, [order])[0] == pytest.approx(largest, rel=1e-6)


def test_the_published_cost_is_too_small_near_its_last_order():
    beta, scale, order = 0.05, 1.0, 9.9
    published = order * math.exp(2 * beta) / scale**2 + (beta * order - 0.5 * math.log(1 - 2 * order * beta)) / (order - 1)
    true = divergence(order, math.exp(-beta), scale, scale * math.exp(-beta))
    assert true > 6 * published
    assert smooth.cost(beta, scale, [order])[0] == pytest.approx(true, rel=1e-6)


def test_cost_is_infinite_beyond_its_last_order_and_counts_the_margin():
    last = 1 / -math.expm1(-2 * 0.1)
    costs = smooth.cost(0.1, 10.0, [last - 0.01, last + 1e-9, 100.0])
    assert math.isfinite(costs[0])
    assert np.all(np.isinf(costs[1:]))
    assert smooth.cost(0.1, 10.0, [3.0], 4.0) == pytest.approx(smooth.cost(0.1, 10.0, [3.0]) + 3 / (2 * 4**2))


@pytest.mark.parametrize(
    ("epsilon", "delta", "distance", "margin_scale"), [(0.5, 1e-6, 40, math.inf), (2.0, 1e-5, 0, 20.0), (0.1, 1e-5, 90, math.inf)]
)
def test_calibration_meets_its_budget_and_wastes_little(epsilon, delta, distance, margin_scale):
    def spent(beta, scale):
        return float(rdp.to_epsilon(smooth.cost(beta, scale, rdp.ORDERS, margin_scale), rdp.ORDERS, delta))

    beta, scale, kept = smooth.calibrate(epsilon, delta, distance, margin_scale)
    assert kept == margin_scale
    assert 0.995 * epsilon <= spent(beta, scale) <= epsilon
    for other in beta * np.array([0.5, 0.8, 1.25, 2.0]):  # no other beta does with 2 % less noise
        if distance:
            assert spent(other, 0.98 * scale * math.exp((other - beta) * distance)) > epsilon


def test_an_impossible_release_is_refused():
    with pytest.raises(Infeasible, match="margin_scale"):
        smooth.calibrate(0.1, 1e-6, 40, margin_scale=1.0)


VOTES = np.array([[18, 1, 1], [15, 3, 2], [10, 9, 1], [20, 0, 0]])


@pytest.fixture(scope="module")
def releases():
    generator = np.random.default_rng(11)
    return [smooth.release(VOTES, 3.0, 3.0, 0.1, 0.2, generator, margin_scale=5.0, failure=0.2) for _ in range(600)]


def test_released_figures_have_the_stated_centre_and_spread(releases):
    truth = sum(lemma_five(v, 3.0, 3.0) for v in VOTES)
    standard = (np.array([one.figure for one in releases]) - truth) / (0.2 * smooth.smooth_sensitivity(VOTES, 3.0, 3.0, 0.1))
    assert abs(standard.mean()) < 4 / math.sqrt(600)
    assert abs(standard.std() - 1) < 4 / math.sqrt(1200)


def test_the_upper_limit_fails_no_more_often_than_stated(releases):
    truth = sum(lemma_five(v, 3.0, 3.0) for v in VOTES)
    assert 0.005 < np.mean([one.upper < truth for one in releases]) < 0.2
    assert all(one.upper <= one.ceiling for one in releases)
    published = np.log([one.margin for one in releases])  # the noise on the logarithm of the smooth sensitivity
    assert abs(published.std() / (0.1 * 5) - 1) < 4 / math.sqrt(1200)


def test_without_a_paid_margin_only_the_loose_bound_is_certain():
    found = smooth.release(VOTES, 3.0, 3.0, 0.1, 6.0, np.random.default_rng(1))
    assert found.margin == math.inf
    assert found.upper == found.ceiling == pytest.approx(4 * 3 / 9)


def test_a_bound_that_never_tightens_is_released_exactly():
    found = smooth.release(VOTES, 100.0, 3.0, 0.1, 6.0, np.random.default_rng(1))
    assert found.margin == 0
    assert found.figure == pytest.approx(4 * 3 / 100**2)


@pytest.mark.parametrize("votes", [[[3, 1], [2, 1]], [[2.5, 1.5]], [[5, -1]], [[4]], [4, 0], [[math.nan, 1]], [[0, 0]]])
def test_votes_of_other_ensembles_are_refused(votes):
    with pytest.raises(SartorError, match="Votes"):
        smooth.smooth_sensitivity(votes, 1.0, 2.0, 0.1)


@pytest.mark.parametrize(
    "change", [{"noise": 0.0}, {"order": 1.0}, {"beta": 0.0}, {"scale": 0.0}, {"failure": 1.0}, {"margin_scale": -1.0}]
)
def test_parameters_out_of_range_are_refused(change):
    given = {"noise": 2.0, "order": 2.0, "beta": 0.1, "scale": 1.0, "generator": np.random.default_rng(0)} | change
    with pytest.raises(SartorError):
        smooth.release(VOTES, **given)
