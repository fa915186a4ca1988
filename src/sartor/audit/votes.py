"""Neighbours of an ensemble: one holder's teachers vote for one class or for another, and which it was is guessed from the labels.

For each group one holder is attacked, with the teachers that the library's own partition gives them. All queries are the worst that others
can make: they split their votes between two classes so that what is released tells most of what the holder's teachers voted, for what it
costs. In one world those vote for the first class, in the other for the second, which is the neighbouring relation of PATE's plans
(everything of one holder is replaced). The library's own voting is run on both worlds, many times, until somebody cannot pay for another
query; a repetition is scored by the logarithm of how much likelier its labels are in the first world, by what the plan states of weights
and noise.

Repetitions are independent, each with a seeded stream of its own, so that bounds which ask for that may use these scores as they are.
Not seen: what teachers learn, and whether one holder moves more of them than the partition says, which replay looks at.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting.special import log_ndtr
from sartor.audit.scores import Scores
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.pate.account import Accountant
from sartor.pate.partition import partition
from sartor.pate.plan import NONE, Confident, Interactive, PatePlan
from sartor.pate.voting import Labels, Voting, aggregate
from sartor.run.stream import Stream

Array = NDArray[np.float64]
Votes = NDArray[np.int64]

_SPLITS = 41  # of others' votes that are looked at
_CLASSES = 2
_EVEN = 0.5  # a student's probability of either class
_NEVER = -700.0  # the logarithm of how likely it is that a query without a test has no label
_ROWS = 50_000  # queries of repetitions that are asked at once


def vote_attack(
    plan: PatePlan,
    budgets: Budgets,
    *,
    ownership: Ownership | None = None,
    repetitions: int = 1000,
    queries: int = 200,
    seed: int = 0,
) -> dict[int, Scores]:
    """Scores by group: `repetitions` votings in which the holder's teachers vote for the first class (inside), as many for the second.

    `queries` are offered to each voting, of which it asks as many as everybody can pay for: offer more than that. `ownership` is that of
    the ensemble, where holders have several records.

    >>> import sartor
    >>> from sartor import pate
    >>> budgets = sartor.Budgets.from_groups([(1.0, 60), (4.0, 40)], delta=1e-3)
    >>> found = vote_attack(pate.plan(budgets, "weight", teachers=20), budgets, repetitions=5, queries=20)
    >>> [len(found[group].inside) for group in found]
    [5, 5]
    """
    if min(repetitions, queries) < 1:
        raise SartorError("an attack on votes needs a repetition and a query at least.")
    if not np.array_equal(np.bincount(plan.groups_of(budgets), minlength=len(plan)), plan.holders):
        raise SartorError("these are not the budgets that the plan was made for: its groups are of other sizes.")
    accountant, found = _Remembering(), {}
    for group in range(len(plan)):
        worlds = _Worlds.of(plan, teachers_of(plan, budgets, group, seed, ownership), group, queries)
        found[group] = Scores(*(worlds.scores(world, repetitions, accountant, [seed, group, world]) for world in range(_CLASSES)))
    return found


def teachers_of(plan: PatePlan, budgets: Budgets, group: int, seed: int, ownership: Ownership | None = None) -> Votes:
    """The teachers of the first holder with a group's budget, under a key that is nobody's."""
    owner = np.arange(len(budgets)) if ownership is None else ownership.of_record
    own = np.flatnonzero((budgets.epsilon == plan.epsilon[group]) & (budgets.delta == plan.delta[group]))
    if not len(own):
        raise SartorError("these are not budgets that the plan was made for: a group has no holder.")
    placed = partition(plan, budgets, b"audit %d" % seed, ownership=ownership, holders=[str(place) for place in range(len(budgets))])
    return np.unique(placed.of_row[owner[placed.rows] == own[0]])


def _seed(numbers: Sequence[int]) -> int:
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0])


class _Remembering(Accountant):
    """The usual accountant, which searches for what a budget allows once and not for each repetition."""

    def allowance(self, epsilon: ArrayLike, delta: ArrayLike) -> Array:
        """What budgets allow."""
        key = np.asarray(epsilon, float).tobytes(), np.asarray(delta, float).tobytes()
        if not hasattr(self, "_known"):
            object.__setattr__(self, "_known", {})
        known: dict[tuple[bytes, bytes], Array] = vars(self)["_known"]
        if key not in known:
            known[key] = super().allowance(epsilon, delta)
        return known[key]


@dataclass(frozen=True, eq=False, repr=False)
class _Worlds:
    """The votes of both worlds, a student's probabilities where the aggregator asks for them, and each outcome's log likelihood ratio.

    `ratio` has for each query one number for no label, the first and the second class.
    """

    plan: PatePlan
    votes: tuple[Votes, Votes]
    student: Array | None
    ratio: Array

    @classmethod
    def of(cls, plan: PatePlan, teachers: Votes, group: int, queries: int) -> _Worlds:
        weights = np.where(plan.schedule(0, queries), plan.weights, 0.0)
        student = np.full((queries, _CLASSES), _EVEN) if isinstance(plan.aggregator, Interactive) else None
        others = weights.copy()
        others[:, teachers] = 0.0
        own = np.where(plan.schedule(0, queries)[:, teachers], plan.weight[group], 0.0).sum(1)
        votes = _split(others, _best_split(plan, others[0].sum(), float(own.max()), weights[0].sum()))
        first = np.where(votes == 0, others, 0.0).sum(1)
        both, laws = [], []
        for world in range(_CLASSES):
            cast = votes.copy()
            cast[:, teachers] = world
            both.append(cast)
            counts = np.stack([first, others.sum(1) - first], axis=1)
            counts[:, world] += own
            laws.append(_law(plan, counts, weights.sum(1)))
        return cls(plan, (both[0], both[1]), student, laws[0] - laws[1])

    def scores(self, world: int, repetitions: int, accountant: Accountant, seed: Sequence[int]) -> Array:
        """Of votings in a world: the log likelihood ratios of their labels, for the first world."""
        if self.plan.aggregator.tests:  # where a voting ends follows its answers, so each is its own
            return np.array([self._score(self._voting(world, accountant, [*seed, place])) for place in range(repetitions)])
        return self._of_alike(world, repetitions, accountant, seed)

    def _voting(self, world: int, accountant: Accountant, seed: Sequence[int]) -> Labels:
        votes, stream = self.votes[world], Stream(_seed(seed))
        return aggregate(self.plan, votes, _CLASSES, accountant=accountant, student=self.student, stream=stream)

    def _score(self, found: Labels) -> float:
        asked = np.flatnonzero(found.asked)
        return float(self.ratio[asked, found.labels[asked] - NONE].sum())

    def _of_alike(self, world: int, repetitions: int, accountant: Accountant, seed: Sequence[int]) -> Array:
        """Where every voting asks what the first one does: its queries, with the weights that they had there, again and again."""
        first = self._voting(world, accountant, seed)
        asked = np.flatnonzero(first.asked)
        if not len(asked):
            return np.zeros(repetitions)
        at_once, scores = max(1, _ROWS // len(asked)), np.empty(repetitions)
        for begin in range(0, repetitions, at_once):
            count = min(at_once, repetitions - begin)
            votes, stream = np.tile(self.votes[world][asked], (count, 1)), Stream(_seed([*seed, begin]))
            again = Voting(self.plan, votes, _CLASSES, None, accountant, stream)
            again._ask(0, len(votes), np.tile(first.weights, (count, 1)))
            found = again.labels.reshape(count, len(asked)) - NONE
            scores[begin : begin + count] = self.ratio[asked, found].sum(1)
        return scores


def _split(others: Array, share: float) -> Votes:
    """Votes of all teachers for each query: for the first class from as many of them as have this share of the weight."""
    rows, of_query = np.unique(others, axis=0, return_inverse=True)
    votes = np.ones(rows.shape, np.int64)
    for query, weights in enumerate(rows):
        left = share * weights.sum()
        for teacher in np.argsort(-weights, kind="stable"):
            if 0 < weights[teacher] <= 2 * left:
                votes[query, teacher] = 0
                left -= weights[teacher]
    return votes[of_query.reshape(-1)]


def _best_split(plan: PatePlan, others: float, own: float, total: float) -> float:
    """The share of others' weight for the first class that tells most of the holder's votes, for what a query is expected to cost."""
    shares = np.linspace(0.5, 1.0, _SPLITS)
    counts = np.stack([shares, 1 - shares], axis=1) * others
    laws = [_law(plan, counts + own * np.eye(_CLASSES)[world], np.full(len(shares), total)) for world in range(_CLASSES)]
    told = (np.exp(laws[0]) * (laws[0] - laws[1])).sum(1) + (np.exp(laws[1]) * (laws[1] - laws[0])).sum(1)
    answered = 1 - (np.exp(laws[0][:, 0]) + np.exp(laws[1][:, 0])) / 2
    cost = 1 / plan.aggregator.test_noise**2 + answered * 2 / plan.aggregator.noise**2
    return float(shares[int(np.argmax(told / cost))])


def _law(plan: PatePlan, counts: Array, total: Array) -> Array:
    """The logarithm of how likely no label, the first and the second class are at these counts: (queries, 3)."""
    kind = plan.aggregator
    lead = (counts[:, 0] - counts[:, 1]) / (np.sqrt(2.0) * kind.noise)
    answers = np.stack([log_ndtr(lead), log_ndtr(-lead)], axis=1)
    if not isinstance(kind, Confident):
        return np.column_stack([np.full(len(counts), _NEVER), answers])
    student = np.full(counts.shape, _EVEN) if isinstance(kind, Interactive) else None
    figure, threshold = kind.tested(counts, student, total / plan.teachers)
    above = (figure - threshold) / kind.test_noise
    return np.column_stack([log_ndtr(-above), log_ndtr(above)[:, None] + answers])
