"""The common generators of torch, NumPy and Python, put aside for as long as the library looks at something, and put back."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def forked(seed: int | None = None) -> Iterator[None]:
    """Put the common generators back afterwards, however it ends; inside they go on from where they are, or from a seed."""
    numbers, own = np.random.get_state(), random.getstate()  # noqa: NPY002 - the common one, which users draw from
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            reseed(seed)
        try:
            yield
        finally:
            np.random.set_state(numbers)  # noqa: NPY002
            random.setstate(own)


def reseed(seed: int) -> None:
    """Begin the common generators at a seed; only inside of `forked`."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
