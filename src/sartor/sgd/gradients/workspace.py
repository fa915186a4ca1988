"""Memory that is used again in every step.

Tensors of tens of megabytes come from the operating system page by page and go back to it; asking for them anew in each step can take
longer than computing what they hold.
"""

from __future__ import annotations

import torch
from torch import Tensor

SLACK = 1.1


class Workspace:
    """Named buffers. What `take` returns holds anything, and is valid until the same name is taken again."""

    def __init__(self) -> None:
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, name: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Tensor:
        """A tensor of this shape in the buffer of that name, which grows where it must."""
        size = 1
        for side in shape:
            size *= side
        buffer = self._buffers.get((name, dtype))
        if buffer is None or buffer.numel() < size:
            buffer = torch.empty(int(size * SLACK), dtype=dtype)
            self._buffers[name, dtype] = buffer
        return buffer[:size].view(shape)

    def clear(self) -> None:
        """Give the memory back."""
        self._buffers.clear()
