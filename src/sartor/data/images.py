"""Pixels to inputs: bytes to [0, 1], then published constants per channel. Nothing is measured on the data at hand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray


def normalised(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Images (rows, channels, height, width) of bytes as float32: (pixel / 255 - mean) / std per channel.

    Example:
        >>> normalised(np.full((1, 1, 2, 2), 255, np.uint8), [0.5], [0.5]).unique().tolist()
        [1.0]
    """
    images = torch.from_numpy(np.array(pixels, np.float32, order="C"))
    per_channel = (1, len(mean), 1, 1)
    return images.div_(255).sub_(torch.tensor(mean).reshape(per_channel)).div_(torch.tensor(std).reshape(per_channel))
