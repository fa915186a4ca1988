"""Replay of a voting: the same queries again, with the votes of one holder's teachers turned, under the same noise and the same labels.

Whatever a holder's records are, they reach a voting through the teachers that were taught them. So those teachers vote for another class in
every query, which is the most that a record can do. Then the counts may move by what the plan says that a member moves, every row
of the account must have been charged for what was really moved, counts and tests have the noise of the plan and labels follow from what is
noisy alone, and everything else is the same: which queries are asked, weights, noise, thresholds, the account, what is printed.

Breaks if: counts are told elsewhere than to the witness of the voting.

For a whole ensemble teachers are taught again without one holder before that. PATE rests on it that a holder reaches the teachers that the
partition gives them, and no other. So teachers are taught twice, from the same seed: on the data, and with other people's records in the
holder's places. Votes of teachers without a record of the holder must be the same, and no more teachers may have one than the plan says.
Then those teachers vote for another class in every query, which is the most that a record can do, and the voting is judged as above.

Breaks if: teachers read records from elsewhere than the data set that they are given; they are not repeatable under their seed.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import TensorDataset

from sartor.audit.choice import chosen
from sartor.audit.noise import faults_of_noise
from sartor.audit.record import Playback, Tape
from sartor.audit.replay import Replayed
from sartor.audit.shown import Shown, compared
from sartor.audit.without import without
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.pate.partition import partition
from sartor.pate.plan import Confident, PatePlan
from sartor.pate.teachers import Teachers
from sartor.pate.voting import Labels, aggregate
from sartor.run.stream import Stream
from sartor.run.witness import Array, Poll, looked_at_by

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
    votings = Votings(plan, votes, classes, student=student, seed=seed, go_on=go_on)
    for group in range(len(plan)):
        votings.turn(np.arange(plan.duplicates[group]) + plan.begin[group], group)
    return votings.found(len(plan))


class Votings:
    """A voting, and the same with some teachers turned, as often as is asked for. Sensitive throughout."""

    def __init__(self, plan: PatePlan, votes: NDArray[np.integer], classes: int, *, student: Array | None, seed: int, go_on: bool) -> None:
        self._plan, self._votes, self._classes = plan, np.asarray(votes), classes
        self._student, self._seed, self._go_on = student, seed, go_on
        self._tape, self._shown = Tape(most=0), Shown()
        self._first = self._voted(self._tape, self._votes, self._shown)
        if not self._first.asked.any():
            raise SartorError("no query was asked, so there is nothing to replay: give queries, and a plan that pays for one at least.")
        self.faults = [*self._tape.faults, *_of_noise(plan, list(self._tape.polls.values()), student)]
        self.unseen = set[str]()
        self._largest = 0.0

    def _voted(self, witness: Tape | Playback, votes: NDArray[np.integer], shown: Shown) -> Labels:
        with looked_at_by(witness), shown.looking():
            how = {"student": self._student, "go_on": self._go_on}
            found = aggregate(self._plan, votes, self._classes, **how, stream=Stream(self._seed))  # type: ignore[arg-type]
        shown.returned([found.account, found.labels, found.asked, found.answered])
        return found

    def turn(self, teachers: NDArray[np.integer], group: int) -> None:
        """Vote again with these teachers turned, who are all that a member of the group has records with."""
        turned, again, shown = self._votes.copy(), Playback(self._tape, -1, aligned=False), Shown()
        turned[:, teachers] = (turned[:, teachers] + 1) % self._classes
        self._voted(again, turned, shown)

        def once_more(votes: NDArray[np.integer]) -> Shown:
            told = Shown()
            self._voted(Playback(self._tape, -1, aligned=False), votes, told)
            return told

        moved, found = _compared(self._plan, teachers, group, self._tape, again, self._first)
        seen, never = compared(self._shown, shown, control=lambda: once_more(self._votes), again=lambda: once_more(turned))
        self._largest, self.unseen = max(self._largest, moved), self.unseen | never
        self.faults += [*again.faults, *found, *seen]

    def found(self, holders: int) -> Replayed:
        """What so many holders showed."""
        faults, unseen = tuple(dict.fromkeys(self.faults)), tuple(sorted(self.unseen))
        return Replayed(int(self._first.asked.sum()), holders, self._largest, faults, unseen)


def _of_noise(plan: PatePlan, polls: Sequence[Poll], student: Array | None) -> list[str]:
    """Whether counts and the tests before answers had the noise of the plan, and labels and passes follow from what is noisy alone."""
    kind, found = plan.aggregator, []
    noise = np.concatenate([poll.noisy - poll.counts for poll in polls]) / kind.noise
    for poll in polls:
        passed = np.ones(len(poll.labels), bool)
        if isinstance(kind, Confident):
            own = None if student is None else student[poll.place : poll.place + len(poll.labels)]
            figure, _ = kind.tested(poll.counts, own, poll.weights.sum(1) / plan.teachers)
            if poll.test is None or not np.array_equal(figure, poll.test.figure):
                return ["whether a query has an answer is not decided by the test of the plan."]
            passed = poll.test.noisy > poll.test.threshold
        if not (np.array_equal(passed, poll.passed) and np.array_equal(poll.noisy.argmax(1), poll.labels)):
            found.append("labels, or whether there are any, follow from more than noisy counts.")
    if kind.tests:
        tests = np.concatenate([poll.test.noisy - poll.test.figure for poll in polls if poll.test is not None])
        noise = np.column_stack([noise, tests / kind.test_noise])
    return [*dict.fromkeys(found), *faults_of_noise(noise, [1] * noise.shape[1])]


def _compared(
    plan: PatePlan, teachers: NDArray[np.integer], group: int, tape: Tape, again: Playback, labels: Labels
) -> tuple[float, list[str]]:
    """The largest move of a group's member over what they may, and what is wrong."""
    found, largest, owed = [], 0.0, 0.0
    row = int(teachers[0]) if plan.rests else group  # where teachers rest, each has a row of its own
    kind = plan.aggregator
    for place in sorted(set(tape.polls) & set(again.polls)):
        first, second = tape.polls[place], again.polls[place]
        if first.counts.shape != second.counts.shape or not np.array_equal(first.weights, second.weights):
            return math.inf, ["weights, or how many queries are asked, follow the holder's records."]
        if not (_alike(first.noisy - first.counts, second.noisy - second.counts, kind.noise) and _tests_are_alike(first, second, plan)):
            found.append("the noise of votes, or the threshold of a test, follows the holder's records.")
        moved = np.linalg.norm(first.counts - second.counts, axis=1) / math.sqrt(2)
        allowed = first.weights[:, row] if plan.rests else np.full(len(moved), float(plan.sensitivity[group]))
        over = moved > allowed * (1 + _ROUNDING) + _ROUNDING
        if over.any():
            found.append("a holder moved a count by more than the plan says of their group.")
        with np.errstate(divide="ignore", invalid="ignore"):
            shares = np.where(moved > 0, moved / allowed, 0.0)
        largest = max(largest, float(shares.max(initial=0.0)))
        owed += float(np.sum(moved**2 * (1 / kind.test_noise**2 + first.passed * 2 / kind.noise**2)))
    if owed > float(labels.account.cost[row]) * (1 + 1e-6):
        found.append("a group is charged for less than its members moved.")
    return largest, found


def _tests_are_alike(first: Poll, second: Poll, plan: PatePlan) -> bool:
    """Whether the tests of both worlds have the same noise and threshold."""
    one, other = first.test, second.test
    if one is None or other is None:
        return one is other
    return _alike(one.noisy - one.figure, other.noisy - other.figure, plan.aggregator.test_noise) and np.array_equal(
        one.threshold, other.threshold
    )


def _alike(one: Array, other: Array, deviation: float) -> bool:
    return bool(np.all(np.abs(one - other) <= 1e-6 * deviation))


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
