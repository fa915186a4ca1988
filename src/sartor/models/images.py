"""Networks for images. Batches come first in every call, no layer mixes examples, and nothing works in place.

ResNet-18 (He et al. 2016) is here with group normalisation, as batch normalisation would mix examples.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from sartor.errors import SartorError


class ConvNet(nn.Module):
    """Convolutions, then a classifier with one hidden layer whose inputs follow from the shape of one image."""

    def __init__(self, features: nn.Module, *, shape: Sequence[int], hidden: int, classes: int, activation: type[nn.Module]) -> None:
        super().__init__()
        self.features = features
        self.classifier = nn.Sequential(nn.Linear(_width(features, shape), hidden), activation(), nn.Linear(hidden, classes))

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        out: Tensor = self.classifier(self.features(images).flatten(1))
        return out


def mnist_cnn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """The network for MNIST of the IDP-SGD paper (after Tramèr and Boneh): 26,010 parameters for 1x28x28 images in ten classes.

    The paper names no activation; tanh is the usual one with clipped gradients.
    """
    channels = _channels("mnist-cnn", shape)
    features = nn.Sequential(
        nn.Conv2d(channels, 16, 8, stride=2, padding=3),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
        nn.Conv2d(16, 32, 4, stride=2),
        nn.Tanh(),
        nn.MaxPool2d(2, 1),
    )
    return ConvNet(features, shape=shape, hidden=32, classes=classes, activation=nn.Tanh)


def cifar_cnn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """The network for CIFAR-10 of the IDP-SGD paper (after Tramèr and Boneh): 550,570 parameters for 3x32x32 images.

    The paper names no activation; tanh is the usual one with clipped gradients.
    """
    layers: list[nn.Module] = []
    before = _channels("cifar-cnn", shape)
    for width in (32, 64, 128):
        layers += [nn.Conv2d(before, width, 3, padding=1), nn.Tanh(), nn.Conv2d(width, width, 3, padding=1), nn.Tanh(), nn.MaxPool2d(2)]
        before = width
    return ConvNet(nn.Sequential(*layers), shape=shape, hidden=128, classes=classes, activation=nn.Tanh)


def digits_cnn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """A small network for 1x8x8 digits: 6,090 parameters for ten classes."""
    features = nn.Sequential(
        nn.Conv2d(_channels("digits-cnn", shape), 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 16, 3, padding=1),
        nn.Tanh(),
        nn.MaxPool2d(2),
    )
    return ConvNet(features, shape=shape, hidden=48, classes=classes, activation=nn.Tanh)


def _channels(model: str, shape: Sequence[int]) -> int:
    if len(shape) != 3:
        raise SartorError(f"{model} needs images of shape (channels, height, width), not inputs of shape {tuple(shape)}.")
    return shape[0]


def _width(features: nn.Module, shape: Sequence[int]) -> int:
    """How many numbers the convolutions leave of one image."""
    try:
        with torch.no_grad():
            return int(features(torch.zeros(1, *shape)).numel())
    except RuntimeError:
        raise SartorError(f"images of shape {tuple(shape)} are too small for this network.") from None


_NORM_GROUPS = 32


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_NORM_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(_NORM_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.GroupNorm(_NORM_GROUPS, width))
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """The block's output for a batch."""
        out: Tensor = self.activation(self.straight(images) + self.shortcut(images))
        return out


class ResNet18(nn.Module):
    """Four stages of two blocks, the mean over the picture, one linear layer: 11,173,962 parameters for 3x32x32 in ten classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(_NORM_GROUPS, 64), nn.ReLU()]
        before = 64
        for width, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
            layers += [Block(before, width, stride), Block(width, width, 1)]
            before = width
        self.features = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits of a batch of images."""
        out: Tensor = self.classifier(self.features(images).mean((2, 3)))
        return out


def resnet18_gn(*, shape: Sequence[int], classes: int) -> nn.Module:
    """ResNet-18 with group normalisation for images of any size."""
    if len(shape) != 3:
        raise SartorError(f"resnet18-gn needs images of shape (channels, height, width), not inputs of shape {tuple(shape)}.")
    return ResNet18(shape[0], classes)
