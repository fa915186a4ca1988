"""Numbers that look random, one from each state, many at once: for places and orders that follow from a secret number.

They are not for coins or noise, which need a cryptographic stream (`sartor.run.stream`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]

STEP = np.uint64(0x9E3779B97F4A7C15)
"""What is added from one state to the next."""
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def mixed(state: Words) -> Words:
    """One number from each state (the finaliser of splitmix64).

    >>> mixed(np.array([1, 2], np.uint64)).tolist()
    [6238072747940578789, 15839785061582574730]
    """
    z = (state ^ (state >> np.uint64(30))) * _FIRST
    z = (z ^ (z >> np.uint64(27))) * _SECOND
    return np.asarray(z ^ (z >> np.uint64(31)))
