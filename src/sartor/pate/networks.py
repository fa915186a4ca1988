"""The convolutional network of teachers and students, and how one network is trained and asked.

Training is the same everywhere: Adam on batches of one fixed size. An epoch goes through all records in a random order and fills its last
batch with records of a second order, so that batch normalisation never meets a batch of another size; a slice with fewer records than a
batch, even a single one, is repeated to fill it. Which records meet in a batch depends on the number of records and the seed alone.

Images may be augmented by small turns and shifts: more to learn from the few records that one model has. Each image is moved by numbers of
its own and made from its own pixels alone, so a record's copies stay with the model that holds the record, and augmentation changes nothing
in the privacy of an ensemble.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from sartor.errors import SartorError

DEGREES, SHIFT = 7.5, 0.07  # section 5.1 of the individualized PATE paper

_BLOCK = 1024  # images moved at once: their grids take twice the memory of one channel


def augmented(images: Tensor, generator: torch.Generator, *, degrees: float = DEGREES, shift: float = SHIFT) -> Tensor:
    """Each image of (rows, channels, height, width) turned by up to `degrees` and shifted by up to `shift` of its height and width.

    Pixels from beyond the edge are those of the edge, so that the background keeps its colour however it was normalised.

    >>> images = torch.rand(3, 1, 8, 8)
    >>> augmented(images, torch.Generator().manual_seed(0)).shape
    torch.Size([3, 1, 8, 8])
    """
    if images.dim() != 4 or not images.is_floating_point():
        raise SartorError(
            "only images of shape (channels, height, width) can be turned and shifted; train on other inputs with augment=False."
        )
    rows, _, height, width = images.shape
    drawn = torch.rand(rows, 3, generator=generator).mul_(2).sub_(1)  # at once for all, so that blocks change nothing
    angle, right, down = (drawn * torch.tensor([math.radians(degrees), 2 * shift, 2 * shift])).unbind(1)
    cos, sin = angle.cos(), angle.sin()
    upper = torch.stack([cos, -sin * (height / width), right], 1)
    lower = torch.stack([sin * (width / height), cos, down], 1)
    motion = torch.stack([upper, lower], 1).to(images.dtype)
    return torch.cat([_moved(part, by) for part, by in zip(images.split(_BLOCK), motion.split(_BLOCK), strict=True)])


def _moved(images: Tensor, motion: Tensor) -> Tensor:
    grid = functional.affine_grid(motion, list(images.shape), align_corners=False)
    return functional.grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


_ASKED = (
    32  # queries at once: memory for larger blocks is fetched from the system and given back each time, which takes longer than the work
)


@dataclass(frozen=True)
class Training:
    """How a network is trained: `epochs` rounds of Adam at `lr` on batches of `batch`, images turned and shifted if `augment`."""

    epochs: int = 20
    batch: int = 32
    lr: float = 1e-3
    augment: bool = True

    def __post_init__(self) -> None:
        for name, least in {"epochs": 1, "batch": 2}.items():
            if getattr(self, name) < least:
                raise SartorError(f"{name} must be {least} or more, not {getattr(self, name)}.")
        if not 0 < self.lr < float("inf"):
            raise SartorError(f"lr must be a positive number, not {self.lr}.")

    def steps(self, records: int) -> int:
        """How many batches a network with so many records takes."""
        return self.epochs * -(-records // self.batch)


def teacher_network(shape: Sequence[int], classes: int) -> nn.Module:
    """The network of Table 3 of the individualized PATE paper, for images of any shape (channels, height, width).

    Weights start from He's uniform distribution, those of the last layer from Glorot's, and biases at zero. Pixels are kept with their
    channels side by side, as in the paper's TensorFlow, which halves the time of pooling.

    >>> sum(p.numel() for p in teacher_network((1, 28, 28), 10).parameters())
    542494
    """
    if len(shape) != 3:
        raise SartorError(
            f"the teachers' network needs images of shape (channels, height, width), not inputs of shape {tuple(shape)}; "
            "for tables use EstimatorTeachers with a scikit-learn classifier."
        )
    channels, height, width = shape
    left = ((height - 2) // 2) * ((width - 2) // 2)
    if min(height, width) < 4:
        raise SartorError(f"images of shape {tuple(shape)} are too small for this network; it needs 4 by 4 pixels or more.")
    layers: OrderedDict[str, nn.Module] = OrderedDict(
        convolution=nn.Conv2d(channels, 32, 3),
        active=nn.ReLU(inplace=True),
        normal=nn.BatchNorm2d(32),
        pool=nn.MaxPool2d(2),
        flat=_Flat(),
        dense=nn.Linear(32 * left, 100),
        dense_active=nn.ReLU(inplace=True),
        dense_normal=nn.BatchNorm1d(100),
        output=nn.Linear(100, classes),
    )
    for name, layer in layers.items():
        if isinstance(layer, nn.Conv2d | nn.Linear):
            nn.init.xavier_uniform_(layer.weight) if name == "output" else nn.init.kaiming_uniform_(layer.weight, nonlinearity="relu")
            nn.init.zeros_(layer.bias) if layer.bias is not None else None
    network: nn.Module = nn.Sequential(layers).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return network


class _Flat(nn.Module):
    """Flattens pixel by pixel instead of plane by plane: a view where channels are side by side, and its gradient is one too."""

    def forward(self, images: Tensor) -> Tensor:
        return images.permute(0, 2, 3, 1).flatten(1)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch on one thread, and as before afterwards."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


@contextmanager
def drawing(seed: int) -> Iterator[None]:
    """Torch's global random numbers from `seed` on, and as before afterwards."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        yield


def batches(inputs: Tensor, labels: Tensor, how: Training, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
    """All batches of a training, each of exactly `how.batch` records; none where there are no records."""
    records = len(inputs)
    if not records:
        return
    generator = torch.Generator().manual_seed(seed)
    drawn = -(-records // how.batch) * how.batch
    for _ in range(how.epochs):
        orders = [torch.randperm(records, generator=generator) for _ in range(-(-drawn // records))]
        chosen = torch.cat(orders)[:drawn]
        x = inputs[chosen]
        x = augmented(x, generator) if how.augment else x
        yield from zip(x.split(how.batch), labels[chosen].split(how.batch), strict=True)


def train(model: nn.Module, inputs: Tensor, labels: Tensor, how: Training, seed: int) -> nn.Module:
    """Train a network in place on its records alone."""
    optimizer = torch.optim.Adam(model.parameters(), lr=how.lr, fused=True)
    model.train()
    for x, y in batches(inputs, labels, how, seed):
        optimizer.zero_grad()
        functional.cross_entropy(model(x), y).backward()
        optimizer.step()
    return model


@torch.no_grad()
def predict(model: nn.Module, queries: Tensor | NDArray[np.generic]) -> NDArray[np.int16]:
    """The class that a network finds for each query."""
    model.eval()
    found = np.empty(len(queries), np.int16)
    for start in range(0, len(queries), _ASKED):
        part = queries[start : start + _ASKED]
        x = part if isinstance(part, Tensor) else torch.from_numpy(np.array(part))
        found[start : start + len(part)] = model(x).argmax(1).numpy()
    return found
