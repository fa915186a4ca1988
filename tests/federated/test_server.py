"""The server's optimizer against the formulas, and from a saved state."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sartor.errors import SartorError
from sartor.federated import ServerOptimizer

MEANS = [[np.array([1.0, -2.0]), np.array(0.5)], [np.array([0.0, 4.0]), np.array(-3.0)], [np.array([2.0, 2.0]), np.array(1.0)]]


@given(lr=st.floats(0.01, 2), momentum=st.floats(0, 0.99))
def test_sgd_moves_along_the_mean_with_momentum(lr, momentum):
    server = ServerOptimizer([np.zeros(2), np.array(1.0)], lr=lr, momentum=momentum)
    vector, scalar, speed = np.zeros(2), 1.0, [np.zeros(2), 0.0]
    for mean in MEANS:
        speed = [momentum * v + m for v, m in zip(speed, mean, strict=True)]
        vector, scalar = vector + lr * speed[0], scalar + lr * speed[1]
        found = server.step(mean)
    assert found[0] == pytest.approx(vector)
    assert found[1] == pytest.approx(scalar)


def test_adam_follows_its_formula():
    server = ServerOptimizer([np.zeros(2), np.array(1.0)], "adam", lr=0.1)
    where, first, second = np.array([0.0, 0.0, 1.0]), np.zeros(3), np.zeros(3)
    for step, mean in enumerate(MEANS, 1):
        gradient = -np.append(mean[0], mean[1])
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        where = where - 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-3)
        found = server.step(mean)
    assert np.append(found[0], found[1]) == pytest.approx(where)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_server_goes_on_from_its_state(name):
    momentum = 0.9 if name == "sgd" else 0.0
    one, other = (ServerOptimizer([np.zeros(2), np.array(1.0)], name, lr=0.3, momentum=momentum) for _ in range(2))
    one.step(MEANS[0])
    other.load(one.state())
    a, b = one.step(MEANS[1]), other.step(MEANS[1])
    assert [part.tolist() for part in a] == [part.tolist() for part in b]


def test_arrays_keep_their_types_and_counters_their_values():
    server = ServerOptimizer([np.zeros(2, np.float32), np.array(7, np.int64)])
    found = server.step([np.ones(2), np.array(5.0)])
    assert [part.dtype.name for part in found] == ["float32", "int64"]
    assert [part.tolist() for part in found] == [[1.0, 1.0], 7]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ([np.zeros(1)], {"lr": 0}),
        ([np.zeros(1)], {"name": "sdg"}),
        ([np.array(1)], {}),
        ([np.zeros(1)], {"momentum": -5.0}),
        ([np.zeros(1)], {"momentum": 1.0}),
        ([np.zeros(1)], {"momentum": float("nan")}),
        ([np.zeros(1), np.zeros(1, complex)], {}),
    ],
)
def test_bad_requests_are_refused(model, options):
    with pytest.raises(SartorError):
        ServerOptimizer(model, **options)


@pytest.mark.parametrize("broken", [{}, {"parameters": None}, {"parameters": [1], "optimizer": {}}, {"x": 1}])
def test_a_state_of_another_server_is_refused(broken):
    server = ServerOptimizer([np.zeros(3)])
    with pytest.raises(SartorError, match="state"):
        server.load(broken)
    with pytest.raises(SartorError, match="another model"):
        server.load(ServerOptimizer([np.zeros((2, 3))]).state())
    with pytest.raises(SartorError, match="state"):
        ServerOptimizer([np.zeros(3)], "adam").load({**server.state(), "optimizer": {}})
