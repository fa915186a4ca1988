"""Exposures: what a mechanism does to one holder, as plain values.

An exposure says nothing about people and computes nothing: accountants read it. Its relation says between which
data sets a vector moves by what it names. Five kinds are enough for every method here: the sampled Gaussian over some steps, the same for a
holder who owns several records, stretches of it whose norms a filter chooses on the way, a composition of exposures, and "included with
probability p, then this exposure".
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
from itertools import pairwise
from numbers import Integral
from typing import TYPE_CHECKING, Any, TypeAlias

from sartor.numbers import from_json_number, to_json_number
from sartor.relation import ZERO_OUT, Relation, relation_of

if TYPE_CHECKING:
    from dp_accounting import DpEvent

Json: TypeAlias = dict[str, Any]

MOST_STEPS = 10**12
"""Steps beyond this are refused: nothing here is meant for them."""
MOST_UNITS = 10**9
"""Units of a filter beyond this are refused: no run compares such numbers."""
MOST_RECORDS = 10**6
"""Records of one holder beyond this are refused: whoever owns more should be protected by training that clips by holder."""


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
        _check_steps(self)

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
class SampledRecords:
    """`steps` times: each of the holder's `records` records enters a sum with noise, by a coin of its own, with probability `rate`.

    A record enters as a vector of norm at most 1, and the noise has deviation `noise_multiplier`: what training by record does to a person
    who owns several. Between neighbours each of the vectors moves by at most 1: under zeroing, all of them vanish at once.

    >>> SampledRecords(records=20, rate=0.01, noise_multiplier=1.0, steps=1_000).plain is None
    True
    """

    records: int
    rate: float
    noise_multiplier: float
    steps: int
    relation: Relation = ZERO_OUT

    def __post_init__(self) -> None:
        if not 1 <= self.records <= MOST_RECORDS or self.records != int(self.records):
            raise ValueError(f"records must be a whole number from 1 to {MOST_RECORDS:,}, not {self.records}.")
        object.__setattr__(self, "records", int(self.records))
        _check_steps(self)

    @property
    def plain(self) -> SampledGaussian | None:
        """The sampled Gaussian that this is: of one record, or of records that always enter together; none where their coins differ."""
        if self.records == 1 or self.rate == 0 or self.steps == 0 or math.isinf(self.noise_multiplier):
            return SampledGaussian(self.rate, self.noise_multiplier, self.steps, self.relation)
        if self.rate == 1:
            return SampledGaussian(1.0, self.noise_multiplier / self.records, self.steps, self.relation)
        return None

    def to_json(self) -> Json:
        """This exposure as a JSON document."""
        return {
            "kind": "sampled_records",
            "records": self.records,
            "rate": self.rate,
            "noise_multiplier": to_json_number(self.noise_multiplier),
            "steps": self.steps,
            "relation": self.relation.name,
        }

    def to_dp_event(self) -> DpEvent:
        """This exposure in the language of dp_accounting: a step is a mixture of Gaussians, as many records of mean as are drawn."""
        from dp_accounting import dp_event
        from scipy import stats

        if self.plain is not None:
            return self.plain.to_dp_event()
        drawn = range(self.records + 1)
        chance = stats.binom.pmf(drawn, self.records, self.rate)
        pairs = [(float(count), float(p)) for count, p in zip(drawn, chance, strict=True) if p > 0]
        event = dp_event.MixtureOfGaussiansDpEvent(self.noise_multiplier, *(list(column) for column in zip(*pairs, strict=True)))
        return dp_event.SelfComposedDpEvent(event, self.steps)


@dataclass(frozen=True)
class Filtered:
    """Stretches of `stretch` steps, each of which may be taken at any of some norms, for as long as its holder's units pay for it.

    Before a stretch one of the `rungs` is chosen, by whatever the past has released and by the holder's own records, and its cost (the
    entry of `costs` at its place) is taken from the `units` that the holder has; or none, and the holder rests. In each step of the stretch
    a vector of norm at most the rung enters, with probability `rate`, a sum with noise of deviation `noise_multiplier`. Nothing else
    bounds the number of stretches.

    >>> Filtered(rate=0.01, noise_multiplier=1.1, stretch=300, rungs=(0.5, 1.0), costs=(1, 4), units=40).most_stretches
    40
    """

    rate: float
    noise_multiplier: float
    stretch: int
    rungs: tuple[float, ...]
    costs: tuple[int, ...]
    units: int
    relation: Relation = ZERO_OUT

    def __post_init__(self) -> None:
        SampledGaussian(self.rate, self.noise_multiplier, self.stretch)
        rungs, costs = tuple(float(rung) for rung in self.rungs), tuple(self.costs)
        wrong = {
            "a stretch has a step at least": self.stretch < 1,
            "it needs a rung at least, and a cost for each": not rungs or len(rungs) != len(costs),
            "rungs lie in (0, 1], each above the one before": not all(a < b for a, b in pairwise((0.0, *rungs, math.nextafter(1, 2)))),
            "costs are whole numbers of 1 or more, and no rung costs less than a lower one": not all(_is_whole(cost, 1) for cost in costs)
            or any(a > b for a, b in pairwise(costs)),
            f"units are a whole number from 0 to {MOST_UNITS:g}": not _is_whole(self.units, 0) or self.units > MOST_UNITS,
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise ValueError(f"this is not a filter: {sentence}.")
        if int(self.stretch) * (int(self.units) // min(costs)) > MOST_STEPS:
            raise ValueError(f"this is not a filter: its units pay for more than {MOST_STEPS:g} steps.")
        object.__setattr__(self, "rate", float(self.rate))
        object.__setattr__(self, "noise_multiplier", float(self.noise_multiplier))
        object.__setattr__(self, "stretch", int(self.stretch))
        object.__setattr__(self, "rungs", rungs)
        object.__setattr__(self, "costs", tuple(int(cost) for cost in costs))
        object.__setattr__(self, "units", int(self.units))

    @property
    def most_stretches(self) -> int:
        """How many stretches a holder can take part in at most: all of them at the cheapest rung."""
        return self.units // min(self.costs)

    @property
    def at_full(self) -> SampledGaussian:
        """What a holder undergoes who always takes the highest rung: one of the choices, so never more than this exposure costs."""
        noise = self.noise_multiplier / self.rungs[-1]
        return SampledGaussian(self.rate, noise, self.stretch * (self.units // self.costs[-1]), self.relation)

    def to_json(self) -> Json:
        """This exposure as a JSON document."""
        return {
            "kind": "filtered",
            "rate": self.rate,
            "noise_multiplier": to_json_number(self.noise_multiplier),
            "stretch": self.stretch,
            "rungs": list(self.rungs),
            "costs": list(self.costs),
            "units": self.units,
            "relation": self.relation.name,
        }

    def to_dp_event(self) -> DpEvent:
        """An event that dp_accounting refuses to judge: it has none for norms that are chosen on the way."""
        import dp_accounting

        return dp_accounting.UnsupportedDpEvent()


def _is_whole(value: object, least: int) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool) and int(value) >= least


def _check_steps(exposure: SampledGaussian | SampledRecords) -> None:
    """Refuse what no step can have, and make numbers plain ones: those of arrays compare, but are not written as JSON."""
    if not 0 <= exposure.rate <= 1:
        raise ValueError(f"rate must lie in [0, 1], not {exposure.rate}.")
    if not exposure.noise_multiplier >= 0:
        raise ValueError(f"noise_multiplier must be 0 or more, not {exposure.noise_multiplier}.")
    if not 0 <= exposure.steps <= MOST_STEPS or exposure.steps != int(exposure.steps):
        raise ValueError(f"steps must be a whole number from 0 to {MOST_STEPS:g}, not {exposure.steps}.")
    object.__setattr__(exposure, "rate", float(exposure.rate))
    object.__setattr__(exposure, "noise_multiplier", float(exposure.noise_multiplier))
    object.__setattr__(exposure, "steps", int(exposure.steps))


@dataclass(frozen=True)
class Composition:
    """Several exposures of the same holder, one after another; later ones may be chosen by what earlier ones released."""

    parts: tuple[Exposure, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "parts", tuple(self.parts))
        if not all(isinstance(part, Exposure) for part in self.parts):
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
        if not isinstance(self.exposure, Exposure):
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


Exposure: TypeAlias = SampledGaussian | SampledRecords | Filtered | Composition | Included


_KINDS = ('"sampled_gaussian"', '"sampled_records"', '"filtered"', '"composition"', '"included"')


def exposure_from_json(document: Mapping[str, Any]) -> Exposure:
    """The exposure that a JSON document describes."""
    try:
        kind = document["kind"]
        if kind in ("sampled_gaussian", "sampled_records"):
            noise, relation = from_json_number(document["noise_multiplier"]), relation_of(document.get("relation", ZERO_OUT.name))
            step = (document["rate"], noise, document["steps"], relation)
            return SampledGaussian(*step) if kind == "sampled_gaussian" else SampledRecords(document["records"], *step)
        if kind == "filtered":
            noise, relation = from_json_number(document["noise_multiplier"]), relation_of(document.get("relation", ZERO_OUT.name))
            chosen = (tuple(document["rungs"]), tuple(document["costs"]), document["units"])
            return Filtered(document["rate"], noise, document["stretch"], *chosen, relation)
        if kind == "composition":
            return Composition(tuple(exposure_from_json(part) for part in document["parts"]))
        if kind == "included":
            return Included(document["probability"], exposure_from_json(document["exposure"]))
    except KeyError as error:
        raise ValueError(f"this is not an exposure: {error} is missing.") from None
    except (TypeError, AttributeError):
        raise ValueError("this is not an exposure: something in it is of the wrong type.") from None
    raise ValueError(f'"{kind}" is not a kind of exposure; there are {", ".join(_KINDS)}.')
