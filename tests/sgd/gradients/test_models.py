"""Every reference model against a naive loop and against Opacus, and memory that does not grow with the vocabulary."""

import warnings

import pytest
import torch
from opacus.grad_sample import GradSampleModule
from torch import nn

from sartor.models import build, from_config
from sartor.sgd.gradients import PerExample
from sartor_testing.naive import naive_gradients, naive_sums

MODELS = {
    "mnist-cnn": ((1, 28, 28), 10, None),
    "cifar-cnn": ((3, 32, 32), 10, None),
    "digits-cnn": ((1, 8, 8), 10, None),
    "resnet18-gn": ((3, 32, 32), 10, None),
    "logistic": ((14,), 2, None),
    "embedding": ((12,), 2, 50),
    "embedding on pairs": ((2, 12), 3, 50),
    "char-lstm": ((9,), 18, 30),
    "transformer": ((10,), 2, 50),
}
SLOW = ("resnet18-gn",)  # its layers are tried one by one


def batch(name, examples):
    shape, classes, vocabulary = MODELS[name]
    torch.manual_seed(3)
    model = build(name.split(" ")[0], shape=shape, classes=classes, vocabulary=vocabulary)
    inputs = torch.randn(examples, *shape) if vocabulary is None else torch.randint(0, vocabulary, (examples, *shape))
    return model, inputs, torch.randint(0, classes, (examples,))


def losses(labels):
    return lambda output, i: nn.functional.cross_entropy(output, labels[i : i + 1])


def close(found, expected, tolerance=1e-5):
    size = torch.sqrt(sum(value.square().sum() for value in expected.values()))
    away = torch.sqrt(sum((found[name].double() - expected[name]).square().sum() for name in expected))
    assert away <= (tolerance + 2.0**-16) * size


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name in SLOW else name for name in MODELS])
def test_reference_models_equal_a_naive_loop(name):
    model, inputs, labels = batch(name, 4)
    model.double()  # deep networks have kinks, over which the rounding of float32 would push one batch and not the other
    inputs = inputs.double() if inputs.is_floating_point() else inputs
    each = naive_gradients(model, (inputs,), losses(labels))
    _, norms = naive_sums(each, torch.ones(4))
    thresholds = norms * torch.tensor([0.01, 0.5, 0.9, 2.0])  # three are clipped, each to another size, one is not
    expected, _ = naive_sums(each, thresholds)
    engine = PerExample(model)
    with engine.batch(thresholds):
        nn.functional.cross_entropy(model(inputs), labels).backward()
        sums, found = engine.sums_and_norms(scale=4)
    torch.testing.assert_close(found.double(), norms, rtol=1e-5, atol=0)
    close(sums, expected)


@pytest.mark.parametrize("name", ["mnist-cnn", "digits-cnn", "embedding", "char-lstm"])
def test_one_threshold_gives_what_opacus_gives(name):
    model, inputs, labels = batch(name, 6)
    model.double()
    inputs = inputs.double() if inputs.is_floating_point() else inputs.clamp_min(1)  # Opacus trains the padding row, torch does not
    state = {key: value.clone() for key, value in model.state_dict().items()}
    engine = PerExample(model)
    with engine.batch(torch.full((6,), 0.3)):
        nn.functional.cross_entropy(model(inputs), labels).backward()
        ours = engine.clipped_sums(scale=6)
    engine.detach()
    other, _, _ = batch(name, 6)
    other.double().load_state_dict(state)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        theirs = GradSampleModule(other, loss_reduction="mean")
        nn.functional.cross_entropy(theirs(inputs), labels).backward()
    named = {n: p.grad_sample for n, p in other.named_parameters()}
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in named.values()]).norm(dim=0)
    factors = torch.clamp(0.3 / norms, max=1.0)
    close(ours, {n: torch.einsum("b,b...->...", factors, g).double() for n, g in named.items()})


def test_a_hugging_face_model_equals_a_naive_loop():
    transformers = pytest.importorskip("transformers", reason="the extra sartor[transformers] is not installed")
    config = transformers.BertConfig(
        vocab_size=40,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=24,
        max_position_embeddings=16,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
    )
    torch.manual_seed(0)
    model = from_config(config, 3)
    inputs, labels = torch.randint(1, 40, (3, 7)), torch.tensor([0, 1, 2])
    thresholds = torch.tensor([0.1, 1.0, 100.0])
    expected, norms = naive_sums(naive_gradients(model, (inputs,), losses(labels)), thresholds)
    engine = PerExample(model)
    with engine.batch(thresholds):
        nn.functional.cross_entropy(model(inputs), labels, reduction="sum").backward()
        sums, found = engine.sums_and_norms()
    torch.testing.assert_close(found.double(), norms, rtol=1e-5, atol=0)
    close(sums, expected)


def test_embeddings_never_form_examples_times_vocabulary():
    words = nn.Embedding(1_000_000, 4)
    engine = PerExample(words)
    most = 0

    class Largest(torch.utils._python_dispatch.TorchDispatchMode):
        def __torch_dispatch__(self, function, kinds, arguments=(), keywords=None):
            nonlocal most
            found = function(*arguments, **(keywords or {}))
            if isinstance(found, torch.Tensor):
                most = max(most, found.numel())
            return found

    with Largest(), engine.batch(torch.ones(8)):
        words(torch.randint(0, 1_000_000, (8, 5))).sum().backward()
        engine.clipped_sums()
    assert most <= words.weight.numel()
