"""How votes become a label: the noisy maximum, with or without a noisy test before it.

Numbers are in votes of an ensemble of `teachers`; a plan scales them with the ensemble that it makes.

>>> confident = Confident(noise=40, threshold=200, threshold_noise=150)
>>> confident.scaled(1.5).threshold
300.0
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from numbers import Real
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

Array = NDArray[np.float64]
Labels = NDArray[np.int64]
NONE = -1
"""The label of a query that got none."""

_LEAST, _MOST = 1e-6, 1e12
_NOISES = ("noise", "threshold_noise")
_Any = TypeVar("_Any", bound="GNMax")


@dataclass(frozen=True)
class GNMax:
    """Every query is answered: the class with most votes after Gaussian noise on every count."""

    noise: float

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            if isinstance(value, bool) or not isinstance(value, Real) or not 0 <= float(value) < np.inf:
                raise SartorError(f"{field.name} must be a number of 0 or more, not {value}.")
            object.__setattr__(self, field.name, float(value))
        if not all(_LEAST <= noise <= _MOST or noise == np.inf for noise in (self.noise, self.test_noise)):
            raise SartorError(f"an aggregator without noise protects nobody; its noise must lie between {_LEAST:g} and {_MOST:g} votes.")

    @property
    def tests(self) -> bool:
        """Whether a noisy test comes before the answer."""
        return bool(np.isfinite(self.test_noise))

    @property
    def test_noise(self) -> float:
        """Deviation of the noise of the test; infinite where there is none, as its cost is zero then."""
        return np.inf

    def scaled(self: _Any, factor: float) -> _Any:
        """The same for an ensemble with so many times the votes."""
        votes = {field.name: getattr(self, field.name) * factor for field in fields(self) if field.name != "confidence"}
        return replace(self, **votes)

    def louder(self: _Any, factor: float) -> _Any:
        """The same with so many times the noise."""
        noises = {field.name: getattr(self, field.name) * factor for field in fields(self) if field.name in _NOISES}
        return replace(self, **noises)

    def otherwise(self, student: Array | None, queries: int) -> Labels:
        """The labels of queries whose test failed."""
        return np.full(queries, NONE, np.int64)

    def check(self, queries: int, classes: int, student: Array | None) -> None:
        """Whether what it is given fits."""
        if student is not None:
            raise SartorError("only the interactive aggregator looks at a student's probabilities.")

    def to_json(self) -> dict[str, Any]:
        """Its kind and its numbers."""
        return {"kind": KINDS[type(self)], **{field.name: getattr(self, field.name) for field in fields(self)}}


@dataclass(frozen=True)
class Confident(GNMax):
    """A query is answered if its largest count, with noise of its own, is above a threshold: most disagreements cost the test alone."""

    threshold: float
    threshold_noise: float

    @property
    def test_noise(self) -> float:
        """Deviation of the noise of the test."""
        return self.threshold_noise

    def tested(self, counts: Array, student: Array | None, share: Array) -> tuple[Array, Array]:
        """For each query the figure that the test compares, the largest count, and the threshold; `share` of the votes take part."""
        return counts.max(1), self.threshold * share


@dataclass(frozen=True)
class Interactive(Confident):
    """A query is answered where the teachers disagree with the student, by so many votes; where they do not, and the student's largest
    probability is above `confidence`, its own label stands, which costs the test alone.

    Breaks if: the student has seen anything but public data and released labels.
    """

    confidence: float = 0.9

    def tested(self, counts: Array, student: Array | None, share: Array) -> tuple[Array, Array]:
        """The largest lead of the teachers' votes over the votes that the student would cast."""
        assert student is not None
        total = counts.sum(1, keepdims=True)
        return (counts - total * student).max(1), self.threshold * share

    def otherwise(self, student: Array | None, queries: int) -> Labels:
        """The student's own, where it is sure."""
        assert student is not None
        return np.where(student.max(1) > self.confidence, student.argmax(1), NONE).astype(np.int64)

    def check(self, queries: int, classes: int, student: Array | None) -> None:
        """It needs the student's probabilities."""
        if student is None or student.shape != (queries, classes):
            raise SartorError(f"the interactive aggregator needs the student's probabilities, {queries:,} by {classes}.")
        if not np.all((student >= 0) & (student <= 1)):
            raise SartorError("the student's probabilities must lie between 0 and 1.")


KINDS: dict[type[GNMax], str] = {GNMax: "gnmax", Confident: "confident", Interactive: "interactive"}


def from_json(document: dict[str, Any]) -> GNMax:
    """The aggregator of a JSON document."""
    kinds = {name: kind for kind, name in KINDS.items()}
    try:
        rest = dict(document)
        return kinds[rest.pop("kind")](**rest)
    except (KeyError, TypeError, AttributeError):
        raise SartorError("this is not an aggregator: its kind or a number is missing.") from None
