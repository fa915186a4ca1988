"""Exposures: what a mechanism does to one holder, as plain values.

An exposure says nothing about people and computes nothing: accountants read it. Its relation says between which
data sets a vector moves by what it names. Three kinds are enough for every method here: the sampled Gaussian over some steps, a composition
of exposures, and "included with probability p, then this exposure".
Each exports to a `dp_accounting.DpEvent`, so that anyone can check a claim with another accountant.

Example:
    >>> from sartor.exposure import SampledGaussian, exposure_from_json
    >>> step = SampledGaussian(rate=0.01, noise_multiplier=2.2, steps=5_000)
    >>> exposure_from_json(step.to_json()) == step
    True
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from sartor.numbers import from_json_number, to_json_number
from sartor.relation import ZERO_OUT, Relation, relation_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Json: TypeAlias = dict[str, Any]

MOST_STEPS = 10**12
"""Steps beyond this are refused: nothing here is meant for them."""


@dataclass(frozen=True)
class SampledGaussian:
    """`steps` times: with probability `rate`, a vector enters a sum with noise of deviation `noise_multiplier`.

    Between neighbours the vector moves by at most 1: under zeroing, its norm is at most 1.
    """

    rate: float
    noise_multiplier: float
    steps: int
    relation: Relation = ZERO_OUT

    def __post_init__(self) -> None:
        if not 0 <= self.rate <= 1:
            raise ValueError(f"rate must lie in [0, 1], not {self.rate}.")
        if not self.noise_multiplier >= 0:
            raise ValueError(f"noise_multiplier must be 0 or more, not {self.noise_multiplier}.")
        if not 0 <= self.steps <= MOST_STEPS or self.steps != int(self.steps):
            raise ValueError(f"steps must be a whole number from 0 to {MOST_STEPS:g}, not {self.steps}.")
        object.__setattr__(self, "rate", float(self.rate))
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "steps", int(self.steps))

    def to_json(self) -> Json:
        """This exposure as a JSON document."""
        return {
            "kind": "sampled_gaussian",
            "rate": self.rate,
            "noise_multiplier": to_json_number(self.noise_multiplier),
            "steps": self.steps,
            "relation": self.relation.name,
        }

    def to_dp_event(self) -> DpEvent:
        """This exposure in the language of dp_accounting."""
        import dp_accounting

        if self.steps == 0 or self.rate == 0 or math.isinf(self.noise_multiplier):
            return dp_accounting.NoOpDpEvent()
        event: DpEvent = dp_accounting.GaussianDpEvent(self.noise_multiplier)
        if self.rate < 1:
            event = dp_accounting.PoissonSampledDpEvent(self.rate, event)
        return dp_accounting.SelfComposedDpEvent(event, self.steps)


@dataclass(frozen=True)
class Composition:
    """Several exposures of the same holder, one after another; later ones may be chosen by what earlier ones released."""

    parts: tuple[Exposure, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not all(isinstance(part, SampledGaussian | Composition | Included) for part in self.parts):
            raise ValueError("a composition is made of exposures.")
        if len({part.relation for part in self.parts}) > 1:
            raise ValueError("exposures under different neighbouring relations do not compose.")

    @property
    def relation(self) -> Relation:
        """That of the parts."""
        return self.parts[0].relation if self.parts else ZERO_OUT

    def to_json(self) -> Json:
        """This exposure as a JSON document."""
        return {"kind": "composition", "parts": [part.to_json() for part in self.parts]}

    def to_dp_event(self) -> DpEvent:
        """This exposure in the language of dp_accounting."""
        import dp_accounting

        return dp_accounting.ComposedDpEvent([part.to_dp_event() for part in self.parts])


@dataclass(frozen=True)
class Included:
    """One secret coin: with `probability` the holder undergoes the whole inner exposure, otherwise nothing of theirs is used.

    dp_accounting can name this event but not account for it; `sartor.accounting` can.
    """

    probability: float
    exposure: Exposure

    def __post_init__(self) -> None:
        if not 0 <= self.probability <= 1:
            raise ValueError(f"probability must lie in [0, 1], not {self.probability}.")
        if not isinstance(self.exposure, SampledGaussian | Composition | Included):
            raise ValueError("what a holder is included in must be an exposure.")
        object.__setattr__(self, "probability", float(self.probability))

    @property
    def relation(self) -> Relation:
        """That of the inner exposure."""
        return self.exposure.relation

    def to_json(self) -> Json:
        """This exposure as a JSON document."""
        return {"kind": "included", "probability": self.probability, "exposure": self.exposure.to_json()}

    def to_dp_event(self) -> DpEvent:
        """This exposure in the language of dp_accounting."""
        import dp_accounting

        return dp_accounting.PoissonSampledDpEvent(self.probability, self.exposure.to_dp_event())


Exposure: TypeAlias = SampledGaussian | Composition | Included


def exposure_from_json(document: Mapping[str, Any]) -> Exposure:
    """The exposure that a JSON document describes."""
    try:
        kind = document["kind"]
        if kind == "sampled_gaussian":
            noise, relation = from_json_number(document["noise_multiplier"]), relation_of(document.get("relation", ZERO_OUT.name))
            return SampledGaussian(document["rate"], noise, document["steps"], relation)
        if kind == "composition":
            return Composition(tuple(exposure_from_json(part) for part in document["parts"]))
        if kind == "included":
            return Included(document["probability"], exposure_from_json(document["exposure"]))
    except KeyError as error:
        raise ValueError(f"this is not an exposure: {error} is missing.") from None
    except (TypeError, AttributeError):
        raise ValueError("this is not an exposure: something in it is of the wrong type.") from None
    raise ValueError(f'"{kind}" is not a kind of exposure; there are "sampled_gaussian", "composition" and "included".')
