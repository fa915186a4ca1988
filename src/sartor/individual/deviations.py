"""How large the noise on a release is: standard deviations, which follow from what was told, the plan and the request, and are public."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from sartor.accounting import gaussian
from sartor.individual.answers import Release
from sartor.individual.release import MARGIN, SHARES, cap_of
from sartor.individual.request import BUDGET, COLUMNS, Request
from sartor.numbers import from_json_number
from sartor.plans import Plan

_HOLDERS = "holders"


def deviation_in_groups(release: Release) -> float:
    """The standard deviation of the noise on a sum over one group of columns in [0, 1]."""
    assert release.groups
    columns = [name for name in release.groups[0] if name in COLUMNS]
    counted = [] if _by_budget(release.groups[0]) else [_HOLDERS]  # sizes of categories have noise too
    return _deviation(release, "groups", math.sqrt(len([*columns, *counted])))


def deviations(release: Release, plan: Plan, request: Request) -> dict[str, Any]:
    """The standard deviation of the noise on the mean, on counts of the histogram, and on sizes and figures of each group.

    They have the names that the figures have in the release's document, and their units. A group whose size noise has made 0 has none.
    """
    cap, found = cap_of(plan), dict[str, Any]()
    if release.mean is not None:
        found["mean"] = _deviation(release, "mean", cap) / int(plan.holders.sum())
    if release.histogram is not None:
        bins = len(release.histogram.counts)
        found["histogram"] = _deviation(release, "histogram", math.sqrt(2 * (1 - 1 / bins)))
    if release.groups:
        merged = [row.stop - row.start for row in plan.view.rows()] if request.groups == BUDGET else [_names(row) for row in release.groups]
        alone = deviation_in_groups(release)
        found["groups"] = [_of_row(row, request, alone * math.sqrt(many), cap) for row, many in zip(release.groups, merged, strict=True)]
    return found


def _of_row(row: Mapping[str, Any], request: Request, deviation: float, cap: float) -> dict[str, float | None]:
    """Of one group, from the deviation of its sums."""
    people, by_budget = row[_HOLDERS], _by_budget(row)
    most = min(_most(row["epsilon"]), cap) if by_budget else cap
    units = {"account": most, "accuracy": 1.0, "loss": request.most_loss}
    found: dict[str, float | None] = {_HOLDERS: 0.0 if by_budget else deviation}
    for name in request.columns:
        told = 0.0 if by_budget or math.isnan(row[name]) else row[name] / units[name]
        found[name] = units[name] * deviation / people * math.hypot(1.0, told) if people > 0 else None  # sum and size have it alike
    return found


def _deviation(release: Release, name: str, sensitivity: float) -> float:
    """That of a query of this sensitivity, which has its part of what the release cost."""
    whole = sum(share for other, share in SHARES.items() if getattr(release, other) is not None)
    mu = gaussian.mu_for(release.epsilon * (1 - MARGIN), release.delta * (1 - MARGIN))
    return sensitivity / (mu * math.sqrt(SHARES[name] / whole))


def _by_budget(row: Mapping[str, Any]) -> bool:
    return "epsilon" in row and "delta" in row


def _names(row: Mapping[str, Any]) -> int:
    """How many categories a row is of."""
    of = next(iter(row.values()))
    return len(of) if isinstance(of, list | tuple) else 1


def _most(epsilon: Any) -> float:
    return max(from_json_number(value) for value in (epsilon if isinstance(epsilon, list | tuple) else [epsilon]))
