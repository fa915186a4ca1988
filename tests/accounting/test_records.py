"""A holder who owns several records: the tight accountant against dp_accounting, exact integrals, and generic group privacy."""

import json
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import binom, norm

from sartor import SartorError
from sartor.accounting import (
    Composition,
    Included,
    SampledGaussian,
    SampledRecords,
    accountants,
    delta,
    epsilon,
    floor,
    losses,
    pld,
    profile,
    rdp,
    records,
    spend_on,
)
from sartor.accounting.use import probability_of_use
from sartor.plans import excess
from sartor.relation import REPLACE
from sartor_testing import records_reference as reference
from sartor_testing.amount import examples, most_are_long
from sartor_testing.records_reference import Exact

FIGURES = json.loads(reference.FILE.read_text())
WAYS = ("remove", "add")
ROUNDING = 1 - 1e-9
ALL = -60.0  # logarithm of a tail that nobody misses


# --- against dp_accounting ---


@pytest.mark.few(6)
@pytest.mark.parametrize("row", most_are_long(FIGURES, 16), ids=lambda row: str(row["mechanism"]))
def test_dp_accounting_on_fine_grids_agrees_and_nothing_is_understated(row):
    *mechanism, chance = row["mechanism"]
    bounds, planned = epsilon(SampledRecords(*mechanism), chance), spend_on([SampledRecords(*mechanism)], chance)[0]
    assert bounds.lower <= bounds.estimate <= bounds.upper <= planned * (1 + 1e-4)
    assert bounds.lower <= row["high"]
    for ours in (bounds.upper, planned):
        assert ours >= row["low"] * (1 - 1e-6)
        assert ours == pytest.approx(row["high"], rel=2e-3)


def test_there_are_enough_figures_and_some_of_every_kind():
    mechanisms = [row["mechanism"] for row in FIGURES]
    assert len(mechanisms) >= 20
    assert all(row["high"] - row["low"] <= 1e-3 * row["high"] for row in FIGURES)
    counts, rates, noises, steps, _ = (sorted(column) for column in zip(*mechanisms, strict=True))
    assert (counts[0], counts[-1]) == (2, 1_000)
    assert rates[0] <= 1e-5
    assert rates[-1] >= 0.9
    assert (noises[0], noises[-1]) == (0.3, 1e4)
    assert (steps[0], steps[-1]) == (1, 100_000)


@pytest.mark.parametrize("row", most_are_long(sorted(FIGURES, key=lambda row: -row["grid"]), 1), ids=lambda row: str(row["mechanism"]))
def test_reference_figures_are_what_dp_accounting_says_today(row):
    """From twice the grid that settled, so that the second figure is the one that was kept."""
    found = reference.fine_epsilon(*row["mechanism"], 2 * row["grid"])
    assert found.grid == pytest.approx(row["grid"])
    assert found.high == pytest.approx(row["high"], rel=1e-5)


# --- against exact integrals ---

FEW = [(2, 0.3, 1.0), (5, 0.1, 2.0), (20, 0.01, 1.0), (3, 0.9, 1.5), (4, 0.5, 0.4), (50, 0.02, 6.0)]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mechanism", FEW, ids=str)
def test_one_step_is_what_the_normal_distribution_says(mechanism, way):
    """On a coarse grid, never below; on a fine one, the same."""
    exact = Exact(*mechanism)
    at = np.linspace(0, 6, 13)
    truth = np.array([exact.delta(way, eps) for eps in at])
    for grid, close in ((0.1, 0.3), (1e-3, 1e-3)):
        pair = records.records_step(*mechanism, grid, ALL)
        ours = losses.compose([(getattr(pair, way), 1)], grid, 0.0, ALL).delta(at)
        assert np.all(ours >= truth * ROUNDING - 1e-15)
        np.testing.assert_allclose(ours, truth, rtol=close, atol=1e-12)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("mechanism", most_are_long(FEW[:4], 2), ids=str)
def test_two_steps_are_what_an_integral_over_the_first_says(mechanism, way):
    exact = Exact(*mechanism)
    pair = records.records_step(*mechanism, 1e-3, ALL)
    composed = losses.compose([(getattr(pair, way), 2)], 1e-3, 0.0, ALL)
    for eps in (0.0, 0.7, 2.5):
        truth = exact.delta_of_two(way, eps)
        ours = float(composed.delta(np.array([eps]))[0])
        assert truth * (1 - 1e-7) - 1e-12 <= ours <= truth * (1 + 2e-3) + 1e-12


@pytest.mark.parametrize("mechanism", FEW, ids=str)
def test_the_bounds_lie_around_the_exact_figure_of_one_step(mechanism):
    exact = Exact(*mechanism)
    for chance in (1e-3, 1e-6):
        bounds = epsilon(SampledRecords(*mechanism, 1), chance)
        assert max(exact.delta(way, bounds.upper) for way in WAYS) <= chance * (1 + 1e-9)
        assert max(exact.delta(way, bounds.upper * 0.999) for way in WAYS) > chance
        assert max(exact.delta(way, bounds.lower) for way in WAYS) >= chance
    bounds = delta(SampledRecords(*mechanism, 1), 1.0)
    truth = max(exact.delta(way, 1.0) for way in WAYS)
    assert bounds.lower <= truth <= bounds.upper * (1 + 1e-9)
    assert bounds.upper <= truth * 1.001
    assert profile(SampledRecords(*mechanism, 1), 1.0)[0] == pytest.approx(truth, rel=1e-3)


@pytest.mark.parametrize("tail", [1e-2, 1e-4])
@pytest.mark.parametrize("mechanism", FEW, ids=str)
def test_what_is_cut_off_counts_as_infinite(mechanism, tail):
    """Outputs far out and numbers of records that are rarely drawn: much is cut off here, and nothing may be missing."""
    exact, grid = Exact(*mechanism), 5e-3
    pair = records.records_step(*mechanism, grid, np.log(tail))
    assert 0 < pair.remove.infinite < 3 * tail
    for way in WAYS:
        at = np.linspace(0, 25, 26)
        truth = np.array([exact.delta(way, eps) for eps in at])
        composed = losses.compose([(getattr(pair, way), 1)], grid, 0.0, ALL)
        assert np.all(composed.delta(at) >= truth * ROUNDING - 1e-15)
        mass = getattr(pair, way)
        assert mass.mass.sum() + mass.infinite == pytest.approx(1, abs=1e-12)


def test_hardly_ever_drawn_numbers_of_records_are_left_out_and_counted():
    tail = 1e-3
    step = records._Step.of(1_000, 0.3, 5.0, np.log(tail))
    drawn = step.shift * 5
    assert 200 < drawn[0] < drawn[-1] < 400
    assert step.dropped == pytest.approx(binom.cdf(drawn[0] - 1, 1_000, 0.3) + binom.sf(drawn[-1], 1_000, 0.3), rel=1e-10)
    assert 0.1 * tail < step.dropped <= tail
    assert step.chance.sum() + step.dropped == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize(("count", "rate"), [(2, 1e-12), (20, 0.01), (1_000, 0.5), (1_000, 1 - 1e-9), (100_000, 1e-3)])
def test_probabilities_of_drawn_records_are_binomial(count, rate):
    ours, theirs = records._binomial(count, rate), binom.pmf(np.arange(count + 1), count, rate)
    np.testing.assert_allclose(ours, theirs, rtol=2e-11, atol=1e-290)
    assert ours.sum() == pytest.approx(1, abs=1e-14)


@pytest.mark.parametrize("grid", [1e-1, 1e-3, 1e-5])
@pytest.mark.parametrize(("count", "rate", "noise"), [(2, 0.3, 0.3), (20, 0.01, 1.0), (200, 0.5, 30.0), (1_000, 0.01, 100.0)])
def test_edges_lie_where_their_losses_are(count, rate, noise, grid):
    """Computed another way, by SciPy: where losses level off, around zero, and at the end."""
    step = records._Step.of(count, rate, noise, ALL)
    low, high = -records._FAR, step.reach(ALL)
    ends = step.loss(np.array([low, high]))[0]
    for place in (ends[0], 0.0, ends[1]):
        wanted = (np.floor(place / grid) + np.arange(-20.0, 21.0)) * grid
        edge = records._edges(step, wanted, low, high, 1e-9 * grid)
        assert np.all(np.diff(edge) >= 0)
        assert np.all(wanted[edge == low] <= ends[0] * (1 - 1e-12) + 1e-9 * grid)
        found = logsumexp(np.multiply.outer(edge, step.shift) - step.shift**2 / 2, b=step.chance, axis=1)
        inside = edge > low
        assert inside.sum() >= 19
        np.testing.assert_allclose(found[inside], wanted[inside], rtol=1e-13, atol=1e-9 * grid + 2 * records._ROUNDING * abs(ends).max())


def test_little_noise_and_much_noise_keep_the_digits_of_small_losses():
    """With much noise a step of records drawn at their rate is, to the first order, one Gaussian of their mean: an independent limit."""
    steps, count, rate, noise = 1_000_000, 50, 0.2, 1e4
    of_mean = epsilon(SampledGaussian(1.0, noise / (count * rate), steps), 1e-6).upper
    ours = epsilon(SampledRecords(count, rate, noise, steps), 1e-6)
    assert ours.upper == pytest.approx(of_mean, rel=1e-3)
    assert ours.upper > of_mean
    assert ours.lower < ours.upper


# --- laws ---


@pytest.mark.parametrize("mechanism", [(0.01, 1.0, 500), (0.3, 2.0, 1), (0.9, 10.0, 50)])
def test_one_record_costs_what_a_sampled_gaussian_costs(mechanism):
    one, plain = SampledRecords(1, *mechanism), SampledGaussian(*mechanism)
    for accountant in accountants.names():
        assert epsilon(one, 1e-5, accountant) == epsilon(plain, 1e-5, accountant)
        assert delta(one, 0.5, accountant) == delta(plain, 0.5, accountant)
    assert spend_on([Composition((one, plain))], 1e-5) == spend_on([Composition((plain, plain))], 1e-5)


@pytest.mark.parametrize(("rate", "noise"), [(0.01, 1.0), (0.5, 0.7), (0.99, 3.0)])
def test_one_record_has_the_losses_of_a_sampled_gaussian(rate, noise):
    """Not through the short cut: the two ways to make cells agree, cell by cell, up to where each cuts off."""
    grid = 1e-2
    ours, plain = records.records_step(1, rate, noise, grid, ALL, 2.0), losses.sampled_step(rate, noise, grid, ALL, 2.0)
    for way in WAYS:
        one, other = getattr(ours, way), getattr(plain, way)
        first, last = max(one.offset, other.offset), min(one.offset + len(one.mass), other.offset + len(other.mass)) - 1
        part, counterpart = (x.mass[first - x.offset : last - x.offset] for x in (one, other))
        np.testing.assert_allclose(part, counterpart, rtol=1e-6, atol=1e-16)
    assert ours.spread == pytest.approx(plain.spread, rel=1e-6)


@pytest.mark.parametrize(("count", "noise", "steps"), [(2, 3.0, 1), (20, 30.0, 100), (1_000, 1e4, 10_000)])
def test_records_that_are_always_drawn_are_one_gaussian_of_their_number(count, noise, steps):
    together = SampledGaussian(1.0, noise / count, steps)
    for accountant in accountants.names():
        assert epsilon(SampledRecords(count, 1.0, noise, steps), 1e-5, accountant) == epsilon(together, 1e-5, accountant)
    nearly = epsilon(SampledRecords(count, 1 - 1e-9, noise, steps), 1e-5)
    assert nearly.lower <= epsilon(together, 1e-5).upper
    assert nearly.upper == pytest.approx(epsilon(together, 1e-5).upper, rel=1e-3)


mechanisms = st.tuples(
    st.integers(2, 40),
    st.floats(-4, -0.1).map(lambda x: 10**x),
    st.floats(-0.4, 2).map(lambda x: 10**x),
    st.floats(0, 4).map(lambda x: int(10**x)),
)


@settings(deadline=None, max_examples=examples(6, 200))
@given(mechanisms, st.floats(-8, -3).map(lambda x: 10**x), st.integers(1, 5), st.floats(1.05, 2.0))
def test_more_records_more_often_for_longer_and_with_less_noise_cost_more(mechanism, chance, further, factor):
    count, rate, noise, steps = mechanism
    lesser = [
        (count, rate, noise * factor, steps),
        (count, rate / factor, noise, steps),
        (count, rate, noise, max(1, int(steps / factor))),
        (max(1, count - further), rate, noise, steps),
    ]
    most, *others = spend_on([SampledRecords(*each) for each in (mechanism, *lesser)], chance)
    slack = 1 + 1e-3  # what discretisation may differ by
    assert np.all(np.array(others) <= most * slack)
    assert spend_on([SampledRecords(*mechanism)], min(0.5, chance * factor))[0] <= most * slack


@settings(deadline=None, max_examples=examples(6, 100))
@given(mechanisms, st.floats(-8, -3).map(lambda x: 10**x))
def test_the_figure_lies_between_one_record_and_all_records_at_every_step(mechanism, chance):
    count, rate, noise, steps = mechanism
    bounds = epsilon(SampledRecords(*mechanism), chance)
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.upper >= epsilon(SampledGaussian(rate, noise, steps), chance).lower
    assert bounds.upper <= epsilon(SampledGaussian(1.0, noise / count, steps), chance).upper * (1 + 1e-9)


def test_stages_compose():
    half, whole = SampledRecords(8, 0.02, 1.5, 150), SampledRecords(8, 0.02, 1.5, 300)
    assert epsilon(Composition((half, half)), 1e-5) == epsilon(whole, 1e-5)
    other = SampledRecords(8, 0.1, 3.0, 40)
    both = epsilon(Composition((half, other)), 1e-5)
    assert max(epsilon(part, 1e-5).upper for part in (half, other)) < both.upper
    assert both.upper < epsilon(half, 5e-6).upper + epsilon(other, 5e-6).upper
    beside_others = Composition((half, SampledGaussian(1.0, 20.0, 3), Included(0.5, SampledRecords(3, 0.1, 4.0, 20))))
    assert epsilon(half, 1e-5).upper < epsilon(beside_others, 1e-5).upper


@pytest.mark.parametrize("angle", [0.4, np.pi / 2, np.pi], ids=["close", "across", "against"])
def test_records_that_point_elsewhere_are_no_easier_to_tell(angle):
    """Two records with vectors of two directions, by brute force over outputs in the plane: below the pair that is accounted for."""
    rate, noise = 0.3, 0.8
    first, second = np.array([1.0, 0.0]), np.array([np.cos(angle), np.sin(angle)])
    axis = np.linspace(-8, 10, 1_201)
    x, y = np.meshgrid(axis, axis, indexing="ij")
    cell = (axis[1] - axis[0]) ** 2

    def density(by):
        shift = by / noise
        return norm.pdf(x - shift[0]) * norm.pdf(y - shift[1]) * cell

    without = density(np.zeros(2))
    both = rate**2 * density(first + second)
    together = (1 - rate) ** 2 * without + rate * (1 - rate) * (density(first) + density(second)) + both
    for eps in (0.0, 0.5, 1.5):
        found = {
            "remove": np.sum(np.maximum(together - np.exp(eps) * without, 0)),
            "add": np.sum(np.maximum(without - np.exp(eps) * together, 0)),
        }
        for way in WAYS:
            assert found[way] <= Exact(2, rate, noise).delta(way, eps) + 1e-9


# --- what else could be said ---


GROUPS = [(2, (0.01, 1.0, 1_000), 0.95), (20, (0.01, 8.0, 100), 0.95), (20, (0.001, 1.0, 1_000), 0.6)]


@pytest.mark.parametrize(("count", "mechanism", "share"), GROUPS)
def test_group_privacy_is_looser_and_without_its_delta_wrong(count, mechanism, share):
    """(epsilon, d) for one record is (k epsilon, d (e^(k epsilon) - 1) / (e^epsilon - 1)) for k; whichever d is chosen, that is more."""
    chance, singles = 1e-5, np.geomspace(1e-10, 1e-5, 11)
    person = epsilon(SampledRecords(count, *mechanism), chance)
    one = np.array([spend_on([SampledGaussian(*mechanism)], single)[0] for single in singles])
    fits = singles * np.expm1(count * one) / np.expm1(one) <= chance
    assert person.upper < share * count * one[fits].min()
    if count == 2:
        assert count * one[-1] < person.lower  # k epsilon at the same delta promises what does not hold


def test_records_drawn_together_would_be_another_mechanism():
    """A binomial number is neither its mean at every step nor all at once by a single coin."""
    count, rate, noise, steps = 20, 0.01, 1.0, 100
    ours = epsilon(SampledRecords(count, rate, noise, steps), 1e-5)
    assert epsilon(SampledGaussian(1.0, noise / (count * rate), steps), 1e-5).upper < 0.9 * ours.lower
    assert epsilon(SampledGaussian(rate, noise / count, steps), 1e-5).lower > 1.5 * ours.upper


# --- who judges it ---

SEVERAL = SampledRecords(20, 0.01, 2.0, 100)
WITHIN = [SEVERAL, Composition((SampledGaussian(0.1, 2.0, 3), SEVERAL)), Included(0.5, SEVERAL), Composition((Included(1.0, SEVERAL),))]


@pytest.mark.parametrize("exposure", WITHIN, ids=["alone", "composed", "included", "nested"])
def test_the_renyi_accountant_says_that_it_does_not_judge_it(exposure):
    assert not accountants.find("rdp").supports(exposure)
    assert accountants.find("pld").supports(exposure)
    for ask in (
        lambda e: epsilon(e, 1e-5, "rdp"),
        lambda e: epsilon(e, 1e-5, "rdp", orders=[2.0, 3.0], conversion="mironov"),
        lambda e: delta(e, 1.0, "rdp"),
        lambda e: profile(e, 1.0, "rdp"),
        lambda e: spend_on([e], 1e-5, "rdp"),
        lambda e: floor([e], 1e-5, "rdp"),
    ):
        with pytest.raises(SartorError, match=r'^the accountant "rdp" cannot judge .*several records of one holder.*; "pld" can\.$'):
            ask(exposure)
    for ask in (
        rdp.curve,
        lambda e: rdp.epsilon_of([e], np.array([1e-5]), rdp.ORDERS, "balle"),
        lambda e: excess.divergence(e, SampledGaussian(0.1, 2.0, 3)),
    ):
        with pytest.raises(SartorError, match="several records of one holder, drawn one by one, have no Rényi bound here"):
            ask(exposure)


def test_under_other_relations_records_are_judged_where_nobody_is_sampled():
    always = SampledRecords(3, 1.0, 9.0, 4, REPLACE)
    assert epsilon(always, 1e-5) == epsilon(SampledGaussian(1.0, 3.0, 4), 1e-5)
    with pytest.raises(SartorError, match="cannot judge"):
        epsilon(SampledRecords(3, 0.5, 9.0, 4, REPLACE), 1e-5)


@pytest.mark.parametrize("nothing", [SampledRecords(5, 0.0, 1.0, 5), SampledRecords(5, 0.5, 1.0, 0), SampledRecords(5, 0.5, np.inf, 5)])
def test_nothing_costs_nothing(nothing):
    assert epsilon(nothing, 1e-5) == epsilon(nothing, 1e-5, "rdp") == (0, 0, 0)
    assert probability_of_use(nothing) == 0


def test_whoever_is_used_more_rarely_than_delta_spends_nothing():
    assert probability_of_use(SampledRecords(20, 1e-8, 0.5, 10)) == pytest.approx(2e-6, rel=1e-5)
    assert epsilon(SampledRecords(20, 1e-8, 0.5, 10), 1e-5) == (0, 0, 0)
    assert spend_on([SampledRecords(20, 1e-6, 0.5, 1)], 1e-5)[0] > 0
    assert probability_of_use(Included(0.5, SampledRecords(20, 1.0, 0.5, 10))) == 0.5
    assert epsilon(SampledRecords(20, 0.5, 0.0, 1), 1e-5).upper == np.inf


@pytest.mark.parametrize(
    "mechanism",
    most_are_long(
        [
            (1_000, 0.01, 0.3, 1_000),
            (7, 1e-300, 1e300, 1_000),
            (3, 0.2, 1e-3, 10),
            (100_000, 1e-4, 5.0, 100),
            (1_000, 1 - 1e-16, 3.0, 1_000_000),
            (1_000, 0.5, 0.3, 1),
            (1_000, 0.97, 0.3, 1_000_000),
            (20, 1e-6, 0.3, 1_000_000),
            (2, 1e-9, 0.03, 1_000_000),
            (1_000_000, 0.5, 1e4, 10),
        ],
        4,
    ),
    ids=str,
)
def test_harsh_mechanisms_end_in_a_bound_and_not_in_a_crash(mechanism):
    bounds = epsilon(SampledRecords(*mechanism), 1e-5)
    count, _, noise, steps = mechanism
    assert 0 <= bounds.lower <= bounds.estimate <= bounds.upper
    assert bounds.upper <= epsilon(SampledGaussian(1.0, noise / count, steps), 1e-5).upper * (1 + 1e-9)
    assert 0 <= delta(SampledRecords(*mechanism), 1.0).upper <= 1


@pytest.mark.parametrize("falls_back", [False, True])
def test_the_worse_direction_counts_whichever_it_is(monkeypatch, falls_back):
    exposure, right = SampledRecords(5, 0.1, 1.0, 10), pld._pairs
    if falls_back:
        monkeypatch.setattr(pld, "_evaluate", lambda *given: None)
    at, chance = epsilon(exposure, 1e-5).upper, delta(exposure, 3.0).upper

    def swapped(*given):
        return [(replace(pair, remove=pair.add, add=pair.remove), count) for pair, count in right(*given)]

    monkeypatch.setattr(pld, "_pairs", swapped)
    assert epsilon(exposure, 1e-5).upper == pytest.approx(at, rel=1e-3)
    assert delta(exposure, 3.0).upper == pytest.approx(chance, rel=1e-2)


def test_a_search_may_fall_back_to_where_it_began(monkeypatch):
    """Without a composition, Chernoff's bound on a coarse grid is what is left: a bound, and not far off."""
    exposure = SampledRecords(20, 0.01, 1.0, 100)
    tight, at = epsilon(exposure, 1e-5), delta(exposure, 10.0)
    monkeypatch.setattr(pld, "_evaluate", lambda *given: None)
    assert tight.upper < epsilon(exposure, 1e-5).upper < 1.3 * tight.upper
    assert at.upper < delta(exposure, 10.0).upper < 15 * at.upper
    assert epsilon(exposure, 1e-5).lower == 0
