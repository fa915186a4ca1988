"""Votes become labels under a plan: asked only if everyone can pay, charged for what was seen.

Under the bound that looks at the noise alone (`bound="independent"`), how many queries are safe whatever their answers follows from what
has been spent; those are asked at once, then what they really cost is charged, and so on: the same queries are asked as one at a time
would ask. Under `bound="dependent"`, the paper's way, each query's cost follows the votes themselves, so where voting stops, and what it
spent, are private facts: for research on data that may be shown.

What each release from an ensemble's folder was is kept by `sartor.run.charges`. A charge is kept with what was asked and, once there is
one, with its answer, so that the same request can be answered again.
"""

from __future__ import annotations

import functools
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import rdp
from sartor.errors import SartorError, SartorWarning
from sartor.pate import bounds
from sartor.pate.account import Accountant, Bound, PateAccount, payable
from sartor.pate.plan import NONE, Confident, PatePlan, whole
from sartor.pate.publish import Published
from sartor.pate.rows import per_row, row_count, sensitivities
from sartor.run import charges, sealed
from sartor.run.stream import Stream
from sartor.run.witness import Poll, Test, witness_of

Array = NDArray[np.float64]
_BLOCK = 4096  # queries whose noise and counts are held at once
_SCHEDULED = 256  # the same where each query has participants of its own


class DataDependent(SartorWarning):
    """Labels whose number and cost follow the private votes: no guarantee holds for publishing them."""


@dataclass(frozen=True, eq=False)
class Labels:
    """The labels of a voting, which queries were asked and answered, and the account."""

    labels: NDArray[np.int64]
    asked: NDArray[np.bool_]
    answered: NDArray[np.bool_]
    account: PateAccount
    weights: Array = field(repr=False)
    """For each query that was asked the weight of every teacher in it: what an independent check of the account needs."""

    def __len__(self) -> int:
        return int(np.sum(self.labels != NONE))

    def __repr__(self) -> str:
        return f"Labels({len(self):,} of {int(self.asked.sum()):,} queries asked; {self.account!r})"


def aggregate(
    plan: PatePlan,
    votes: NDArray[np.integer[Any]],
    classes: int,
    *,
    bound: Bound = "independent",
    accountant: Accountant | None = None,
    student: Array | None = None,
    labels: int | None = None,
    go_on: bool = False,
    before: Sequence[PateAccount] = (),
    stream: Stream | None = None,
    ahead: Callable[[PateAccount], None] | None = None,
) -> Labels:
    """Label the queries, in their order, whose `votes` (queries, teachers) are given, until somebody cannot pay for another.

    `student` is an interactive aggregator's: its probabilities (queries, classes). `labels` is a number of labels that is enough. `go_on`
    continues without the groups that are out. `before` are the accounts of earlier votings over the same people. `stream` is for tests; a
    seeded one protects nobody. `ahead` is given the most that this can cost, to be charged before anything is drawn.

    Guarantee: by the data-independent bound this voting and those in `before` together keep everyone's budget.
    Breaks if: the same people's votes are aggregated again without this voting's account in `before`: nothing remembers it here. What is to
        be aggregated more than once belongs into an `EnsembleFolder`, which does.
    """
    classes = whole(classes, "the number of classes")
    enough = np.inf if labels is None else whole(labels, "the number of labels", least=0)
    votes = checked_votes(plan, votes, classes)
    student = None if student is None else np.asarray(student, float)
    queries = len(votes)
    check_options(plan, bound, go_on, accountant)
    plan.aggregator.check(queries, classes, student)
    source = Stream() if stream is None else stream
    source.take()
    voting = Voting(plan, votes, classes, student, accountant_of(bound, accountant), source)
    voting.charge_earlier(before, bound)
    if ahead is not None:
        ahead(voting.most(enough, bound))
    voting.run(enough, bound, go_on)
    warn_of_votes(bound)
    return voting.result(bound)


def warn_of_votes(bound: str) -> None:
    """Warn whoever called the caller where what they get follows the private votes."""
    if bound == "dependent":
        warnings.warn(
            "where this voting stopped and what it spent follow the private votes: no guarantee holds for showing them; the "
            "data-independent bound has one.",
            DataDependent,
            stacklevel=3,
        )


def accountant_of(bound: str, accountant: Accountant | None) -> Accountant:
    """The accountant that was given, or what is usual under a bound."""
    return accountant or (Accountant.fine() if bound == "dependent" else Accountant())


def checked_votes(plan: PatePlan, votes: Any, classes: int) -> NDArray[Any]:
    """One class of each teacher for each query, or one clear error."""
    try:
        found = np.asarray(votes)
    except ValueError:
        found = np.zeros(0)
    if found.ndim != 2 or found.shape[1] != plan.teachers:
        raise SartorError(f"there must be one vote of each of the plan's {plan.teachers} teachers for each query.")
    if found.dtype.kind not in "iu" or (found.size and not (found.min() >= 0 and found.max() < classes)):
        raise SartorError(f"votes are classes from 0 to {classes - 1}, as whole numbers.")
    return found


def check_options(plan: PatePlan, bound: str, go_on: bool, accountant: Accountant | None = None) -> None:
    """Whether a voting can be asked for like this: to be known before teachers are trained."""
    if bound == "dependent" and accountant is not None and accountant.orders is None:
        raise SartorError("the data-dependent bound is in Rényi divergences: give an accountant with orders.")
    if bound not in ("independent", "dependent"):
        raise SartorError(f'a bound is "independent" or "dependent", not "{bound}".')
    if go_on and (bound == "dependent" or not plan.apart):
        raise SartorError("go_on=True needs variant 'weight' or 'vanish' and bound='independent'.")


class Voting:
    """One voting under way: what is asked, and what each row of the account owes for it."""

    def __init__(
        self, plan: PatePlan, votes: NDArray[Any], classes: int, student: Array | None, accountant: Accountant, stream: Stream
    ) -> None:
        self.plan, self.votes, self.classes, self.student = plan, votes, classes, student
        self.accountant, self.stream = accountant, stream
        self.before, self.cost = np.zeros(row_count(plan)), np.zeros(row_count(plan))
        self.took_part, self.had_answer = np.zeros(row_count(plan), np.int64), np.zeros(row_count(plan), np.int64)
        self.divergence_before: Array | None = None
        self.divergence: Array | None = None
        self.labels = np.full(len(votes), NONE, np.int64)
        self.asked, self.answered = np.zeros(len(votes), bool), np.zeros(len(votes), bool)
        self.active = np.ones(plan.teachers, bool)
        self.weights: list[Array] = []
        self.offset = 0
        self.witness = witness_of(stream)

    @cached_property
    def noise(self) -> np.random.Generator:
        """Of tests and answers, one after another; there is none before the first is asked."""
        return self.stream.generator("pate", 0)

    def charge_earlier(self, before: Sequence[PateAccount], bound: Bound) -> None:
        """Begin where earlier votings over the same people ended."""
        for account in before:
            if account.plan != self.plan:
                raise SartorError("an earlier voting was under another plan: its spend cannot be added up with this one's.")
        if bound == "independent" and any(account.sensitive for account in before):
            raise SartorError(
                "an earlier voting stopped by the votes, so one that begins where it ended would tell where that was: it cannot be private."
            )
        self.offset = sum(account.queries for account in before)
        if bound == "dependent":
            orders = self.accountant.orders
            assert orders is not None
            self.divergence = np.zeros((len(self.cost), len(orders)))
            self.divergence_before = sum((account.divergence_at(self.accountant) for account in before), np.zeros_like(self.divergence))
        self.before = sum((account.cost for account in before), self.before)

    def most(self, enough: float, bound: Bound) -> PateAccount:
        """The most that this can cost: every query tested, as many answered as are enough, or all that each row has left."""
        test, answer = self._prices()
        queries = int(len(self.votes) if test else min(len(self.votes), enough))
        squares = sensitivities(self.plan) ** 2
        cost = squares * (queries * test + min(queries, enough) * answer)
        if bound == "independent":
            left = per_row(self.plan, self.accountant.allowance(*self.plan.spendable)) - self.before
            cost = np.minimum(cost, np.maximum(left, 0.0))
        answered = np.divide(cost - squares * queries * test, squares * answer, out=np.zeros_like(cost), where=squares > 0)
        asked = np.where(cost > 0, queries, 0)
        divergence = None if bound == "independent" else cost[:, None] / 2 * np.asarray(self.accountant.orders)
        rows = (cost, asked, np.ceil(np.clip(answered, 0, asked)).astype(np.int64))
        return PateAccount(self.plan, self.accountant, bound, *rows, divergence, queries, self.stream.seeded)

    def run(self, enough: float, bound: Bound, go_on: bool) -> None:
        """Ask until somebody is out, all is asked, or there are labels enough."""
        if bound == "dependent":
            self._run_by_votes(enough)
            return
        allowance = per_row(self.plan, self.accountant.allowance(*self.plan.spendable))
        place = 0
        while place < len(self.votes) and np.sum(self.labels != NONE) < enough:
            block = _SCHEDULED if self.plan.rests else _BLOCK
            most = int(min(len(self.votes) - place, block, enough - np.sum(self.labels != NONE)))
            weights, sensitivity = self._multipliers(place, most)
            voted = weights.max(1) > 0
            if not voted[0]:  # those whose turn it is are out: nobody is asked, nobody is charged
                place += 1
                continue
            most = most if voted.all() else int(np.argmin(voted))
            safe, out = self._safe(sensitivity[:most], allowance)
            if not safe:
                if not go_on or not self._leave(out):
                    break
                continue
            self.cost = self.cost + self._ask(place, safe, weights[:safe])
            place += safe

    def _multipliers(self, place: int, count: int) -> tuple[Array, Array]:
        """For the next queries: the weight of every teacher, and the sensitivity of every row of the account."""
        schedule = self.plan.schedule(self.offset + place, count) & self.active
        weights = np.where(schedule, self.plan.weights, 0.0)
        if self.plan.rests:
            return weights, weights
        taking_part = np.array([bool(self.active[self.plan.begin[g]]) for g in range(len(self.plan))])
        return weights, np.broadcast_to(np.where(taking_part, self.plan.sensitivity, 0.0), (count, len(self.plan)))

    def _prices(self) -> tuple[float, float]:
        """What a test and an answer cost at sensitivity 1: the squared ratios of their Gaussians."""
        kind = self.plan.aggregator
        return 1 / kind.test_noise**2, 2 / kind.noise**2

    def _safe(self, sensitivity: Array, allowance: Array) -> tuple[int, NDArray[np.bool_]]:
        """How many of the next queries everyone can pay for whatever their answers, and who cannot pay for the one after them."""
        if not self.plan.rests:  # the same for every query
            each = sensitivity[0] ** 2 * sum(self._prices())
            spent = self.before + self.cost
            safe = int(payable(each, spent, allowance, len(sensitivity)).min())
            return safe, (each > 0) & (spent + (safe + 1) * each > allowance)
        worst = np.cumsum(sensitivity**2 * sum(self._prices()), axis=0)
        kept = (worst == 0) | (worst + self.before + self.cost <= allowance)
        safe = int(np.argmin(kept.all(1))) if not kept.all() else len(kept)
        return safe, np.zeros(len(allowance), bool) if safe == len(kept) else ~kept[safe]

    def _leave(self, out: NDArray[np.bool_]) -> bool:
        """Go on without the teachers of those who are out; whether anybody is left."""
        for row in np.flatnonzero(out):
            if self.plan.rests:
                self.active[row] = False
            else:
                self.active[self.plan.begin[row] : self.plan.end[row]] = False
        return bool(self.active.any())

    def _ask(self, place: int, count: int, weights: Array) -> Array:
        """Ask queries that everyone can pay for, and what each row of the account owes for them."""
        self.stream.check_process()  # its noise goes on where it was, so another process would draw the same
        part = slice(place, place + count)
        counts = _counts(self.votes[part], self.classes, weights)
        student = None if self.student is None else self.student[part]
        test = self._tested(counts, weights, student)
        passed = np.ones(count, bool) if test is None else test.noisy > test.threshold
        noisy = counts + self.noise.normal(0.0, self.plan.aggregator.noise, counts.shape)
        found = np.argmax(noisy, axis=1)
        if self.witness is not None:
            passed, found = self.witness.voted(Poll(place, counts, noisy, weights, test, passed, found))
        otherwise = self.plan.aggregator.otherwise(student, count)
        self.labels[part] = np.where(passed, found, otherwise)
        self.asked[part], self.answered[part] = True, passed
        self.weights.append(weights)
        return self._owed(weights, passed)

    def _owed(self, weights: Array, passed: NDArray[np.bool_]) -> Array:
        """What each row of the account owes for queries: for all tests, and for the answers given."""
        count = len(passed)
        test, answer = self._prices()
        squares = self._row_sensitivity(weights) ** 2
        present = np.broadcast_to(squares > 0, (count, len(self.cost)))
        self.took_part, self.had_answer = self.took_part + present.sum(0), self.had_answer + present[passed].sum(0)
        if not self.plan.rests:
            return np.asarray(squares[0] * (count * test + int(passed.sum()) * answer))
        return np.asarray(squares.sum(0) * test + (squares * passed[:, None]).sum(0) * answer)

    def _row_sensitivity(self, weights: Array) -> Array:
        """The sensitivity of every row of the account in these queries; one line of them where it is the same in all."""
        if self.plan.rests:
            return weights
        return np.asarray(weights[:1, self.plan.begin] * self.plan.duplicates)

    def _tested(self, counts: Array, weights: Array, student: Array | None) -> Test | None:
        """What is tested before an answer, if anything."""
        kind = self.plan.aggregator
        if not isinstance(kind, Confident):
            return None
        figure, threshold = kind.tested(counts, student, weights.sum(1) / self.plan.teachers)
        return Test(figure, figure + self.noise.normal(0.0, kind.test_noise, len(counts)), threshold)

    def _run_by_votes(self, enough: float) -> None:
        """One query at a time, each at the cost that its votes give it."""
        plan, kind, orders = self.plan, self.plan.aggregator, self.accountant.orders
        assert orders is not None
        assert self.divergence is not None
        assert self.divergence_before is not None
        epsilon, delta = (per_row(plan, values) for values in plan.spendable)
        found = 0
        block = _SCHEDULED if plan.rests else _BLOCK
        for begin in range(0, len(self.votes), block):
            size = min(block, len(self.votes) - begin)
            weights, sensitivity = self._multipliers(begin, size)
            counts = _counts(self.votes[begin : begin + size], self.classes, weights)
            student = None if self.student is None else self.student[begin : begin + size]
            log_q = bounds.log_q_of_answers(counts, kind.noise)
            tested = None
            if isinstance(kind, Confident):
                figure, threshold = kind.tested(counts, student, weights.sum(1) / plan.teachers)
                tested = bounds.log_q_of_tests(figure, threshold, kind.test_noise)
            for i in range(size):
                answer = bounds.answer(orders, kind.noise, sensitivity[i], log_q[i])
                test = 0.0 if tested is None else bounds.comparison(orders, kind.test_noise, sensitivity[i], tested[i])
                after = rdp.to_epsilon(self.divergence_before + self.divergence + test + answer, orders, delta, self.accountant.conversion)
                if np.any(after > epsilon) or found >= enough:
                    return
                place = begin + i
                self.cost = self.cost + self._ask(place, 1, weights[i : i + 1])
                self.divergence = self.divergence + test + (answer if self.answered[place] else 0.0)
                found += int(self.labels[place] != NONE)

    def result(self, bound: Bound) -> Labels:
        """What was found, and the account of this voting alone."""
        asked = int(self.asked.sum())
        rows = (self.cost, self.took_part, self.had_answer)
        account = PateAccount(self.plan, self.accountant, bound, *rows, self.divergence, asked, self.stream.seeded)
        weights = np.concatenate(self.weights) if self.weights else np.zeros((0, self.plan.teachers))
        return Labels(self.labels, self.asked, self.answered, account, weights)


def _counts(votes: NDArray[Any], classes: int, weights: Array) -> Array:
    """The weight of the votes for each class: (queries, classes)."""
    return np.stack([np.where(votes == label, weights, 0.0).sum(1) for label in range(classes)], axis=1)


Request = Mapping[str, Any]
_FOUND = ("labels", "asked", "answered", "weights")
_ROWS = ("cost", "asked", "answered", "divergence")


@dataclass(frozen=True, eq=False)
class Charge:
    """A release: its request, what an aggregation cost, or may cost at most until there is an answer, and the answer.

    One without an account is the release of the spend, which costs the reserve.
    """

    request: Request = field(repr=False)
    account: PateAccount | None = None
    answer: Labels | Published | None = field(default=None, repr=False)


class Charges(charges.Charges[Charge]):
    """The charges in an ensemble's folder, oldest first."""

    def __init__(self, folder: Path, secret: bytes, plan: PatePlan) -> None:
        super().__init__(folder, secret, _packed, functools.partial(_unpacked, plan))

    @property
    def accounts(self) -> list[PateAccount]:
        """The accounts of all aggregations."""
        return [charge.account for charge in self.made if charge.account is not None]

    @property
    def labels(self) -> list[Labels]:
        """The answers of all aggregations that have one."""
        return [charge.answer for charge in self.made if isinstance(charge.answer, Labels)]

    def told(self, request: Request) -> Labels | None:
        """The latest aggregation that answered this very request."""
        answers = (charge.answer for charge in reversed(self.made) if charge.request == request)
        return next((found for found in answers if isinstance(found, Labels)), None)


def request_of(
    bound: str, accountant: Accountant | None, student: ArrayLike | None, labels: int | None, *, go_on: bool, seeded: bool
) -> Request:
    """Everything that decides what an aggregation answers, but the votes and what was made of them before: as JSON has it."""
    known = accountant_of(bound, accountant)
    given = None if student is None else np.asarray(student, float)
    return {
        "bound": bound,
        "orders": None if known.orders is None else np.asarray(known.orders, float).tolist(),
        "conversion": known.conversion,
        "student": None if given is None else sealed.digest([str(given.shape).encode(), given.tobytes()]),
        "labels": None if labels is None else whole(labels, "the number of labels", least=0),
        "go_on": bool(go_on),
        "seeded": seeded,
    }


def _packed(charge: Charge) -> dict[str, NDArray[Any]]:
    account, answer, arrays = charge.account, charge.answer, {}
    document: dict[str, Any] = {"request": charge.request, "queries": None if account is None else account.queries}
    if account is not None:
        arrays = {f"account {name}": getattr(account, name) for name in _ROWS if getattr(account, name) is not None}
    if isinstance(answer, Published):
        document["published"] = asdict(answer)
    elif answer is not None:
        arrays |= {name: getattr(answer, name) for name in _FOUND}
    return {**arrays, "document": np.frombuffer(json.dumps(document).encode(), np.uint8)}


def _unpacked(plan: PatePlan, stored: Mapping[str, NDArray[Any]]) -> Charge:
    document = json.loads(stored["document"].tobytes())
    request, queries = document["request"], document["queries"]
    if queries is None:
        return Charge(request, answer=Published(**document["published"]) if "published" in document else None)
    accountant = Accountant(None if request["orders"] is None else np.array(request["orders"]), request["conversion"])
    rows: dict[str, Any] = {name: stored.get(f"account {name}") for name in _ROWS}
    account = PateAccount(plan, accountant, request["bound"], **rows, queries=int(queries), seeded=bool(request["seeded"]))
    if "labels" not in stored:
        return Charge(request, account)
    labels, asked, answered, weights = (stored[name] for name in _FOUND)
    return Charge(request, account, Labels(labels, asked, answered, account, weights))
