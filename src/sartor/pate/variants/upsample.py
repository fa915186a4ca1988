"""Upsample: people are taught to as many teachers as their budget allows, each at most once; the ensemble grows with them.

Teachers keep their number of records, so there are more of them, and noise and threshold grow by the same factor.
"""

from __future__ import annotations

import numpy as np

from sartor.errors import Infeasible
from sartor.pate.variants.registry import Counts, Request, Treatment, register


@register("upsample", duplicates=True)
def upsample(asked: Request) -> Treatment:
    """The smallest whole numbers of duplicates whose ratios are those of the budgets; with `tune` those that last longest."""
    ratio = asked.value / asked.value.min()
    best: tuple[float, Counts] | None = None
    for times in range(1, 1 + int(asked.most_teachers / asked.teachers)):
        found = np.maximum(np.round(ratio * times), 1).astype(np.int64)
        scale = float(np.average(found, weights=asked.holders))
        if round(asked.teachers * scale) > asked.most_teachers or found.max() > round(asked.teachers * scale):
            continue
        error = float(np.max(np.abs(found / times / ratio - 1)))
        # how long voting lasts: until the first group has spent (duplicates over scale) squared times the queries
        lasts = float(np.min((asked.value * scale / found) ** 2))
        if asked.tune:
            best = (lasts, found) if best is None or lasts > best[0] * (1 + 1e-9) else best
            # of what fractions would reach
            if best[0] >= (1 - asked.precision) * float(np.average(asked.value, weights=asked.holders)) ** 2:
                break
        elif error <= asked.precision:
            best = (lasts, found)
            break
    if best is None:
        raise Infeasible(
            f"no whole numbers of duplicates meet the ratios of these budgets within {asked.precision:g} and {asked.most_teachers:,} "
            "teachers: allow less precision or more teachers, or take the variant weight."
        )
    found = best[1] // np.gcd.reduce(best[1])
    scale = float(np.average(found, weights=asked.holders))
    count = round(asked.teachers * scale)
    return Treatment(count, duplicates=found, begin=0, end=count, weight=1.0, taking_part=count, scale=scale)
