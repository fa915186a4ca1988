"""Recurrent layers against those of torch: outputs, states, gradients, weights and what they refuse."""

import copy
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from sartor import SartorError, layers
from sartor.models import build
from sartor.sgd.gradients import PerExample
from sartor_testing.naive import naive_gradients, naive_sums

KINDS = {"LSTM": {}, "GRU": {}, "RNN": {}, "RNN of rectifiers": {"nonlinearity": "relu"}}


def pair(kind, **settings):
    """The same layer of ours and of torch, each made under the same seed."""
    found = []
    for room in (layers, nn):
        torch.manual_seed(1)
        found.append(getattr(room, kind.split(" ")[0])(3, 4, **KINDS[kind], **settings))
    return found


def flat(state):
    return state if isinstance(state, tuple) else (state,)


@settings(max_examples=40, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    num_layers=st.integers(1, 3),
    bidirectional=st.booleans(),
    bias=st.booleans(),
    batch_first=st.booleans(),
    begin=st.booleans(),
    examples=st.integers(0, 3),
    positions=st.integers(1, 4),
)
def test_outputs_states_and_gradients_are_those_of_torch(kind, begin, examples, positions, **settings):
    ours, theirs = pair(kind, **settings)
    torch.manual_seed(2)
    shape = (examples, positions, 3) if settings["batch_first"] else (positions, examples, 3)
    inputs = torch.randn(shape)
    places = settings["num_layers"] * (2 if settings["bidirectional"] else 1)
    states = tuple(torch.randn(places, examples, 4) for _ in range(2)) if "LSTM" in kind else torch.randn(places, examples, 4)
    found = []
    for layer in (ours, theirs):
        x = inputs.clone().requires_grad_()
        output, final = layer(x, states) if begin else layer(x)
        (output.square().sum() + sum((i + 2) * state.sum() for i, state in enumerate(flat(final)))).backward()
        gradients = layer.state_dict(keep_vars=True)
        found.append([output, *flat(final), x.grad, *(gradients[name].grad for name in theirs.state_dict())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_the_state_dictionary_is_that_of_torch(kind):
    ours, theirs = pair(kind, num_layers=2, bidirectional=True)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value)  # the same seed gives the same weights
    torch.manual_seed(3)
    fresh, inside = nn.Sequential(type(ours)(3, 4, num_layers=2, bidirectional=True, **KINDS[kind])), nn.Sequential(theirs)
    fresh.load_state_dict(inside.state_dict())
    inside.load_state_dict(copy.deepcopy(fresh).state_dict())
    assert torch.equal(fresh[0].state_dict()["weight_hh_l1_reverse"], ours.state_dict()["weight_hh_l1_reverse"])
    fresh.load_state_dict(dict(fresh.named_parameters()))  # parameters by the names that optimizers and checks see
    with pytest.raises(RuntimeError, match="weight_ih_l7"):
        fresh.load_state_dict({**inside.state_dict(), "0.weight_ih_l7": torch.zeros(1)})


class Reader(nn.Module):
    """Positions first, initial states that depend on the example, and final states that are read."""

    def __init__(self, kind):
        super().__init__()
        self.begin = nn.Linear(3, 4)
        self.inner = getattr(layers, kind)(3, 4, num_layers=2, bidirectional=True)
        self.out = nn.Linear(8, 2)

    def forward(self, x):
        begin = torch.stack([self.begin(x[:, 0])] * 4)
        outputs, final = self.inner(x.transpose(0, 1), (begin, begin.tanh()) if isinstance(self.inner, layers.LSTM) else begin)
        return self.out(outputs[-1]) + flat(final)[-1][1].sum(1, keepdim=True)


@pytest.mark.parametrize("kind", ["LSTM", "GRU", "RNN"])
@pytest.mark.parametrize("examples", [1, 4, 5])
def test_gradients_per_example_equal_a_naive_loop(kind, examples):
    torch.manual_seed(4)
    model, inputs, thresholds = Reader(kind), torch.randn(examples, 4, 3), torch.linspace(0.05, 3.0, examples)
    expected, norms = naive_sums(naive_gradients(model, (inputs,), lambda output, i: output.square().sum()), thresholds)
    engine = PerExample(model)
    with engine.batch(thresholds):
        model(inputs).square().sum().backward()
        sums, found = engine.sums_and_norms()
    torch.testing.assert_close(found.double(), norms, rtol=1e-5, atol=1e-7)
    for name, value in expected.items():
        torch.testing.assert_close(sums[name].double(), value, rtol=1e-4, atol=1e-5)


def test_dropout_is_between_layers_and_off_in_evaluation():
    torch.manual_seed(5)
    layer, inputs = layers.LSTM(3, 4, num_layers=2, dropout=0.5), torch.randn(4, 5, 3)
    assert not torch.equal(layer(inputs)[0], layer(inputs)[0])
    assert torch.equal(layer.eval()(inputs)[0], layer(inputs)[0])
    alone = layers.LSTM(3, 4, dropout=0.5)
    assert torch.equal(alone(inputs)[0], alone(inputs)[0])


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        (lambda: layers.LSTM(3, 0), "at least 1"),
        (lambda: layers.RNN(3, 4, nonlinearity="sine"), "'tanh' or 'relu'"),
        (lambda: layers.LSTM(3, 4)(nn.utils.rnn.pack_sequence([torch.randn(2, 3)])), "pad packed sequences"),
        (lambda: layers.LSTM(3, 4)(torch.randn(5, 3)), "three dimensions"),
        (lambda: layers.LSTM(3, 4)(torch.randn(0, 5, 3)), "at least one position"),
        (lambda: layers.GRU(3, 4)(torch.randn(2, 5, 3), torch.zeros(1, 4, 4)), r"shape \(1, 5, 4\)"),
        (lambda: layers.LSTM(3, 4)(torch.randn(2, 5, 3), (torch.zeros(1, 5, 4),)), "2 of them"),
    ],
)
def test_what_they_do_not_do_is_refused_with_the_reason(call, reason):
    with pytest.raises(SartorError, match=reason):
        call()


def test_the_character_model_needs_no_other_library(monkeypatch):
    for name in ("opacus", "opacus.layers"):
        monkeypatch.setitem(sys.modules, name, None)
    model = build("char-lstm", shape=(20,), classes=18, vocabulary=60)
    assert isinstance(model.lstm, layers.LSTM)
    assert model(torch.ones(2, 20, dtype=torch.int64)).shape == (2, 18)


def test_directions_that_share_a_layer_have_a_state_like_any_other():
    shared = layers.LSTM(3, 4, num_layers=2)
    shared.of_states[1] = shared.of_states[0]
    state = shared.state_dict()
    assert sorted(state) == sorted(torch.nn.LSTM(3, 4, num_layers=2).state_dict())
    assert torch.equal(state["weight_hh_l1"], state["weight_hh_l0"])
    other = layers.LSTM(3, 4, num_layers=2)
    other.load_state_dict(state)
    inputs = torch.randn(5, 2, 3)
    assert torch.equal(other(inputs)[0], shared(inputs)[0])
