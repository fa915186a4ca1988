"""Replay of an ensemble: teachers are taught again without one holder, and the voting is replayed with that holder's teachers turned.

PATE rests on it that a holder reaches the teachers that the partition gives them, and no other. So teachers are taught twice, from the same
seed: on the data, and with other people's records in the holder's places. Votes of teachers without a record of the holder must be the
same, and no more teachers may have one than the plan says. Then those teachers vote for another class in every query, which is the most
that a record can do, and the voting is judged as in `replay_votes`.

Breaks if: teachers read records from elsewhere than the data set that they are given; they are not repeatable under their seed.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sartor.audit.choice import chosen
from sartor.audit.replay import Replayed
from sartor.audit.replay_votes import Votings
from sartor.audit.shown import Shown, compared
from sartor.audit.without import without
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.pate.partition import partition
from sartor.pate.plan import PatePlan
from sartor.pate.teachers import Teachers
from sartor.run.witness import Array


def replay_ensemble(
    teachers: Teachers,
    dataset: TensorDataset,
    queries: Tensor,
    classes: int,
    budgets: Budgets,
    plan: PatePlan,
    *,
    ownership: Ownership | None = None,
    holders: int | Sequence[int] = 4,
    student: Array | None = None,
    seed: int = 0,
    go_on: bool = False,
) -> Replayed:
    """Teach an ensemble and let it vote, and again for some holders with everything of theirs replaced.

    `teachers` have a seed, and every ensemble is taught by a copy of them. `holders` are places in the budgets, or how many shall be
    tried, of all groups in turn. `steps` of what it finds are queries, and a move is over what the plan allows a member.

    >>> import sartor
    >>> from sklearn.neighbors import KNeighborsClassifier
    >>> from sartor import pate
    >>> from sartor.data import load
    >>> data = load("digits")
    >>> budgets = sartor.Budgets.from_groups([(1.0, 700), (4.0, 737)], delta=1e-3)
    >>> plan = pate.plan(budgets, "weight", teachers=10, aggregator=pate.GNMax(noise=20))
    >>> teachers = pate.EstimatorTeachers(KNeighborsClassifier(1), workers=1, seed=0, progress=False)
    >>> queries = data.test.tensors[0][:20]
    >>> replay_ensemble(teachers, data.train, queries, data.classes, budgets, plan, holders=1).verdict
    'consistent'
    """
    if teachers.seed is None:
        raise SartorError("only teachers with a seed can be taught again: give them one (seed=).")
    group = plan.groups_of(budgets)
    tried = chosen(holders, group, seed)
    slices = partition(plan, budgets, b"audit %d" % seed, ownership=ownership).slices()

    def taught(data: TensorDataset) -> tuple[NDArray[np.integer], Shown]:
        shown = Shown()
        with shown.looking():
            return copy.deepcopy(teachers).votes(data, slices, queries), shown

    votes, first = taught(dataset)
    votings = Votings(plan, votes, classes, student=student, seed=seed, go_on=go_on)
    for holder in tried:
        rows = np.array([holder]) if ownership is None else np.flatnonzero(ownership.of_record == holder)
        own = np.array([bool(np.isin(rows, part).any()) for part in slices])
        instead, missed = without(dataset, rows)
        again, shown = taught(instead)
        seen, never = compared(first, shown, control=lambda: taught(dataset)[1], again=lambda data=instead: taught(data)[1])  # type: ignore[misc]
        votings.unseen |= missed | never
        votings.faults += seen
        if not np.array_equal(votes[:, ~own], again[:, ~own]):
            votings.faults.append("teachers who were taught none of the holder's records vote otherwise without them.")
        if own.sum() > plan.duplicates[group[holder]]:
            votings.faults.append("a holder's records are with more teachers than the plan says.")
        if own.any():
            votings.turn(np.flatnonzero(own), int(group[holder]))
    if getattr(teachers, "workers", 1) != 1:
        votings.unseen.add("what teachers print in processes of their own (workers=1 has them teach in this one)")
    return votings.found(len(tried))
