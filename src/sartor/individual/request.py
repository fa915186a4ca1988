"""What may be asked of a run's accounts, which is public, and the figures that it is asked of, which are not.

What was told of them is a value that anybody may see, and that is kept with its charge.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.immutable import immutable
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


Array = NDArray[np.float64]

QUANTILES = (0.1, 0.3, 0.5, 0.7, 0.9)
"""Those of the paper's table 2."""
BUDGET = "budget"
"""By what groups are told where nothing else is said."""
CLASS = "class"
"""The attribute that the targets of the records are."""
COLUMNS = ("account", "accuracy", "loss")
_MOST = 1_000  # quantiles, bins and categories


@dataclass(frozen=True, kw_only=True)
class Request:
    """Which statistics are wanted, all of them in one release; every field is public, and none may be chosen by looking at the figures.

    `quantiles` are found in so many `rounds` of counting. `histogram` are the edges of its bins: each bin holds its upper edge, and what
    lies outside is counted in the first or the last. `groups` is "budget", or the name of an attribute whose categories, all that there
    may be, are `categories`; of each group the `columns` are told. Losses are taken to lie between `least_loss` and `most_loss`;
    `correlation` is that of the account with the logarithm of the loss.

    >>> Request(quantiles=(0.5,)).wanted
    ('mean', 'quantiles')
    """

    mean: bool = True
    quantiles: Sequence[float] = ()
    histogram: Sequence[float] = ()
    groups: str | None = None
    categories: Sequence[str] = ()
    columns: Sequence[str] = COLUMNS
    correlation: bool = False
    rounds: int = 20
    least_loss: float = 1e-4
    most_loss: float = 5.0

    def __post_init__(self) -> None:
        for name, kind in {"quantiles": float, "histogram": float, "categories": str, "columns": str}.items():
            object.__setattr__(self, name, tuple(_each(name, getattr(self, name), kind)))
        for name in ("least_loss", "most_loss"):
            object.__setattr__(self, name, _each(name, [getattr(self, name)], float)[0])
        many = max(len(self.quantiles), len(self.histogram), len(self.categories))
        wrong = {
            "it asks for nothing": not self.wanted,
            f"it asks for more than {_MOST:,} figures of a kind": many > _MOST,
            "quantiles lie between 0 and 1, each above the one before": not _rise((0.0, *self.quantiles, 1.0)),
            "a histogram has three edges or more, each finite and above the one before": bool(self.histogram)
            and not (len(self.histogram) >= 3 and _rise(self.histogram)),
            f'groups are those of an attribute\'s categories, or "{BUDGET}" and no categories': (self.groups in (None, BUDGET))
            == bool(self.categories),
            f"an attribute has a name of its own, and not {self.groups}": self.groups in ("", "holders", *COLUMNS),
            "categories differ from each other": len(set(self.categories)) < len(self.categories),
            f"columns are some of {', '.join(COLUMNS)}": not self.columns or not set(self.columns) <= set(COLUMNS),
            "rounds are a whole number from 1 to 1,000": not (type(self.rounds) is int and 1 <= self.rounds <= _MOST),
            "the least loss is above 0 and below the most, which is finite": not 0 < self.least_loss < self.most_loss < math.inf,
        }
        for sentence, is_wrong in wrong.items():
            if is_wrong:
                raise SartorError(f"this is not a request that can be answered: {sentence}.")

    @property
    def wanted(self) -> tuple[str, ...]:
        """The kinds of statistics that it asks for."""
        return tuple(name for name in ("mean", "quantiles", "histogram", "groups", "correlation") if getattr(self, name))

    @property
    def needs_loss(self) -> bool:
        """Whether it cannot be answered without everybody's loss."""
        return self.correlation or (self.groups is not None and "loss" in self.columns)

    def to_json(self) -> dict[str, Any]:
        """This request as a JSON document."""
        return {name: list(value) if isinstance(value, tuple) else value for name, value in dataclasses.asdict(self).items()}


def recognised(document: dict[str, Any]) -> dict[str, Any]:
    """What is the same of requests that ask for the same, whatever order they name it in, from one's document.

    Of classes the order is kept: where they are numbers, a name's place says which one it is of.

    >>> one, other = (Request(groups="home", categories=names) for names in (["town", "land"], ["land", "town"]))
    >>> recognised(one.to_json()) == recognised(other.to_json())
    True
    """
    names = ("columns",) if document["groups"] == CLASS else ("columns", "categories")
    return {**document, **{name: sorted(document[name]) for name in names}}


@dataclass(frozen=True, repr=False, eq=False)
class Figures:
    """What is known of each holder, in the order of the budgets. Sensitive.

    `account` is what a holder's gradients really cost; `correct` how much of their records the released model gets right, in [0, 1];
    `loss` its loss on them; `group` the place of their group in the plan (`plan.groups_of(budgets)`) or of their category among those of a
    request, -1 for none.
    """

    account: Array
    correct: Array | None = None
    loss: Array | None = None
    group: NDArray[np.intp] | None = None

    def __post_init__(self) -> None:
        for name in ("account", "correct", "loss", "group"):
            given = getattr(self, name)
            if given is None:
                continue
            values = np.asarray(given)
            if values.ndim != 1 or values.dtype.kind not in ("iu" if name == "group" else "fiub"):
                raise SartorError(f"{name} is one {'whole number' if name == 'group' else 'number'} for each holder.")
            object.__setattr__(self, name, immutable(values, np.intp if name == "group" else np.float64))
            if len(values) != len(self.account):
                raise SartorError(f"there are {len(self.account):,} accounts, but {name} is of {len(values):,} holders.")

    def __len__(self) -> int:
        return len(self.account)

    def __repr__(self) -> str:
        return f"Figures({len(self)} holders)"


def _each(name: str, values: Any, kind: type) -> list[Any]:
    try:
        found = [] if isinstance(values, str) else list(values)
    except TypeError:
        found = [None]
    allowed = Real if kind is float else kind
    if isinstance(values, str) or any(not isinstance(value, allowed) or isinstance(value, bool) for value in found):
        raise SartorError(f"{name} takes {'numbers' if kind is float else 'names'}.")
    return [kind(value) for value in found]


def _rise(values: Sequence[float]) -> bool:
    return all(math.isfinite(value) for value in values) and all(a < b for a, b in itertools.pairwise(values))
