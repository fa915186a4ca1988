"""The Rényi accountant against Opacus, dp_accounting, and 40-digit integration."""

import logging
import warnings

import dp_accounting
import mpmath as mp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opacus.accountants import RDPAccountant
from opacus.accountants.analysis import rdp as opacus_rdp

from sartor.accounting import Composition, Included, SampledGaussian, delta, epsilon, rdp, spend
from sartor_testing.amount import examples

OPACUS_ORDERS = [1 + x / 10.0 for x in range(1, 100)] + list(range(12, 64))

mechanisms = st.tuples(
    st.one_of(st.just(1.0), st.floats(1e-6, 1.0), st.floats(-6, -0.01).map(lambda x: 10**x)),
    st.floats(-0.4, 1.7).map(lambda x: 10**x),
    st.one_of(st.just(1), st.integers(1, 100_000)),
    st.floats(-8, -2).map(lambda x: 10**x),
)


def by_forty_digits(rate: float, noise: float, order: float) -> float:
    with mp.workdps(40):
        q, z, a = (mp.mpf(str(value)) for value in (rate, noise, order))
        ends = sorted({mp.mpf(p) for p in (-40 * z, -10 * z, -3 * z, 0, 1, 2, a / 2, a, a + 3 * z, a + 10 * z, a + 40 * z)})

        def integrand(x):
            return mp.npdf(x, 0, z) * ((1 - q) + q * mp.exp((2 * x - 1) / (2 * z * z))) ** a

        return float(mp.log(mp.quad(integrand, ends)) / (a - 1))


@pytest.mark.few(8)
@pytest.mark.parametrize(("rate", "noise"), [(1e-6, 0.4), (0.5, 0.4), (0.04, 1.5), (1e-6, 50.0), (0.9, 0.5), (0.3, 0.2)])
@pytest.mark.parametrize("order", [1.1, 4.4, 9.7, 12.0])
def test_divergences_equal_forty_digit_integrals(rate, noise, order):
    assert rdp.sampled_gaussian(rate, noise, [order])[0, 0] == pytest.approx(by_forty_digits(rate, noise, order), rel=1e-10)


def test_opacus_published_figure_is_reproduced_to_its_last_digit():
    accountant = RDPAccountant()
    accountant.history = [(1.5, 0.04, 2250)]
    ours = epsilon(SampledGaussian(0.04, 1.5, 2250), 1e-5, "rdp", orders=OPACUS_ORDERS).upper
    assert ours == pytest.approx(7.32911117143, abs=1e-9)
    assert ours == pytest.approx(accountant.get_epsilon(1e-5, alphas=OPACUS_ORDERS), rel=1e-9)
    assert epsilon(SampledGaussian(0.04, 2.2, 5000), 1e-5, "rdp").upper == pytest.approx(6.8143, abs=5e-5)


@settings(deadline=None, max_examples=examples(50, 200))
@given(mechanisms)
def test_same_orders_give_what_opacus_gives(mechanism):
    rate, noise, steps, chance = mechanism
    with np.errstate(all="ignore"), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = opacus_rdp.compute_rdp(q=rate, noise_multiplier=noise, steps=steps, orders=OPACUS_ORDERS)
    with np.errstate(invalid="ignore"):
        reliable = (theirs / steps * (np.array(OPACUS_ORDERS) - 1) > 1e-11) & np.isfinite(theirs)  # below, their sums lose their digits
    ours = steps * rdp.sampled_gaussian(rate, noise, OPACUS_ORDERS)[0]
    np.testing.assert_allclose(ours[reliable], theirs[reliable], rtol=1e-3)
    if reliable.all() and rate * steps > chance:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            expected, _ = opacus_rdp.get_privacy_spent(orders=OPACUS_ORDERS, rdp=theirs, delta=chance)
        found = epsilon(SampledGaussian(rate, noise, steps), chance, "rdp", orders=OPACUS_ORDERS).upper
        assert found == pytest.approx(max(expected, 0.0), rel=1e-2, abs=1e-9)


INTEGER_ORDERS = [float(a) for a in rdp.ORDERS if a == round(a) and a <= 512]


@settings(deadline=None, max_examples=examples(50, 200))
@given(mechanisms)
def test_dp_accounting_agrees_to_one_per_cent(mechanism):
    # at integer orders, where theirs is an exact sum; its fractional orders do not always converge and are then left out
    rate, noise, steps, chance = mechanism
    exposure = SampledGaussian(rate, noise, steps)
    logging.getLogger("absl").setLevel(logging.CRITICAL)  # it says of each order that did not converge
    accountant = dp_accounting.rdp.RdpAccountant(orders=INTEGER_ORDERS)
    theirs = accountant.compose(exposure.to_dp_event()).get_epsilon(chance)
    ours = epsilon(exposure, chance, "rdp", orders=INTEGER_ORDERS).upper
    assert epsilon(exposure, chance, "rdp").upper <= ours * (1 + 1e-9)
    if theirs == 0 or ours == 0:
        # either proves zero in its own way: they by the total variation, we where the holder is used more rarely than delta
        assert epsilon(exposure, chance).lower <= min(theirs, ours)
    else:
        assert ours == pytest.approx(theirs, rel=0.01)


def test_conversions_are_ordered_and_selectable():
    exposure = SampledGaussian(0.01, 1.1, 5000)
    tight = epsilon(exposure, 1e-5, "rdp", conversion="balle").upper
    loose = epsilon(exposure, 1e-5, "rdp", conversion="mironov").upper
    assert tight < loose < 1.5 * tight


def test_delta_and_epsilon_are_inverse():
    exposure = SampledGaussian(0.02, 1.3, 1000)
    for conversion in ("balle", "mironov"):
        eps = epsilon(exposure, 1e-6, "rdp", conversion=conversion).upper
        assert delta(exposure, eps, "rdp", conversion=conversion).upper == pytest.approx(1e-6, rel=1e-6)


@settings(deadline=None, max_examples=50)
@given(mechanisms)
def test_a_cheap_bound_near_an_order_is_never_below_the_full_search_by_much(mechanism):
    row = [np.array([float(value)]) for value in mechanism]
    full, order = rdp.epsilon_and_order(*row)
    near, _ = rdp.spend_near(*row, order)
    assert near[0] == pytest.approx(full[0], rel=1e-9, abs=1e-12)
    far, _ = rdp.spend_near(*row, order * 3 + 1)
    assert far[0] >= full[0] * (1 - 1e-9)


def test_very_small_noise_is_bounded_without_memory():
    values = rdp.sampled_gaussian(0.1, [1e-3, 1e-2, 0.05], rdp.ORDERS[:100])
    assert np.all(np.isfinite(values))
    assert np.all(np.diff(values, axis=0) < 0)


@pytest.mark.parametrize("mu", [0.3, 0.8])
@pytest.mark.parametrize("probability", [0.02, 0.1, 0.5, 0.9])
def test_inclusion_is_bounded_in_both_directions(probability, mu):
    """Against numerical integration of one Gaussian included with a probability."""
    x = np.linspace(-10, 13, 400_001)
    q = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    ratio = 1 - probability + probability * np.exp(mu * x - mu**2 / 2)
    orders = np.array([1.5, 2.0, 3.0, 4.5, 8.0])
    bound = rdp.curve(Included(probability, SampledGaussian(1.0, 1 / mu, 1)), orders)
    for order, value in zip(orders, bound, strict=True):
        remove, add = (np.log(np.sum(q * ratio**power)) / (order - 1) for power in (order, 1 - order))
        assert max(remove, add) <= value * (1 + 1e-9)
        assert value <= 3 * max(remove, add)


def test_inclusion_in_steps_that_are_sampled_is_bounded_in_both_directions():
    """Two sampled steps behind a coin, by the sum over a grid of two dimensions."""
    rate, noise, chance = 0.3, 1.2, 0.4
    x = np.linspace(-8, 9, 1_201)
    q = np.exp(-(x**2) / 2) / np.sqrt(2 * np.pi) * (x[1] - x[0])
    ratio = 1 - rate + rate * np.exp(x / noise - 0.5 / noise**2)
    whole, without = 1 - chance + chance * np.outer(ratio, ratio), np.outer(q, q)
    bound = rdp.curve(Included(chance, SampledGaussian(rate, noise, 2)), np.array([2.0, 5.0, 10.0]))
    for order, value in zip([2, 5, 10], bound, strict=True):
        remove, add = (np.log(np.sum(without * whole**power)) / (order - 1) for power in (order, 1 - order))
        assert max(remove, add) <= value * (1 + 1e-6)
        assert value <= 3 * max(remove, add)


def test_compositions_add_up():
    one, other = SampledGaussian(0.01, 1.0, 100), SampledGaussian(0.1, 5.0, 50)
    np.testing.assert_allclose(rdp.curve(Composition((one, other))), rdp.curve(one) + rdp.curve(other))


def test_many_groups_are_computed_as_one():
    rate, noise = np.geomspace(1e-4, 0.5, 40), np.geomspace(0.5, 20, 40)
    together = spend(rate, noise, 1000, 1e-5, "rdp")
    alone = [spend(q, z, 1000, 1e-5, "rdp")[0] for q, z in zip(rate, noise, strict=True)]
    np.testing.assert_array_equal(together, alone)


@pytest.mark.parametrize("orders", [[1.0], [0.5, 2.0], [float("nan")]])
def test_orders_that_are_none_are_refused(orders):
    with pytest.raises(ValueError, match="above 1"):
        epsilon(SampledGaussian(0.1, 1.0, 10), 1e-5, "rdp", orders=orders)
