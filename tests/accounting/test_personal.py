"""From individual Rényi divergences to personal guarantees: theorem 4.8, and a bound on what is true."""

import numpy as np
import pytest

from sartor.accounting import SampledGaussian, epsilon, rdp
from sartor.accounting.personal import personal_epsilon


def test_it_is_the_theorem_at_each_holders_delta_and_their_best_order():
    rho, orders, delta = np.array([[0.1, 0.5], [2.0, 3.0]]), np.array([4.0, 20.0]), np.array([1e-5, 1e-2])
    by_order = rho + np.log(1 / delta)[:, None] / (orders - 1)
    np.testing.assert_allclose(personal_epsilon(rho, orders, delta), by_order.min(1))


def test_it_is_never_below_the_true_cost():
    exposures = [SampledGaussian(1.0, noise, 10) for noise in (8.0, 20.0)]
    curves = np.array([rdp.curve(exposure) for exposure in exposures])
    found = personal_epsilon(curves, rdp.ORDERS, [1e-5, 1e-6])
    for own, exposure, delta in zip(found, exposures, (1e-5, 1e-6), strict=True):
        assert own >= epsilon(exposure, delta).upper


@pytest.mark.parametrize(
    "wrong", [{"divergence": [0.1]}, {"orders": [1.0, 2.0]}, {"delta": 0.0}, {"divergence": [[-0.1, 0.1]]}, {"orders": [2.0]}]
)
def test_nonsense_is_refused(wrong):
    with pytest.raises(ValueError, match=r"divergences|deltas"):
        personal_epsilon(**{"divergence": [[0.1, 0.2]], "orders": [2.0, 3.0], "delta": 1e-5, **wrong})
