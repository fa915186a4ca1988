"""What plans ask: figures for mechanisms at twelve digits, never on the cheaper side of those that were asked for."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import norm

from sartor.accounting import pld, spend, spending

POSITIVE = st.floats(-10, 0).map(lambda x: 10**x)


@pytest.mark.parametrize("accountant", ["rdp", "pld"])
@pytest.mark.parametrize(("noise", "steps", "chance"), [(5.0, 25, 1e-5), (0.7, 1, 1e-9), (40.0, 10_000, 1e-3)])
def test_a_full_batch_costs_what_the_normal_distribution_says(noise, steps, chance, accountant):
    """At a rate of 1 nothing is discretised, so the tight figure is exact; a rate that rounding had moved would be."""
    found = float(spend(1.0, noise, steps, chance, accountant)[0])
    ratio = np.sqrt(steps) / noise
    exact = norm.cdf(ratio / 2 - found / ratio) - np.exp(found) * norm.cdf(-ratio / 2 - found / ratio)
    assert exact <= chance * (1 + 1e-6)
    if accountant == "pld":
        assert exact == pytest.approx(chance, rel=1e-6)


@given(POSITIVE, st.floats(0.03, 1e4))
def test_mechanisms_are_rounded_to_the_costlier_side(rate, noise):
    rates, noises = (np.array([value]) for value in (rate, noise))
    higher, lower = spending._rounded(rates, np.ceil, np.maximum, 1.0), spending._rounded(noises, np.floor, np.minimum, np.inf)
    assert rate <= higher[0] <= rate * (1 + 2e-11)
    assert noise * (1 - 2e-11) <= lower[0] <= noise


@given(POSITIVE)
def test_a_number_of_twelve_digits_stays_what_it_is(value):
    short = np.array([float(f"{value:.11e}")])
    assert spending._rounded(short, np.ceil, np.maximum, 1.0) == short
    assert spending._rounded(short, np.floor, np.minimum, np.inf) == short


def test_a_rough_figure_is_not_remembered_for_a_finer_one(monkeypatch):
    monkeypatch.setattr(spending, "_memory", {})
    rough = spend(0.013, 0.9, 700, 1e-5, accuracy=pld.GUESSING_ACCURACY)
    fine = spend(0.013, 0.9, 700, 1e-5)
    spending._memory.clear()
    assert spend(0.013, 0.9, 700, 1e-5) == fine != rough
