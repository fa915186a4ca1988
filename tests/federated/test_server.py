"""The server's optimizer against the formulas, and from a saved state."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sartor.errors import SartorError
from sartor.federated import ServerOptimizer

MEANS = [
    {"vector": np.array(vector), "scalar": np.array(scalar)}
    for vector, scalar in (([1.0, -2.0], 0.5), ([0.0, 4.0], -3.0), ([2.0, 2.0], 1.0))
]


@given(lr=st.floats(0.01, 2), momentum=st.floats(0, 0.99))
def test_sgd_moves_along_the_mean_with_momentum(lr, momentum):
    server = ServerOptimizer({"vector": np.zeros(2), "scalar": np.array(1.0)}, lr=lr, momentum=momentum)
    vector, scalar, speed = np.zeros(2), 1.0, [np.zeros(2), 0.0]
    for mean in MEANS:
        speed = [momentum * v + m for v, m in zip(speed, (mean["vector"], mean["scalar"]), strict=True)]
        vector, scalar = vector + lr * speed[0], scalar + lr * speed[1]
        found = server.step(mean)
    assert found["vector"] == pytest.approx(vector)
    assert found["scalar"] == pytest.approx(scalar)


def test_adam_follows_its_formula():
    server = ServerOptimizer({"vector": np.zeros(2), "scalar": np.array(1.0)}, "adam", lr=0.1)
    where, first, second = np.array([0.0, 0.0, 1.0]), np.zeros(3), np.zeros(3)
    for step, mean in enumerate(MEANS, 1):
        gradient = -np.append(mean["vector"], mean["scalar"])
        first, second = 0.9 * first + 0.1 * gradient, 0.99 * second + 0.01 * gradient**2
        where = where - 0.1 * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.99**step)) + 1e-3)
        found = server.step(mean)
    assert np.append(found["vector"], found["scalar"]) == pytest.approx(where)


@pytest.mark.parametrize("name", ["sgd", "adam"])
def test_a_server_goes_on_from_its_state(name):
    momentum = 0.9 if name == "sgd" else 0.0
    one, other = (ServerOptimizer({"vector": np.zeros(2), "scalar": np.array(1.0)}, name, lr=0.3, momentum=momentum) for _ in range(2))
    one.step(MEANS[0])
    other.load(one.state())
    a, b = one.step(MEANS[1]), other.step(MEANS[1])
    assert {name: part.tolist() for name, part in a.items()} == {name: part.tolist() for name, part in b.items()}


def test_arrays_keep_their_types_and_counters_their_values():
    server = ServerOptimizer({"vector": np.zeros(2, np.float32), "seen": np.array(7, np.int64)})
    found = server.step({"vector": np.ones(2), "seen": np.array(5.0)})
    assert [part.dtype.name for part in found.values()] == ["float32", "int64"]
    assert [part.tolist() for part in found.values()] == [[1.0, 1.0], 7]


@pytest.mark.parametrize(
    ("model", "options"),
    [
        ({"a": np.zeros(1)}, {"lr": 0}),
        ({"a": np.zeros(1)}, {"name": "sdg"}),
        ({"a": np.array(1)}, {}),
        ({"a": np.zeros(1)}, {"momentum": -5.0}),
        ({"a": np.zeros(1)}, {"momentum": 1.0}),
        ({"a": np.zeros(1)}, {"momentum": float("nan")}),
        ({"a": np.zeros(1), "b": np.zeros(1, complex)}, {}),
    ],
)
def test_bad_requests_are_refused(model, options):
    with pytest.raises(SartorError):
        ServerOptimizer(model, **options)


@pytest.mark.parametrize("broken", [{}, {"weight": None}, {"weight": {"value": 1}}, {"weight": {"memory": {}}}, {"x": 1}])
def test_a_state_of_another_server_is_refused(broken):
    server = ServerOptimizer({"weight": np.zeros(3)})
    with pytest.raises(SartorError, match="state"):
        server.load(broken)
    with pytest.raises(SartorError, match="another model"):
        server.load(ServerOptimizer({"weight": np.zeros((2, 3))}).state())
    with pytest.raises(SartorError, match="another model"):
        server.load(ServerOptimizer({"bias": np.zeros(3)}).state())
    for memory in (1, {"momentum_buffer": np.zeros(3)}, {"momentum_buffer": torch.zeros(2)}):
        with pytest.raises(SartorError, match="cannot be read"):
            server.load({"weight": {"value": torch.zeros(3), "memory": memory}})
