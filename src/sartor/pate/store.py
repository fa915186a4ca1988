"""Votes in a file, with the account of everything that was ever made of them.

Training teachers is the long part, aggregating their votes a matter of a second; but every aggregation is a release, and people pay for
each. So the file carries the account: an aggregation is charged in it, durably, before its labels are handed out, and none is allowed
that the budgets do not cover. Sensitive: the file holds bare votes, and is readable by its owner alone.

Guarantee: whatever is aggregated from one file by the data-independent bound, one after another or at once, in all keeps everyone's budget.
Breaks if: the file is copied, or put back from a copy: then the account forgets what was made in between; or a voting by the
    data-dependent bound is shown, which keeps budgets by that bound alone.
"""

from __future__ import annotations

import functools
import io
import json
import operator
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import rdp
from sartor.errors import Infeasible, SartorError
from sartor.files import lock, write_private
from sartor.pate import smooth
from sartor.pate.aggregators import GNMax
from sartor.pate.costs import Accountant
from sartor.pate.plan import PatePlan, whole
from sartor.pate.voting import Bound, Labels, PateAccount, aggregate, checked_votes
from sartor.sgd.stream import Stream

_MODE = 0o600
_FORMAT = b"sartor votes 1\n"
_DIGEST = 32


@dataclass(frozen=True)
class Published:
    """A released upper figure of what the labels cost by the data-dependent bound: a divergence at an order, and what follows.

    The release itself cost the reserve. A seeded one is not private.
    """

    order: float
    divergence: float
    spent: float
    failure: float
    private: bool = True


class SavedVotes:
    """The votes of an ensemble in a file, and what has been made of them."""

    path: Path
    plan: PatePlan
    votes: NDArray[Any]
    classes: int
    of: str
    accounts: list[PateAccount]
    published: bool

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path).resolve()  # a link must not become a file of its own
        self._read()

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: PatePlan, votes: NDArray[Any], classes: int, *, of: str = "") -> SavedVotes:
        """Write votes that nothing was made of yet. `of` says what was voted on, so that it can be compared later."""
        made = cls.__new__(cls)
        made.path, made.plan, made.classes, made.of = Path(path).resolve(), plan, whole(classes, "the number of classes"), of
        made.votes = checked_votes(plan, votes, made.classes)
        made.accounts, made.published = [], False
        made._write(new=True)
        return made

    def aggregate(
        self,
        *,
        bound: Bound = "independent",
        accountant: Accountant | None = None,
        student: NDArray[np.float64] | None = None,
        labels: int | None = None,
        go_on: bool = False,
        stream: Stream | None = None,
    ) -> Labels:
        """Label the queries out of what earlier aggregations left, and charge for it before the labels can be seen."""
        with self._locked():
            self._read()
            options = {"accountant": accountant, "student": student, "labels": labels, "go_on": go_on, "stream": stream}
            found = aggregate(self.plan, self.votes, self.classes, bound=bound, before=self.accounts, **options)  # type: ignore[arg-type]
            self.accounts = [*self.accounts, found.account]
            self._write()
            return found

    def publish_spent(
        self,
        *,
        order: float | None = None,
        distance: float | None = None,
        margin_scale: float | None = None,
        failure: float = 0.01,
        stream: Stream | None = None,
    ) -> Published:
        """What everything made of these votes cost by the data-dependent bound, released with noise, once, out of the reserve.

        For the standard variant and plain GNMax alone, where the smooth sensitivity of that bound is proven (`smooth`), and for votings
        that stopped by the noise alone. `order`, `distance` and `margin_scale` are chosen from public facts; `smooth` says how.

        Guarantee: with the labels, (epsilon, delta)-DP at everyone's whole budget; the figure is at least the true bound with probability
            1 - failure. It is weak where few teachers or little reserve are given, and never above the data-independent spend.
        """
        with self._locked():
            self._read()
            self._refuse_publication()
            plan, epsilon, delta = self.plan, float(self.plan.epsilon.min()), float(self.plan.delta.min())
            own = (plan.reserve * epsilon, plan.reserve * delta)
            main = float(plan.spendable[1].min())
            rows = np.concatenate([np.arange(account.queries) for account in self.accounts])
            counts = np.stack([np.sum(self.votes[rows] == label, axis=1) for label in range(self.classes)], axis=1)
            cost = 2 * len(rows) / plan.aggregator.noise**2
            if order is None:  # the best one if the votes were a quarter of what they are at worst
                order = 1 + float(np.sqrt(8 * np.log(1 / main) / cost))
            if margin_scale is None:
                margin_scale = 4 * float(np.sqrt(2 * np.log(1 / own[1]))) / own[0]
            try:
                chosen = smooth.calibrate(*own, plan.teachers / 4 if distance is None else distance, margin_scale)
            except Infeasible:  # its message shows a budget
                raise Infeasible("the reserve is too small for a release with this margin_scale: raise one of them.") from None
            source = Stream() if stream is None else stream
            source.take()
            noise = source.generator("pate bound", 0)
            found = smooth.release(
                counts, plan.aggregator.noise, order, chosen.beta, chosen.scale, noise, margin_scale=margin_scale, failure=failure
            )
            self.published = True
            self._write()
            spent = float(rdp.to_epsilon([found.upper], [order], main))
            return Published(order, found.upper, min(spent, float(Accountant().epsilon(cost, main))), failure, not source.seeded)

    def _refuse_publication(self) -> None:
        if self.plan.variant != "standard" or type(self.plan.aggregator) is not GNMax:
            raise SartorError(
                "the data-dependent spend can be released for the standard variant and plain GNMax alone: for others no smooth "
                "sensitivity is proven; publish the spend by the data-independent bound."
            )
        if any(account.bound == "dependent" for account in self.accounts):
            raise SartorError("a voting that stopped by the votes has told more than noise on its spend could take back.")
        if not sum(account.queries for account in self.accounts):
            raise SartorError("nothing was made of these votes, so nothing was spent.")
        if not self.plan.reserve:
            raise Infeasible("a release of the spend is paid from a reserve: make the budgets with one (reserve=).")
        if self.published:
            raise Infeasible("the reserve was spent by an earlier release of the spend.")

    @property
    def account(self) -> PateAccount | None:
        """What everything made of these votes cost in all, or None if nothing was."""
        return functools.reduce(operator.add, self.accounts) if self.accounts else None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Nobody else aggregates from the same file meanwhile."""
        descriptor = lock(Path(f"{self.path}.lock"))
        try:
            yield
        finally:
            os.close(descriptor)

    def _write(self, *, new: bool = False) -> None:
        arrays: dict[str, NDArray[Any]] = {"votes": self.votes}
        listed = []
        for number, account in enumerate(self.accounts):
            arrays[f"cost{number}"] = account.cost
            if account.divergence is not None:
                arrays[f"divergence{number}"] = account.divergence
            if account.accountant.orders is not None:
                arrays[f"orders{number}"] = np.asarray(account.accountant.orders)
            listed.append(
                {
                    "bound": account.bound,
                    "conversion": account.accountant.conversion,
                    "queries": account.queries,
                    "seeded": account.seeded,
                }
            )
        document = {"plan": self.plan.to_json(), "classes": self.classes, "of": self.of, "accounts": listed}
        document["published"] = self.published
        arrays["document"] = np.frombuffer(json.dumps(document).encode(), np.uint8)
        content = io.BytesIO()
        np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
        payload = content.getvalue()
        write_private(self.path, _FORMAT + _digest(payload) + payload, new=new)

    def _account(self, number: int, described: Mapping[str, Any], stored: Mapping[str, NDArray[Any]]) -> PateAccount:
        orders, divergence = (stored.get(f"{what}{number}") for what in ("orders", "divergence"))
        accountant = Accountant(orders, described["conversion"])
        queries, seeded = int(described["queries"]), bool(described["seeded"])
        return PateAccount(self.plan, accountant, described["bound"], stored[f"cost{number}"], divergence, queries, seeded)

    def _read(self) -> None:
        try:
            content = self.path.read_bytes()
            several = self.path.stat().st_nlink > 1
        except OSError as error:
            raise SartorError(f"{self.path} cannot be read: {error.strerror}.") from None
        payload = content[len(_FORMAT) + _DIGEST :]
        if content[: len(_FORMAT)] != _FORMAT or content[len(_FORMAT) : len(_FORMAT) + _DIGEST] != _digest(payload):
            raise SartorError(f"{self.path} holds no votes, or is damaged.")
        if several:
            beside = f".{self.path.name}.*"
            raise SartorError(f"{self.path} has several names (hard links; perhaps {beside}), so its account could be lost: keep one.")
        try:
            self._unpack(payload)
        except (ValueError, KeyError, TypeError, OSError):
            raise SartorError(f"{self.path} holds no votes, or is damaged.") from None

    def _unpack(self, payload: bytes) -> None:
        with np.load(io.BytesIO(payload), allow_pickle=False) as stored:
            document = json.loads(stored["document"].tobytes())
            self.plan = PatePlan.from_json(document["plan"])
            self.votes, self.classes, self.of = stored["votes"], int(document["classes"]), str(document["of"])
            self.published = bool(document["published"])
            self.accounts = [self._account(number, account, stored) for number, account in enumerate(document["accounts"])]


def _digest(payload: bytes) -> bytes:
    return blake2b(payload, digest_size=_DIGEST).digest()
