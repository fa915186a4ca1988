"""Reference networks: their sizes, what they take, and that examples never mix."""

import sys
import types

import pytest
import torch
from torch import nn
from torch.nn import functional

import sartor
from sartor import SartorError, usual
from sartor.models import available, build, from_config

SHAPES = {
    "digits": ((1, 8, 8), 10, None),
    "mnist": ((1, 28, 28), 10, None),
    "fashion-mnist": ((1, 28, 28), 10, None),
    "cifar10": ((3, 32, 32), 10, None),
    "svhn": ((3, 32, 32), 10, None),
    "adult": ((105,), 2, None),
    "names": ((20,), 18, 60),
    "imdb": ((256,), 2, 10_000),
    "snli": ((2, 32), 3, 10_000),
}
PAIRS = [
    ("digits-cnn", "digits"),
    ("logistic", "digits"),
    ("mnist-cnn", "mnist"),
    ("mnist-cnn", "fashion-mnist"),
    ("logistic", "mnist"),
    ("cifar-cnn", "cifar10"),
    ("cifar-cnn", "svhn"),
    ("mnist-cnn", "cifar10"),
    ("resnet18-gn", "cifar10"),
    ("resnet18-gn", "mnist"),
    ("logistic", "adult"),
    ("char-lstm", "names"),
    ("embedding", "names"),
    ("transformer", "names"),
    ("embedding", "imdb"),
    ("transformer", "imdb"),
    ("embedding", "snli"),
    ("transformer", "snli"),
]
ONE_OF_EACH = [pair for i, pair in enumerate(PAIRS) if pair[0] not in [name for name, _ in PAIRS[:i]]]


def built(model, data):
    shape, classes, vocabulary = SHAPES[data]
    torch.manual_seed(1)
    return build(model, shape=shape, classes=classes, vocabulary=vocabulary)


def batch(data, rows):
    shape, classes, vocabulary = SHAPES[data]
    generator = torch.Generator().manual_seed(2)
    labels = torch.randint(classes, (rows,), generator=generator)
    if vocabulary is None:
        return torch.randn(rows, *shape, generator=generator), labels
    tokens = torch.randint(1, vocabulary, (rows, *shape), generator=generator)
    lengths = torch.randint(0, shape[-1] + 1, (rows, *shape[:-1], 1), generator=generator)
    return tokens * (torch.arange(shape[-1]) < lengths), labels


@pytest.mark.parametrize(
    ("model", "data", "count"),
    [
        ("mnist-cnn", "mnist", 26_010),
        ("cifar-cnn", "cifar10", 550_570),
        ("resnet18-gn", "cifar10", 11_173_962),
        ("digits-cnn", "digits", 6_090),
    ],
)
def test_sizes_are_the_stated_ones(model, data, count):
    assert sum(parameter.numel() for parameter in built(model, data).parameters()) == count


@pytest.mark.parametrize(("model", "data"), PAIRS)
@pytest.mark.parametrize("rows", [0, 1, 3])
def test_logits_for_batches_of_any_size(model, data, rows):
    logits = built(model, data)(batch(data, rows)[0])
    assert logits.shape == (rows, SHAPES[data][1])
    assert torch.isfinite(logits).all()


@pytest.mark.parametrize(("model", "data"), [*ONE_OF_EACH, ("embedding", "snli"), ("transformer", "snli")])
def test_an_example_never_changes_another_ones_logits(model, data):
    network = built(model, data)
    inputs, _ = batch(data, 3)
    with torch.no_grad():
        torch.testing.assert_close(network(inputs)[1:2], network(inputs[1:2]), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(("model", "data"), [*ONE_OF_EACH, ("embedding", "snli"), ("transformer", "snli")])
@pytest.mark.filterwarnings("ignore:Full backward hook")
def test_gradients_per_example_are_those_of_the_example_alone(model, data):
    per_example = pytest.importorskip("opacus").GradSampleModule
    network = built(model, data)
    inputs, labels = batch(data, 3)
    functional.cross_entropy(network(inputs[:1]), labels[:1]).backward()
    alone = [parameter.grad.clone() for parameter in network.parameters()]
    network.zero_grad()
    hooked = per_example(network)
    functional.cross_entropy(hooked(inputs), labels, reduction="mean").backward()
    for parameter, expected in zip(network.parameters(), alone, strict=True):
        torch.testing.assert_close(parameter.grad_sample[0], expected, rtol=1e-3, atol=1e-5)


SLOW = ("resnet18-gn", "cifar10")


@pytest.mark.few(4)
@pytest.mark.parametrize(
    ("model", "data"),
    [pytest.param(*pair, marks=pytest.mark.long) if pair == SLOW else pair for pair in ONE_OF_EACH]
    + [("embedding", "snli"), ("transformer", "snli")],
)
def test_the_first_private_step_passes_its_self_check(model, data):
    """With more examples than it compares, which a state of three layers by three examples once looked like."""
    records = torch.utils.data.TensorDataset(*batch(data, 8))
    budgets = sartor.Budgets.from_groups([(5.0, 4), (10.0, 4)], delta=1e-2)
    plan = sartor.plan(budgets, steps=1, batch=7, accountant="rdp")
    result = sartor.fit(built(model, data), records, budgets, plan, progress=False)
    assert result.steps == 1


@pytest.mark.long
@pytest.mark.parametrize("seed", [1, 4, 6, 7])
def test_kinks_of_a_deep_network_are_not_taken_for_mixing(seed):
    """Near a kink the order of sums decides which way a gradient goes, so that an example alone differs by far more than rounding."""
    torch.manual_seed(seed)
    test_the_first_private_step_passes_its_self_check(*SLOW)


@pytest.mark.parametrize(("model", "data"), ONE_OF_EACH)
def test_nothing_mixes_examples_or_works_in_place(model, data):
    for module in built(model, data).modules():
        assert not isinstance(module, nn.modules.batchnorm._BatchNorm)
        assert not getattr(module, "inplace", False)


@pytest.mark.parametrize(("model", "data"), [("embedding", "imdb"), ("char-lstm", "names"), ("transformer", "snli")])
def test_padding_has_no_say(model, data):
    shape = SHAPES[data][0]
    network = built(model, data)
    tokens = torch.zeros(1, *shape, dtype=torch.int64)
    tokens[..., :4] = 5
    before = network(tokens)
    with torch.no_grad():
        network.embedding.weight[0] = 7.0
    torch.testing.assert_close(network(tokens), before, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("model", ["embedding", "char-lstm", "transformer"])
def test_an_example_without_words_has_finite_logits_and_gradients(model):
    network = built(model, "names")
    logits = network(torch.zeros(2, 20, dtype=torch.int64))
    logits.sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(parameter.grad).all() for parameter in network.parameters() if parameter.grad is not None)


def test_every_data_set_has_a_usual_model_that_fits():
    from sartor.data import available as data_sets

    assert set(data_sets()) == set(SHAPES)
    for data in data_sets():
        assert usual.recipe(data).model in available()
        assert built(usual.recipe(data).model, data)(batch(data, 2)[0]).shape == (2, SHAPES[data][1])


@pytest.mark.parametrize(
    ("name", "arguments", "words"),
    [
        ("mnist", {"shape": (1, 28, 28), "classes": 10}, "there is no model"),
        ("mnist-cnn", {"shape": (1, 8, 8), "classes": 10}, "too small"),
        ("cifar-cnn", {"shape": (105,), "classes": 2}, "needs images"),
        ("resnet18-gn", {"shape": (105,), "classes": 2}, "needs images"),
        ("embedding", {"shape": (20,), "classes": 2}, "needs the size of their vocabulary"),
        ("char-lstm", {"shape": (2, 20), "classes": 2, "vocabulary": 9}, "shape"),
        ("transformer", {"shape": (3, 20), "classes": 2, "vocabulary": 9}, "shape"),
        ("logistic", {"shape": (20,), "classes": 2, "vocabulary": 9}, "are tokens"),
        ("logistic", {"shape": (20,), "classes": 1}, "two classes"),
        ("logistic", {"shape": (), "classes": 2}, "positive sizes"),
    ],
)
def test_a_model_that_does_not_fit_is_refused_with_the_reason(name, arguments, words):
    with pytest.raises(SartorError, match=words):
        build(name, **arguments)


def test_hugging_face_without_the_library_names_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(SartorError, match=r"sartor\[transformers\]"):
        from_config(object(), 2)


class TinyConfig:
    pad_token_id = 1
    num_labels = 99


class TinyModel(nn.Module):
    """Takes what a Hugging Face classifier takes, and adds up what it was told."""

    def __init__(self, config):
        super().__init__()
        self.linear = nn.Linear(2, config.num_labels)

    def forward(self, input_ids, attention_mask, position_ids):
        assert input_ids.shape == attention_mask.shape == position_ids.shape
        features = torch.stack([attention_mask.sum(1), position_ids.sum(1)], 1)
        return types.SimpleNamespace(logits=self.linear(features.float()))


def test_the_hugging_face_adapter_gives_logits_and_leaves_the_configuration_alone(monkeypatch):
    library = types.SimpleNamespace(AutoModelForSequenceClassification=types.SimpleNamespace(from_config=TinyModel))
    monkeypatch.setitem(sys.modules, "transformers", library)
    config = TinyConfig()
    model = from_config(config, 3)
    assert config.num_labels == 99
    tokens = torch.tensor([[5, 6, 1], [5, 1, 1]])
    expected = model.model.linear(torch.tensor([[2.0, 3.0], [1.0, 3.0]]))
    torch.testing.assert_close(model(tokens), expected)
    assert model(torch.ones(4, 2, 3, dtype=torch.int64)).shape == (4, 3)


def test_a_real_hugging_face_configuration_becomes_a_classifier():
    library = pytest.importorskip("transformers", reason="transformers is not installed")
    config = library.BertConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16)
    assert from_config(config, 3)(torch.randint(0, 50, (2, 7))).shape == (2, 3)
