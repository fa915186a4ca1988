"""Random numbers of a test's own: the common generators of torch, NumPy and Python under a seed, and as they were afterwards."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch


@contextmanager
def forked(seed: int | None = None) -> Iterator[None]:
    """Run what is inside under the common random numbers of a seed, or on from where they are; all go on afterwards as before.

    >>> with forked(1):
    ...     first = random.random(), float(torch.rand(()))
    >>> with forked(1):
    ...     first == (random.random(), float(torch.rand(())))
    True
    """
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        try:
            if seed is not None:
                reseed(seed)
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def reseed(seed: int) -> None:
    """Begin the common random numbers anew, inside of `forked`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
