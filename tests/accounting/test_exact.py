"""The accountants against exact figures: inverted moment generating functions in forty digits.

These decide points that grids cannot: rates of 1e-6 to 1e-3 over many steps, where dp_accounting's figure falls for ever with its grid.
"""

import mpmath as mp
import numpy as np
import pytest

from sartor.accounting import SampledGaussian, epsilon, rdp, spend
from sartor_testing.contour import Exact

DECIDED = {  # (rate, noise multiplier, steps, delta): epsilon of removing and of adding the holder
    (3.16e-5, 2.49, 480_880, 1.4e-5): ("0.02376983684734240629", "0.023725723140022395948"),
    (5.77e-6, 21.5, 97_164, 9e-11): ("0.00036923276333650452764", "0.00036897811637897621889"),
    (5.5e-4, 10.4, 263_007, 3.4e-3): ("0.021299987120311915386", "0.021294509727390471145"),
    (2.07e-6, 53.0, 4_872, 8.9e-12): ("0.00001138562159959355781", "0.000011372111465665727569"),
}
KNOWN = [  # figures of dp_accounting on a grid of 1e-5, from the references of the tight accountant: mechanism, low, high, reach
    ((0.004390098223502537, 3.979278628820955, 37_882, 9.251309819204456e-08), 1.0286489759170012, 1.0286705463277104, 24.0),
    ((0.42675889209644885, 15.049120930488192, 437, 7.177019840938943e-07), 2.7743622852784138, 2.774362574159088, 18.0),
]


@pytest.mark.parametrize("mechanism", DECIDED, ids=str)
def test_the_tight_accountant_is_above_the_exact_figure_and_close(mechanism):
    rate, noise, steps, chance = mechanism
    exact = max(float(figure) for figure in DECIDED[mechanism])
    bounds = epsilon(SampledGaussian(rate, noise, steps), chance)
    planned = float(spend(rate, noise, steps, chance)[0])
    assert bounds.lower <= exact <= bounds.upper
    assert bounds.upper <= exact * (1 + 5e-5)
    assert exact <= planned <= exact * (1 + 5e-4)
    assert epsilon(SampledGaussian(rate, noise, steps), chance, "rdp").upper >= exact


@pytest.mark.parametrize("mechanism", [m if i == 3 else pytest.param(m, marks=pytest.mark.long) for i, m in enumerate(DECIDED)], ids=str)
def test_the_figures_are_what_the_inversion_gives_on_any_line(mechanism):
    """At the figure, delta is the one asked for; another line, another step and another reach agree to twenty digits."""
    rate, noise, steps, chance = mechanism
    remove = DECIDED[mechanism][0]
    found = Exact(rate, noise, steps).delta(mp.mpf(remove), "remove")[0]
    other = Exact(rate, noise, steps, reach=15.0, step=0.2).delta(mp.mpf(remove), "remove", 0.7)[0]
    assert abs(found / mp.mpf(chance) - 1) < 1e-13
    assert abs(found / other - 1) < 1e-20
    assert Exact(rate, noise, steps).cut_off < 1e-20 * chance


@pytest.mark.long
@pytest.mark.parametrize("mechanism", DECIDED, ids=str)
def test_the_figures_are_found_again(mechanism):
    rate, noise, steps, chance = mechanism
    for way, figure in zip(("remove", "add"), DECIDED[mechanism], strict=True):
        found = Exact(rate, noise, steps).epsilon_of(chance, float(figure) * 1.01, way)
        assert found == pytest.approx(float(figure), rel=1e-14)


@pytest.mark.parametrize(("mechanism", "low", "high", "reach"), KNOWN)
def test_the_inversion_agrees_with_dp_accounting_where_that_settles(mechanism, low, high, reach):
    rate, noise, steps, chance = mechanism
    exact = Exact(rate, noise, steps, reach=reach)
    assert exact.delta(high, "remove")[0] <= chance <= exact.delta(low * (1 - 1e-6), "remove")[0]


def test_divergences_beyond_the_usual_orders_are_exact():
    """No order is the largest: a budget of 1e-4 has its optimum at an order of some 100,000."""
    for rate, noise, order in ((0.9, 7_000.0, 1e5), (0.01, 300.0, 2e4), (0.5, 1e6, 1e8), (4e-5, 421.0, 2e6)):
        moment = Exact(rate, noise, 1, reach=18 + order * rate / noise).moments(mp.mpf(order))[0]
        ours = rdp.at_large_orders(np.array([rate]), np.array([noise]), np.array([order]))[0, 0]
        assert ours == pytest.approx(float(mp.re(mp.log(moment)) / (order - 1)), rel=1e-9)


def test_divergences_of_little_noise_at_the_largest_orders_are_not_understated():
    """So far out that the other part of the mixture is nothing: q^a E[R^a] in closed form, between the points at which sums are taken."""
    for rate, noise, order in ((0.9, 100.0, 1e6), (0.5, 30.0, 3e5), (0.99, 10.0, 2e5), (0.9, 1_000.0, 1.7e6)):
        exact = (order * np.log(rate) + order * (order - 1) / (2 * noise**2)) / (order - 1)
        ours = rdp.at_large_orders(np.array([rate]), np.array([noise]), np.array([order]))[0, 0]
        assert exact * (1 - 1e-12) <= ours <= exact * 1.1
