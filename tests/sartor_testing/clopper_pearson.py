"""A lower bound on epsilon from scores, by exact binomial intervals at a few quantiles: independent of the library's own bounds."""

import numpy as np
from scipy.stats import beta

_SHARES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def lower_bound(scores, delta: float, confidence: float = 0.999) -> float:
    """The largest epsilon that scores refute, both ways round, each threshold at its share of the error."""
    inside, outside = np.asarray(scores.inside), np.asarray(scores.outside)
    everybody = np.concatenate([inside, outside])
    error = (1 - confidence) / (4 * len(_SHARES))
    best = 0.0
    for one, other in ((inside, outside), (-outside, -inside)):
        pooled = everybody if one is inside else -everybody
        for threshold in np.quantile(pooled, 1 - np.array(_SHARES)):
            hits, misses = int((one > threshold).sum()), int((other > threshold).sum())
            least = beta.ppf(error, hits, len(one) - hits + 1) if hits else 0.0
            most = beta.ppf(1 - error, misses + 1, len(other) - misses) if misses < len(other) else 1.0
            if least > delta:
                best = max(best, float(np.log((least - delta) / most)))
    return best


def lower_bounds(by_group, delta: float, confidence: float = 0.999) -> list[float]:
    """That of each group, in their order."""
    return [lower_bound(by_group[group], delta, confidence) for group in sorted(by_group)]
