"""Teachers of groups apart: each group's are its own, and groups too small for that share a pool with their neighbours."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sartor.pate.variants.registry import Array, Counts, Request


@dataclass(frozen=True, repr=False)
class Pools:
    """Of each pool its `size` and the `strictest` value of its groups; of each group its pool and where that pool's teachers are."""

    size: Counts
    strictest: Array
    of_group: NDArray[np.intp]

    @property
    def begin(self) -> Counts:
        """For each group the first of its teachers."""
        return np.asarray((np.cumsum(self.size) - self.size)[self.of_group])

    @property
    def end(self) -> Counts:
        """For each group the teacher after its last."""
        return np.asarray(np.cumsum(self.size)[self.of_group])


def pools(asked: Request) -> Pools:
    """Pools by the number of holders."""
    of_group, size = _shared(asked.holders, asked.teachers)
    strictest = np.array([asked.value[of_group == pool].min() for pool in range(len(size))])
    return Pools(size, strictest, of_group)


def _shared(holders: Counts, teachers: int) -> tuple[NDArray[np.intp], Counts]:
    """Which pool of teachers each group has, and how many teachers each pool: by size.

    Groups too small for a teacher of their own share one with neighbours as small; where there are too few teachers even for that, with
    any neighbours.
    """
    share = holders / holders.sum() * teachers
    for apart in (True, False):
        of_group = np.zeros(len(holders), np.intp)
        pool, filled = 0, 0.0
        for group in range(1, len(holders)):
            filled += float(share[group - 1])
            enough = filled >= 1 - 1e-9 and float(share[group:].sum()) >= 1 - 1e-9
            if enough or (apart and max(share[group - 1], share[group]) >= 1):
                pool, filled = pool + 1, 0.0
            of_group[group] = pool
        if pool < teachers:
            break
    exact = np.bincount(of_group, share)
    counts = np.maximum(np.floor(exact + 1e-9), 1).astype(np.int64)
    while (missing := teachers - int(counts.sum())) != 0:
        # one by one to whom most is missing, or from whom has most beyond their share
        away = exact - counts
        change = int(np.argmax(away)) if missing > 0 else int(np.argmin(np.where(counts > 1, away, np.inf)))
        counts[change] += np.sign(missing)
    return of_group, counts
