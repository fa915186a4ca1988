"""What was told of a run's accounts: a value that anybody may see, and that is kept with its charge."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sartor.relation import Relation, relation_of


@dataclass(frozen=True)
class Histogram:
    """Noised counts of accounts between public edges; they add up to the number of holders, but for those below 0, which are shown as 0."""

    edges: tuple[float, ...]
    counts: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Release:
    """What was told, and what it cost everybody. What was not asked for is None; what noise left nothing of is NaN, in JSON null.

    A seeded one is not private. A row of `groups` says what it is of, how many holders it has, and the mean of each column.
    """

    epsilon: float
    delta: float
    relation: Relation
    private: bool = True
    mean: float | None = None
    quantiles: Mapping[float, float] | None = None
    histogram: Histogram | None = None
    groups: tuple[Mapping[str, Any], ...] | None = None
    correlation: float | None = None

    def to_json(self) -> dict[str, Any]:
        """This release as a JSON document, which may be shown to everyone."""
        found: dict[str, Any] = {}
        if self.mean is not None:
            found["mean"] = self.mean
        if self.quantiles is not None:
            found["quantiles"] = {str(at): value for at, value in self.quantiles.items()}
        if self.histogram is not None:
            found["histogram"] = {"edges": list(self.histogram.edges), "counts": list(self.histogram.counts)}
        if self.groups is not None:
            found["groups"] = [{name: _or_null(value) for name, value in row.items()} for row in self.groups]
        if self.correlation is not None:
            found["correlation"] = _or_null(self.correlation)
        return {**found, "epsilon": self.epsilon, "delta": self.delta, "relation": self.relation.name, "private": self.private}

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> Release:
        """The release in a JSON document."""
        found: dict[str, Any] = {"mean": document.get("mean")}
        if "quantiles" in document:
            found["quantiles"] = {float(at): value for at, value in document["quantiles"].items()}
        if "histogram" in document:
            found["histogram"] = Histogram(tuple(document["histogram"]["edges"]), tuple(document["histogram"]["counts"]))
        if "groups" in document:
            found["groups"] = tuple({name: _or_nan(value) for name, value in row.items()} for row in document["groups"])
        if "correlation" in document:
            found["correlation"] = _or_nan(document["correlation"])
        return cls(
            epsilon=float(document["epsilon"]),
            delta=float(document["delta"]),
            relation=relation_of(document["relation"]),
            private=bool(document["private"]),
            **found,
        )


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and math.isnan(value) else value


def _or_nan(value: Any) -> Any:
    return math.nan if value is None else value
