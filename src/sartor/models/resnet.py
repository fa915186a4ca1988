"""ResNet-18 for small images (He et al. 2016), with group normalisation: batch normalisation would mix examples."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn

from sartor.errors import SartorError

_GROUPS = 32


class Block(nn.Module):
    """Two convolutions beside a shortcut."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.straight = nn.Sequential(
            nn.Conv2d(before, width, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.GroupNorm(_GROUPS, width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != width:
            self.shortcut = nn.Sequential(nn.Conv2d(before, width, 1, stride=stride, bias=False), nn.GroupNorm(_GROUPS, width))
        self.activation = nn.ReLU()

    def forward(self, images: Tensor) -> Tensor:
        """The block's output for a batch."""
        out: Tensor = self.activation(self.straight(images) + self.shortcut(images))
        return out


class ResNet18(nn.Module):
    """Four stages of two blocks, the mean over the picture, one linear layer: 11,173,962 parameters for 3x32x32 in ten classes."""

    def __init__(self, channels: int, classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = [nn.Conv2d(channels, 64, 3, padding=1, bias=False), nn.GroupNorm(_GROUPS, 64), nn.ReLU()]
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
