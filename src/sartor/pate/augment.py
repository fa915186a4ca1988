"""Small turns and shifts of images: more to learn from the few records that one model has.

Each image is moved by numbers of its own and made from its own pixels alone, so a record's copies stay with the model that holds the
record, and augmentation changes nothing in the privacy of an ensemble.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
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
