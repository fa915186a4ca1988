"""What a model shows of a record's membership: one number for each record, higher where the model is surer of the record's own target.

"log-odds" is log(p / (1 - p)) of the true class, which is close to Gaussian over models (Carlini et al. 2022); "logit" is the network's raw
output at the true class, which the authors of IDP-SGD took; "loss" is the negative loss, for targets that are not classes. A holder with
several records has the mean of theirs. Sensitive: signals are of private records, without noise.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.sgd.loss import Loss

Array = NDArray[np.float64]

NAMES = ("log-odds", "logit", "loss")
_AT_ONCE = 1024


def of_outputs(name: str, outputs: Tensor, targets: Tensor, loss: Loss) -> Tensor:
    """The signal of each record from a model's outputs for it, in float64.

    >>> outputs, targets = torch.tensor([[0.0, 0.0, 2.0]]), torch.tensor([2])
    >>> odds = outputs.exp()[0, 2] / outputs.exp()[0, :2].sum()
    >>> torch.allclose(of_outputs("log-odds", outputs, targets, Loss(None)).exp().float(), odds)
    True
    """
    check_name(name)
    if name == "loss":
        return -loss(outputs, targets).double()
    if outputs.dim() != 2 or targets.dim() != 1 or targets.is_floating_point():
        raise SartorError(
            f'the signal "{name}" is of a true class, so it needs outputs of shape (records, classes) and one class for each record; '
            'for other targets take signal="loss".'
        )
    scores, place = outputs.double(), targets[:, None]
    own = scores.gather(1, place)[:, 0]
    if name == "logit":
        return own
    return own - torch.logsumexp(scores.scatter(1, place, -torch.inf), 1)


def all_of_outputs(outputs: Tensor, targets: Tensor, loss: Loss) -> dict[str, Tensor]:
    """Every signal that there is of each record: all of them where targets are classes, or else the loss."""
    of_classes = outputs.dim() == 2 and targets.dim() == 1 and not targets.is_floating_point()
    return {name: of_outputs(name, outputs, targets, loss) for name in (NAMES if of_classes else ("loss",))}


def check_name(name: str) -> None:
    """Refuse a signal that there is not."""
    if name not in NAMES:
        raise SartorError(f'there is no signal "{name}"; there are {", ".join(NAMES)}.')


@torch.no_grad()
def signals_of(
    model: nn.Module,
    dataset: Dataset[Any],
    *,
    name: str = "log-odds",
    ownership: Ownership | None = None,
    loss: Callable[[Any, Any], Tensor] | None = None,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Array:
    """The signal of each holder in one model, which may be a released one.

    >>> records = TensorDataset(torch.randn(5, 3), torch.tensor([0, 1, 1, 0, 1]))
    >>> signals_of(nn.Linear(3, 2), records).shape
    (5,)
    """
    measure = Loss(loss)
    with evaluated(model):
        found = [of_outputs(name, model(inputs), targets, measure) for inputs, targets in batches(dataset, collate)]
    return by_holder(torch.cat(found).numpy(), ownership)


@contextmanager
def evaluated(model: nn.Module) -> Iterator[nn.Module]:
    """A model whose modules are in evaluation, and afterwards as they were."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield model
    finally:
        for module, mode in modes:
            module.training = mode


def by_holder(values: Array, ownership: Ownership | None) -> Array:
    """The mean over each holder's records, in the last dimension."""
    if ownership is None:
        return values
    added = np.apply_along_axis(lambda row: np.bincount(ownership.of_record, row, ownership.holders), -1, values)
    return np.asarray(added / ownership.counts)


def batches(dataset: Any, collate: Callable[[list[Any]], Any] | None) -> Iterator[tuple[Any, Any]]:
    """All records in their order, as batches of inputs and targets."""
    plain = type(dataset) is TensorDataset and collate is None
    parts = zip(*(tensor.split(_AT_ONCE) for tensor in dataset.tensors), strict=True) if plain else None
    for batch in DataLoader(dataset, batch_size=_AT_ONCE, collate_fn=collate) if parts is None else parts:
        if not isinstance(batch, list | tuple) or len(batch) != 2:
            raise SartorError("attacks need records that are pairs of input and target.")
        yield batch[0], batch[1]
