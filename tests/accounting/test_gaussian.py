"""The largest ratio of sensitivity to noise that a budget allows, against forty digits."""

import mpmath as mp
import numpy as np
import pytest

from sartor.accounting import gaussian


def exact_delta(mu, epsilon):
    """Balle and Wang 2018, theorem 8."""
    with mp.workdps(40):
        mu, epsilon = mp.mpf(mu), mp.mpf(epsilon)
        return mp.ncdf(mu / 2 - epsilon / mu) - mp.exp(epsilon) * mp.ncdf(-mu / 2 - epsilon / mu)


@pytest.mark.parametrize("delta", [1e-12, 1e-6, 1e-5, 0.1])
@pytest.mark.parametrize("epsilon", [1e-4, 0.01, 0.1, 1.0, 30.0])
def test_the_largest_ratio_spends_its_budget_and_not_more(epsilon, delta):
    mu = gaussian.mu_for(epsilon, delta)
    assert float(exact_delta(mu, epsilon) / delta) == pytest.approx(1, rel=1e-8)
    assert gaussian.delta_of(mu, np.array(epsilon)) <= delta
    assert gaussian.epsilon_of(mu, np.array(delta)) == pytest.approx(epsilon, rel=1e-8)
