"""Arrays that cannot be changed: not in place, not by asking for write access, not through the array they were made from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray


def immutable(values: ArrayLike, kind: type = np.float64) -> NDArray[Any]:
    """A copy of the values on memory that NumPy refuses to write to."""
    array: NDArray[Any] = np.ascontiguousarray(values, dtype=kind)
    return np.frombuffer(array.tobytes(), dtype=kind).reshape(array.shape)
