"""How likely anything of a holder is used at all: what is rarer than delta costs nothing, whatever it would show."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sartor.exposure import Composition, Exposure, Filtered, SampledGaussian, SampledRecords

Array = NDArray[np.float64]


def ever(rate: Array, steps: Array | float) -> Array:
    """The probability of being drawn at least once in so many steps at a rate."""
    out: Array = -np.expm1(steps * np.log1p(-np.minimum(rate, 1 - 1e-16)))
    return out


def probability_of_use(exposure: Exposure) -> float:
    """The probability that anything of the holder is used at all: a bound on the total variation."""
    return float(-np.expm1(_log_never(exposure)))


def _log_never(exposure: Exposure) -> float:
    if isinstance(exposure, SampledGaussian | SampledRecords):
        if exposure.steps == 0 or exposure.rate == 0 or np.isinf(exposure.noise_multiplier):
            return 0.0
        coins = exposure.steps * (exposure.records if isinstance(exposure, SampledRecords) else 1)
        return float(coins * np.log1p(-exposure.rate)) if exposure.rate < 1 else -np.inf
    if isinstance(exposure, Filtered):
        return _log_never(SampledGaussian(exposure.rate, exposure.noise_multiplier, exposure.stretch * exposure.most_stretches))
    if isinstance(exposure, Composition):
        return float(sum(_log_never(part) for part in exposure.parts))
    used = exposure.probability * probability_of_use(exposure.exposure)
    return float(np.log1p(-used)) if used < 1 else -np.inf
