"""How much noise a consensus of teachers survives: noise and threshold from public numbers alone, before anybody has voted.

More noise makes a vote cheaper, so more queries are paid for; too much drowns what the teachers agree on. So the most is added that a
plausible consensus still survives: half of the teachers know the answer, the others guess, and the noisy maximum is right nineteen times in
twenty. The answer leads by half of the votes then, whatever the number of classes.
"""

from __future__ import annotations

import numpy as np

from sartor.accounting.special import log_ndtr
from sartor.errors import SartorError
from sartor.pate.aggregators import Confident, GNMax
from sartor.pate.plan import whole

_KNOW = 0.5  # of the teachers
_RIGHT = 0.95  # of the answers
_TEST = 2.0  # times the noise of an answer: a test costs an eighth of it
_NODES, _SEARCH = 80, 60


def surviving_noise(teachers: int, classes: int) -> float:
    """The largest deviation of the noise on every count that a plausible consensus survives, in votes.

    >>> round(surviving_noise(250, 10), 1), round(surviving_noise(250, 2), 1)
    (36.6, 53.7)
    """
    lead = _KNOW * whole(teachers, "the number of teachers")
    low, high = 0.0, 64.0  # leads in deviations
    others = max(whole(classes, "the number of classes") - 1, 1)
    for _ in range(_SEARCH):
        middle = (low + high) / 2
        low, high = (low, middle) if _right(middle, others) >= _RIGHT else (middle, high)
    return lead / high


def _right(lead: float, others: int) -> float:
    """The probability that a count with this lead, in deviations of the noise, stays above so many others."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(_NODES)
    return float(weights @ np.exp(others * log_ndtr(nodes + lead)) / np.sqrt(2 * np.pi))


def aggregator_for(teachers: int, classes: int, kind: str = "gnmax") -> GNMax:
    """The aggregator with the most noise that a plausible consensus of these teachers survives.

    A confident one answers where, by a test with twice that noise, half of the teachers agree.

    >>> aggregator_for(100, 2, "confident").threshold
    50.0
    """
    noise = surviving_noise(teachers, classes)
    if kind == "gnmax":
        return GNMax(noise)
    if kind == "confident":
        return Confident(noise, _KNOW * teachers, _TEST * noise)
    raise SartorError(f'noise is chosen for the aggregators gnmax and confident, not for "{kind}".')
