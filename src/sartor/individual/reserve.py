"""The reserve of a plan in a folder: what was released out of it, and what it cost.

    reserve.json    which plan it is of, and the secret by which its files are known
    charge-*        every release, with what was asked and what it costs; `charged` counts them
    answer-*        what was answered
    lock            held while something is asked

The folder is for its owner alone (0700). It is begun with the run, so that one that is missing is not taken for one that nothing was
released from.

Guarantee: all releases of one folder, one after another or at once, through kills at any moment, together cost no holder more than their
    reserve: (reserve epsilon, reserve delta) at their own budget. What was answered can be had again, and the same request costs once.
Proof: charge ahead, never repeat (`sartor.run.charges`): a release is charged before its noise is drawn, under a key of its own that is
    never on a disk, and what a kill cuts off stays charged. All holders undergo the same releases, whose epsilons and deltas add up, also
    where each is asked for after the answers before it (basic composition as a filter: Rogers et al. 2016), and the strictest finite
    epsilon binds. A release of epsilon e has delta e d / s, where d and s are the smallest delta and the smallest epsilon of any finite
    budget: epsilons that add up to at most reserve s have deltas that add up to at most reserve d.
Breaks if: the folder is copied, put back to what it was as a whole, or begun a second time for the same run; a release is made elsewhere.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
from dataclasses import dataclass, field, replace
from numbers import Real
from pathlib import Path
from typing import Any

import numpy as np

from sartor import confidential
from sartor.documents import read_json
from sartor.errors import Infeasible, SartorError
from sartor.individual.release import MARGIN, check, released
from sartor.individual.request import Figures, Release, Request, recognised
from sartor.plans import Plan
from sartor.run import sealed
from sartor.run.charges import PART, Charges, Stored
from sartor.run.files import close_folder, lock, write_private
from sartor.run.stream import Stream

LEAST = 1e-4
"""Of a release: far below it noise is computed from digits that rounding has taken."""

_RESERVE = "reserve.json"
_PARTS = re.compile(rf"\.(reserve\.json|{PART})\..*")


@dataclass(frozen=True)
class Charge:
    """A request, what its release costs, and the release once there is one."""

    request: dict[str, Any] = field(repr=False)
    epsilon: float
    release: Release | None = None


class Reserve:
    """The reserve of a plan, in a folder; `Reserve.create` begins one.

    >>> import tempfile, sartor
    >>> from sartor.individual.request import Figures, Request
    >>> people = sartor.Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-5, reserve=0.5)
    >>> plan = sartor.plan(people, steps=50, batch=100, accountant="rdp")
    >>> accounts = Figures(np.linspace(0.1, 0.9, 1_000))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     reserve = Reserve.create(f"{place}/reserve", plan)
    ...     first = reserve.release(accounts, Request(), epsilon=0.4)
    ...     again = reserve.release(accounts, Request(), epsilon=0.4)
    >>> first == again, len(reserve.releases), first.private
    (True, 1, True)
    """

    def __init__(self, path: str | os.PathLike[str], plan: Plan) -> None:
        """Open the reserve in a folder, which must be of this plan, and remove what a kill has left there half written."""
        self.path, self.plan = Path(os.path.realpath(path)), plan
        _check_reserve(plan)
        if not self.is_in(self.path):
            raise SartorError(
                f"{self.path} holds no reserve, so nobody knows what was released out of it: put it back from where it was copied; "
                "it is begun with the run, and only then."
            )
        with lock(self.path) as held:
            close_folder(self.path)
            for file in list(self.path.iterdir()):
                if _PARTS.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            document = read_json(self.path / _RESERVE, "the reserve's")
            try:
                secret, of = bytes.fromhex(document["secret"]), str(document["plan"])
            except (KeyError, TypeError, ValueError):
                raise SartorError(f"{self.path} holds no reserve that can be read.") from None
            if of != _digest(plan):
                raise SartorError(f"{self.path} holds the reserve of another plan: give the plan of its run.")
            self._charges = Charges(self.path, secret, _packed, _unpacked)
            self._charges.read(held)

    @classmethod
    def create(cls, path: str | os.PathLike[str], plan: Plan) -> Reserve:
        """Begin the reserve of a run under this plan, in a new or empty folder."""
        _check_reserve(plan)
        folder = Path(os.path.realpath(path))
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SartorError(f"{folder} cannot be made: {error.strerror}.") from None
        with lock(folder):
            if any(file.name != "lock" and not _PARTS.fullmatch(file.name) for file in folder.iterdir()):
                raise SartorError(f"{folder} holds a reserve or other files already: it stays as it is; open it, or give another folder.")
            close_folder(folder)
            content = json.dumps({"secret": secrets.token_hex(sealed.SIZE), "plan": _digest(plan)})
            write_private(folder / _RESERVE, content.encode(), new=True)
        return cls(folder, plan)

    @classmethod
    def is_in(cls, path: str | os.PathLike[str]) -> bool:
        """Whether a folder holds a reserve."""
        return os.path.lexists(Path(path) / _RESERVE)

    @property
    def releases(self) -> tuple[Release, ...]:
        """Everything that was released out of it and not cut off, as far as this object knows."""
        return tuple(charge.release for charge in self._charges.made if charge.release is not None)

    @property
    def spent(self) -> float:
        """The epsilon that was charged, also for what a kill or an error cut off, as far as this object knows."""
        return math.fsum(charge.epsilon for charge in self._charges.made)

    def release(self, figures: Figures, request: Request, *, epsilon: float, stream: Stream | None = None) -> Release:
        """Answer a request at this epsilon, and charge for it before anything is drawn.

        A request that was answered at the same epsilon before gets the same answer, whatever has become of the figures, and costs nothing.
        A seeded stream is for tests, and its answer for seeded requests alone.
        """
        epsilon = _checked(epsilon)
        check(self.plan, figures, request)
        with lock(self.path) as held:
            self._charges.read(held)
            before = self._told(request, epsilon, seeded=stream is not None and stream.seeded)
            if before is not None:
                return before
            self._check_left(epsilon)
            charge = Charge(_document(request), epsilon)
            if stream is not None:
                stream.incarnate(len(self._charges.made))
            how: dict[str, Any] = {"epsilon": epsilon, "delta": delta_for(self.plan, epsilon), "stream": stream}
            found = released(self.plan, figures, request, **how, ahead=lambda: self._charges.add(charge, held))
            self._charges.settle(replace(charge, release=found))
            return found

    def told(self, request: Request, *, epsilon: float) -> Release | None:
        """What was answered to a request at this epsilon before, without a seed; None if nothing was."""
        with lock(self.path) as held:
            self._charges.read(held)
            return self._told(request, epsilon, seeded=False)

    def _told(self, request: Request, epsilon: float, *, seeded: bool) -> Release | None:
        asked = recognised(_document(request))
        for charge in self._charges.made:
            found = charge.release
            if found is not None and recognised(charge.request) == asked and charge.epsilon == epsilon and found.private != seeded:
                return found
        return None

    def _check_left(self, epsilon: float) -> None:
        """Refuse what somebody's reserve does not cover; of a group of fewer than ten holders nothing is told but that."""
        plan = self.plan
        spent = self.spent
        whole = plan.reserve * plan.epsilon
        short = spent + epsilon > whole * (1 + MARGIN / 2)
        if not short.any():
            return
        large = np.flatnonzero(short & ~confidential.are_few(plan.holders))
        i = int(large[0] if len(large) else np.flatnonzero(short)[0])
        who = confidential.name_group(float(plan.epsilon[i]), int(plan.holders[i]))
        left = f"{max(whole[i] - spent, 0.0):.6g} of {whole[i]:.6g}" if len(large) else "less"
        raise Infeasible(
            f"the reserve does not cover a release at epsilon {epsilon:g}: {who} has {left} left; ask for less, or for what was answered "
            "before, which costs nothing."
        )

    def __repr__(self) -> str:
        return f"Reserve({len(self.releases)} releases)"


def delta_for(plan: Plan, epsilon: float) -> float:
    """The delta of a release at this epsilon: the same part of the reserve's delta, at the strictest budgets.

    Where the plan merges groups, the next of 1, 2, 5, 10 and so on below it, as its digits would tell what a small group allows.
    """
    finite = np.isfinite(plan.epsilon)
    own = epsilon * float(plan.delta[finite].min()) / float(plan.epsilon[finite].min())
    return confidential.outward(own, own)[0] if plan.view.merged else own


def _check_reserve(plan: Plan) -> None:
    if not plan.reserve:
        raise Infeasible(
            "statistics of accounts are paid out of a reserve, and this plan has none: make the budgets with one "
            "(reserve=; sartor train --reserve)."
        )
    if not np.isfinite(plan.epsilon).any():
        raise SartorError("all records of this plan are public: nothing about them has to be released with noise.")


def _checked(epsilon: object) -> float:
    if not isinstance(epsilon, Real) or isinstance(epsilon, bool) or not LEAST <= float(epsilon) < math.inf:
        raise SartorError(f"the epsilon of a release must be a number of {LEAST:g} or more, and finite, not {epsilon}.")
    return float(epsilon)


def _digest(plan: Plan) -> str:
    return sealed.digest([json.dumps(plan.record(), sort_keys=True).encode()])


def _document(request: Request) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(json.dumps(request.to_json()))
    return found


def _packed(charge: Charge) -> Stored:
    found = None if charge.release is None else charge.release.to_json()
    content = json.dumps({"request": charge.request, "epsilon": charge.epsilon, "release": found}, allow_nan=False)
    return {"document": np.frombuffer(content.encode(), np.uint8)}


def _unpacked(stored: Stored) -> Charge:
    document = json.loads(stored["document"].tobytes())
    found = None if document["release"] is None else Release.from_json(document["release"])
    return Charge(dict(document["request"]), float(document["epsilon"]), found)
