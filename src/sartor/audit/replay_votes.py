"""Replay of a voting: the same queries again, with the votes of one holder's teachers turned, under the same noise and the same labels.

Whatever a holder's records are, they reach a voting through the teachers that were taught them. So those teachers vote for another class in
every query, which is the most that a record can do. Then the counts may move by what the plan says that a member moves, every row
of the account must have been charged for what was really moved, and everything else is the same.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from sartor.audit.record import Playback, Tape
from sartor.audit.replay import Replayed
from sartor.pate.plan import PatePlan
from sartor.pate.rows import rows_of
from sartor.pate.voting import Labels, aggregate
from sartor.run.stream import Stream
from sartor.run.witness import Array, looked_at_by

_ROUNDING = 1e-9


def replay_votes(
    plan: PatePlan, votes: NDArray[np.integer], classes: int, *, student: Array | None = None, seed: int = 0, go_on: bool = False
) -> Replayed:
    """Label the queries whose `votes` (queries, teachers) are given, and again with one holder of each group turned.

    `steps` of what it finds are queries, and a move is over what the plan allows a member.

    >>> import sartor
    >>> from sartor import pate
    >>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.5, 0.3, 0.2], holders=600, delta=1e-5, seed=1)
    >>> plan = pate.plan(budgets, "weight", teachers=30, aggregator=pate.GNMax(noise=20))
    >>> replay_votes(plan, np.random.default_rng(1).integers(5, size=(50, 30)), 5).verdict
    'consistent'
    """
    given = np.asarray(votes)
    tape = Tape(most=0)

    def voted(witness: Tape | Playback, votes: NDArray[np.integer]) -> Labels:
        with looked_at_by(witness):
            return aggregate(plan, votes, classes, student=student, go_on=go_on, stream=Stream(seed))

    first = voted(tape, given)
    largest, faults = 0.0, [*tape.faults]
    for group in range(len(plan)):
        teachers = slice(int(plan.begin[group]), int(plan.begin[group]) + int(plan.duplicates[group]))
        turned = given.copy()
        turned[:, teachers] = (turned[:, teachers] + 1) % classes
        again = Playback(tape, -1, aligned=False)
        second = voted(again, turned)
        moved, found = _compared(plan, group, tape, again, first)
        largest = max(largest, moved)
        faults += [*again.faults, *found]
        if first.account.to_json() != second.account.to_json() or not np.array_equal(first.labels, second.labels):
            faults.append("what is told of a voting follows the holder's records although the labels are the same.")
    return Replayed(int(first.asked.sum()), len(plan), largest, tuple(dict.fromkeys(faults)))


def _compared(plan: PatePlan, group: int, tape: Tape, again: Playback, labels: Labels) -> tuple[float, list[str]]:
    """The largest move of a group's member over what they may, and what is wrong."""
    found, largest, owed = [], 0.0, 0.0
    row = rows_of(plan)[group].start
    kind = plan.aggregator
    for place in sorted(set(tape.votes) & set(again.votes)):
        (counts, weights, passed, _), (others, others_weights, _, _) = tape.votes[place], again.votes[place]
        if counts.shape != others.shape or not np.array_equal(weights, others_weights):
            return math.inf, ["weights, or how many queries are asked, follow the holder's records."]
        moved = np.linalg.norm(counts - others, axis=1) / math.sqrt(2)
        allowed = weights[:, plan.begin[group]] if plan.rests else np.full(len(moved), float(plan.sensitivity[group]))
        over = moved > allowed * (1 + _ROUNDING) + _ROUNDING
        if over.any():
            found.append("a holder moved a count by more than the plan says of their group.")
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(moved > 0, moved / allowed, 0.0)
        largest = max(largest, float(shares.max(initial=0.0)))
        owed += float(np.sum(moved**2 * (1 / kind.test_noise**2 + passed * 2 / kind.noise**2)))
    if owed > float(labels.account.cost[row]) * (1 + 1e-6):
        found.append("a group is charged for less than its members moved.")
    return largest, found
