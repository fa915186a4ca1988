"""An ensemble in a folder: who is taught where, the finished teachers, their votes, and the account of all that was made of them.

Training teachers is the long part, aggregating their votes a matter of a second; but every aggregation is a release, and people pay for
each. So what is kept on a disk is kept in one place and leaves it in one way: `aggregate` charges in the folder, durably, before it hands
labels out, and asks nothing that the budgets do not cover after all that was asked before. The folder is for its owner alone (0700), and
nothing of the ensemble is ever written outside of it:

    ensemble.json   the key of the places, everyone's name and budget, whose each record is, the plan
    teaching.json   fingerprints of settings, data, ownership and queries, and the seed of the teachers
    teacher-*       finished teachers: votes and weights
    votes           the votes of all teachers
    charge-*        every release, with the most that it can cost; `charged` counts them
    answer-*        what was answered, and what it cost after all
    lock            held while something is written

Guarantee: whatever is aggregated from one folder by the data-independent bound, one after another or at once, through kills at any moment,
    in all keeps everyone's budget. A request that was answered gets its latest answer again, at no further cost, unless it asks for
    `further` labels. Whoever goes on with it has the same people, with the same records, at the same teachers, under the same plan.
Proof: `sartor.run.charges` for the account. Charge ahead, never repeat: the most that an aggregation can cost is on the disk before it
    draws, and what a kill cuts off stays charged with that; each has a key of its own, which is never on a disk; an answer given again is
    no release. Everything else is written once; teachers, votes and charges prove where they belong (`sealed`), and what is to be
    taught is compared with what was. Parts of files that a kill left are removed when the folder is opened next.
Breaks if: the folder is copied, or put back to what it was; the same people are taught in a second folder: each folder knows its own
    account alone; or a voting by the data-dependent bound is shown, which keeps budgets by that bound alone.
"""

from __future__ import annotations

import functools
import json
import operator
import os
import re
import secrets
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.documents import read_json
from sartor.errors import Infeasible, SartorError
from sartor.numbers import from_json_number, to_json_number
from sartor.ownership import Ownership
from sartor.pate.account import Accountant, Bound, PateAccount
from sartor.pate.partition import check_owners, partition
from sartor.pate.plan import PatePlan, whole
from sartor.pate.publish import Published, published
from sartor.pate.voting import Charge, Charges, Labels, aggregate, checked_votes, request_of, warn_of_votes
from sartor.run import sealed
from sartor.run.charges import PART
from sartor.run.files import Lock, lock, same, write_private
from sartor.run.stream import Stream

if TYPE_CHECKING:
    from torch import Tensor
    from torch.utils.data import TensorDataset

    from sartor.pate.teachers import Teachers, Votes, Weights

_ENSEMBLE, _TEACHING, _VOTES = "ensemble.json", "teaching.json", "votes"
_PARTS = re.compile(rf"\.(ensemble\.json|teaching\.json|teacher-\d+\.safetensors|votes|{PART})\..*")


class EnsembleFolder:
    """An ensemble in a folder; `EnsembleFolder.create` begins one.

    >>> import tempfile, sartor
    >>> from sartor import pate
    >>> people = sartor.Budgets.from_groups([(1.0, 60), (2.0, 40)], delta=1e-5)
    >>> plan = pate.plan(people, "weight", teachers=10, aggregator=pate.GNMax(noise=30))
    >>> with tempfile.TemporaryDirectory() as place:
    ...     folder = EnsembleFolder.create(f"{place}/kept", plan, people)
    ...     folder.put(np.zeros((300, 10), int), classes=3)
    ...     first, same = folder.aggregate(labels=5), EnsembleFolder(f"{place}/kept").aggregate(labels=5)
    ...     further, none = len(folder.aggregate(further=True)), len(folder.aggregate(further=True))
    >>> bool(np.all(first.labels == same.labels)), len(first)  # the same request costs once
    (True, 5)
    >>> further > 0, none  # further labels are of what earlier ones left
    (True, 0)
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        """Open the ensemble in a folder, and remove what a kill has left there half written."""
        self.path = Path(os.path.realpath(path))
        if not os.path.lexists(self.path / "lock") and not self.is_in(self.path):
            raise SartorError(f"{self.path} holds no ensemble.")
        with lock(self.path) as held:
            if not self.is_in(self.path):  # nor did whoever had the lock begin one
                raise SartorError(f"{self.path} holds no ensemble.")
            _own(self.path)
            for file in _files(self.path):
                if _PARTS.fullmatch(file.name):
                    file.unlink(missing_ok=True)
            document = read_json(self.path / _ENSEMBLE, "the ensemble's")
            try:
                self._secret, self._key = bytes.fromhex(document["secret"]), bytes.fromhex(document["key"])
                self.plan, people = PatePlan.from_json(document["plan"]), document["budgets"]
                self.budgets = Budgets(
                    [from_json_number(value) for value in people["epsilon"]],
                    delta=people["delta"],
                    holders=people["holders"],
                    reserve=people["reserve"],
                )
                self.plan.groups_of(self.budgets)
                # folders of earlier versions say nothing of it, as those in which every holder has the one record of their place
                owners = document.get("ownership")
                self.ownership = None if owners is None else Ownership(owners, len(self.budgets))
                _check_records(self.plan, self.budgets, self.ownership)
            except (KeyError, TypeError, ValueError, AttributeError):
                raise SartorError(f"{self.path} holds no ensemble that can be read.") from None
            self._charges = Charges(self.path, self._secret, self.plan)
            self._charges.read(held)

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        plan: PatePlan,
        budgets: Budgets,
        *,
        ownership: Ownership | None = None,
        key: bytes | None = None,
    ) -> EnsembleFolder:
        """Begin an ensemble of these people in a new or empty folder; without a key of their places, one is drawn.

        `ownership` says whose each record is, and is kept with the people; without it every holder has one record, in the order of the
        budgets. A plan that did not know how many records there are does so in the folder.
        """
        folder = Path(os.path.realpath(path))
        plan.groups_of(budgets)
        _check_records(plan, budgets, ownership)
        plan = replace(plan, records=None if ownership is None else len(ownership))
        document = {
            "secret": secrets.token_hex(sealed.SIZE),
            "key": (secrets.token_bytes(32) if key is None else key).hex(),
            "plan": plan.to_json(sensitive=True),
            "budgets": {
                "holders": None if budgets.names is None else list(budgets.names),
                "epsilon": [to_json_number(value) for value in budgets.epsilon.tolist()],
                "delta": budgets.delta.tolist(),
                "reserve": budgets.reserve,
            },
            "ownership": None if ownership is None else ownership.of_record.tolist(),
        }
        try:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        except OSError as error:
            raise SartorError(f"{folder} cannot be made: {error.strerror}.") from None
        _refuse_others(folder)
        with lock(folder):
            _refuse_others(folder)
            _own(folder)
            write_private(folder / _ENSEMBLE, json.dumps(document).encode(), new=True)
        return cls(folder)

    @classmethod
    def is_in(cls, path: str | os.PathLike[str]) -> bool:
        """Whether a folder holds an ensemble."""
        return os.path.lexists(Path(path) / _ENSEMBLE)

    def check_same(self, plan: PatePlan, budgets: Budgets | None = None, ownership: Ownership | None = None) -> None:
        """Refuse to go on under another plan or, if they are given, with other people, names, budgets or owners of the records.

        Budgets without an ownership are those of people with one record each.
        """
        if plan != (self.plan if plan.records is not None else replace(self.plan, records=None)):
            raise SartorError(
                f"{self.path} holds an ensemble of another plan: repeat the options that it was made with, or give another folder."
            )
        if budgets is not None and budgets != self.budgets:
            raise SartorError(f"{self.path} holds an ensemble of other budgets or holders: give the same, or another folder.")
        if budgets is not None or ownership is not None:
            self._check_owners(ownership)

    def _check_owners(self, ownership: Ownership | None) -> None:
        """Refuse another ownership; none is that of people with one record each, in their order."""
        plain = Ownership(np.arange(len(self.budgets)), len(self.budgets))
        asked, kept = (plain if owners is None else owners for owners in (ownership, self.ownership))
        named = asked.names is None or asked.names == self.budgets.names
        if not named or not np.array_equal(asked.of_record, kept.of_record):
            raise SartorError(f"{self.path} holds an ensemble of another ownership: give the same, or another folder.")

    @property
    def has_voted(self) -> bool:
        """Whether all teachers have voted, so that none is to be trained."""
        return (self.path / _VOTES).exists()

    def teach(
        self, teachers: Teachers, dataset: TensorDataset, queries: Tensor, classes: int, *, ownership: Ownership | None = None
    ) -> None:
        """Train the teachers that are not finished and let them vote; at once if all have. A run that was killed goes on where it was.

        The records are in the order of the ensemble's ownership, or without one in that of the budgets. Others than those that the folder
        was begun with are refused, as are other settings and, if one is given, another ownership.
        """
        if ownership is not None:
            self._check_owners(ownership)
        if self.ownership is None and len(dataset) != len(self.budgets):
            raise SartorError(f"there are {len(self.budgets):,} budgets for {len(dataset):,} records.")
        if self.ownership is not None and len(dataset) != len(self.ownership):
            raise SartorError(f"the ensemble's ownership is of {len(self.ownership):,} records, but there are {len(dataset):,}.")
        of = {
            "settings": sealed.digest([json.dumps(teachers.settings(dataset, queries), sort_keys=True, default=str).encode()]),
            "data": sealed.digest(_bytes_of(tensor) for tensor in dataset.tensors),
            "queries": sealed.digest([_bytes_of(queries)]),
            "classes": str(whole(classes, "the number of classes")),
        }
        if self.ownership is not None:
            of["ownership"] = sealed.digest([self.ownership.of_record.tobytes()])
        slices = partition(self.plan, self.budgets, self._key, ownership=self.ownership).slices()
        with lock(self.path):
            voted = (self.path / _VOTES).exists()
            if voted and not (self.path / _TEACHING).exists():
                raise SartorError(f"{self.path} holds votes that were made elsewhere: give another folder to teachers.")
            seed = self._seed(of, teachers.seed)
            if voted:
                return
            done = self._finished(slices, len(queries))
        for number, votes, weights in teachers.taught(dataset, slices, queries, seed, done):
            with lock(self.path) as held:
                self._keep(number, slices[number], votes, weights, held)
            done[number] = votes
        self._put(np.stack([done[number] for number in range(len(slices))], axis=1), classes)  # unless another run came first

    def put(self, votes: NDArray[Any], classes: int) -> None:
        """Votes that were made elsewhere, (queries, teachers), and of which nothing was made: they are accounted for from here on."""
        if (self.path / _TEACHING).exists() or not self._put(votes, whole(classes, "the number of classes")):
            raise SartorError(f"{self.path} holds votes or teachers already: what is made of them is charged there; give another folder.")

    def _put(self, votes: NDArray[Any], classes: int) -> bool:
        """Keep votes where there are none; whether there were none."""
        found = checked_votes(self.plan, votes, classes)
        with lock(self.path) as held:
            if (self.path / _VOTES).exists():
                return False
            content = sealed.sealed(self._secret, _VOTES, {"votes": found, "classes": np.array(classes)})
            held.check()
            write_private(self.path / _VOTES, content, new=True)
            return True

    def aggregate(
        self,
        *,
        bound: Bound = "independent",
        accountant: Accountant | None = None,
        student: NDArray[np.float64] | None = None,
        labels: int | None = None,
        go_on: bool = False,
        further: bool = False,
        stream: Stream | None = None,
    ) -> Labels:
        """Label the queries out of what earlier aggregations left, and charge for it before anything is drawn.

        A request that was answered before gets its latest answer again, at no further cost; with `further` it is asked anew.

        Args:
            bound: What costs are charged by, as for `sartor.pate.aggregate`; so are the next four.
            accountant: How costs add up.
            student: An interactive aggregator's probabilities.
            labels: A number of labels that is enough.
            go_on: Whether to continue without the groups that are out.
            further: Ask also what was asked before, and pay for it.
            stream: For tests: a seeded one protects nobody, and gets the answers of seeded requests alone.

        Returns:
            The labels, with the account of this aggregation.

        Raises:
            SartorError: if nothing can be asked so, or the teachers have not voted; nothing is charged then.
        """
        asked = {"bound": bound, "accountant": accountant, "student": student, "labels": labels, "go_on": go_on}
        request = request_of(**asked, seeded=stream is not None and stream.seeded)  # type: ignore[arg-type]
        with lock(self.path) as held:
            self._charges.read(held)
            before = None if further else self._charges.told(request)
            if before is not None:
                warn_of_votes(bound)
                return before
            votes, classes = self._votes()
            if stream is not None:
                stream.incarnate(len(self._charges.made))
            found = aggregate(
                self.plan,
                votes,
                classes,
                before=self._charges.accounts,
                **asked,  # type: ignore[arg-type]
                stream=stream,
                ahead=lambda most: self._charges.add(Charge(request, most), held),
            )
            self._charges.settle(Charge(request, found.account, found))
            return found

    def told(
        self,
        *,
        bound: Bound = "independent",
        accountant: Accountant | None = None,
        student: NDArray[np.float64] | None = None,
        labels: int | None = None,
        go_on: bool = False,
        seeded: bool = False,
    ) -> Labels | None:
        """Look up the latest answer to a request of `aggregate`, as far as this object knows; None if it was never answered."""
        return self._charges.told(request_of(bound, accountant, student, labels, go_on=go_on, seeded=seeded))

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

        `publish` says where that is possible; `order`, `distance` and `margin_scale` are chosen from public facts; `smooth` says how.
        Until something more is made of the votes, the same request gets the same figure.

        Guarantee: with the labels, (epsilon, delta)-DP at everyone's whole budget; the figure is at least the true bound with probability
            1 - failure. It is weak where few teachers or little reserve are given, and never above the data-independent spend.
        """
        options = {"order": order, "distance": distance, "margin_scale": margin_scale, "failure": failure}
        request = {**options, "seeded": stream is not None and stream.seeded}
        with lock(self.path) as held:
            self._charges.read(held)
            earlier = next((charge for charge in self._charges.made if charge.account is None), None)
            if earlier is not None:
                if isinstance(earlier.answer, Published) and earlier is self._charges.made[-1] and earlier.request == request:
                    return earlier.answer
                raise Infeasible("the reserve was spent by an earlier release of the spend.")
            if stream is not None:
                stream.incarnate(len(self._charges.made))
            how = {**options, "stream": stream, "ahead": lambda: self._charges.add(Charge(request), held)}
            found = published(self.plan, *self._votes(), self._charges.accounts, **how)  # type: ignore[arg-type]
            self._charges.settle(Charge(request, answer=found))
            return found

    @property
    def accounts(self) -> list[PateAccount]:
        """The account of each aggregation that this object knows of."""
        return self._charges.accounts

    @property
    def account(self) -> PateAccount | None:
        """What everything made of these votes cost in all, or None if nothing was."""
        return functools.reduce(operator.add, self.accounts) if self.accounts else None

    @property
    def labels(self) -> list[NDArray[np.int64]]:
        """The labels of each aggregation that was not cut off: one for each query, -1 where none was given."""
        return [found.labels for found in self._charges.labels]

    @property
    def cut_off(self) -> int:
        """How many aggregations a kill or an error cut off: they have no labels, and are charged with the most that they could cost."""
        return len(self.accounts) - len(self.labels)

    def __repr__(self) -> str:
        return f"EnsembleFolder({self.plan!r}, {len(self._charges.made)} charges)"

    def _votes(self) -> tuple[NDArray[Any], int]:
        file = self.path / _VOTES
        if not file.exists():
            raise SartorError(f"the teachers in {self.path} have not all voted: teach them first.")
        stored = sealed.opened(self._secret, _VOTES, file)
        return stored["votes"], int(stored["classes"])

    def _seed(self, of: dict[str, str], seed: int | None) -> int:
        """The seed of the teachers, if they are taught the same as before."""
        file = self.path / _TEACHING
        if not file.exists():
            drawn = secrets.randbits(128) if seed is None else seed
            write_private(file, json.dumps({"of": of, "seed": str(drawn)}).encode(), new=True)
            return drawn
        found = read_json(file, "the ensemble's")
        try:
            before, known = dict(found["of"]), int(found["seed"])
        except (KeyError, TypeError, ValueError):
            raise SartorError(f"{file} is damaged: give another folder.") from None
        for what in {**before, **of}:
            if before.get(what) != of.get(what):
                raise SartorError(f"{self.path} holds teachers of other {what}: give another folder, or the same {what}.")
        if seed not in (None, known):
            raise SartorError(f"{self.path} holds teachers of another seed: give another folder, or the same seed.")
        return known

    def _teacher(self, number: int) -> Path:
        return self.path / f"teacher-{number:05d}.safetensors"

    def _proof(self, number: int, rows: NDArray[np.int64], tensors: dict[str, NDArray[Any]]) -> str:
        parts = [f"{name} {tensors[name].dtype} {tensors[name].shape}".encode() + tensors[name].tobytes() for name in sorted(tensors)]
        return sealed.proof(self._secret, f"teacher {number}", [np.ascontiguousarray(rows).tobytes(), *parts]).hex()

    def _keep(self, number: int, rows: NDArray[np.int64], votes: Votes, weights: Weights, held: Lock) -> None:
        from safetensors.numpy import save

        tensors = {"votes": votes, **{f"weights.{name}": np.ascontiguousarray(value) for name, value in weights.items()}}
        held.check()
        write_private(self._teacher(number), save(tensors, {"proof": self._proof(number, rows, tensors)}))

    def _finished(self, slices: list[NDArray[np.int64]], queries: int) -> dict[int, Votes]:
        """The votes of the teachers that are in the folder, each of which must be the one that its name says."""
        from safetensors import SafetensorError, safe_open

        done = {}
        for number, rows in enumerate(slices):
            if not (file := self._teacher(number)).exists():
                continue
            try:
                with safe_open(file, "numpy") as stored:
                    tensors = {name: stored.get_tensor(name) for name in stored.keys()}  # noqa: SIM118
                    proven = (stored.metadata() or {}).get("proof") == self._proof(number, rows, tensors)
            except (SafetensorError, OSError):
                proven = False
            if not proven or tensors["votes"].shape != (queries,):
                raise SartorError(f"{file} is damaged, or another teacher's: remove it, and its teacher is trained again.")
            done[number] = tensors["votes"]
        return done


def lies_in(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a path is this folder, lies in it, or is another name of a file in it, by whatever links."""
    real, inside = Path(os.path.realpath(path)), Path(os.path.realpath(folder))
    ways = [real, *real.parents]
    if inside in ways:
        return True
    if not os.path.isdir(inside):
        return False
    return any(same(way, inside) for way in ways) or any(same(real, file) for file in _files(inside))


def _check_records(plan: PatePlan, budgets: Budgets, ownership: Ownership | None) -> None:
    """Refuse an ownership of other holders, or of other records than the plan knows of."""
    check_owners(plan, budgets, ownership)
    if ownership is not None and plan.records not in (None, len(ownership)):
        raise SartorError(f"this plan is for {plan.records:,} records, but the ownership is of {len(ownership):,}.")


def _files(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError as error:
        raise SartorError(f"{folder} cannot be read: {error.strerror}.") from None


def _refuse_others(folder: Path) -> None:
    """Begin only where nothing is, but for what an earlier beginning may have left."""
    names = {file.name for file in _files(folder)}
    if _ENSEMBLE in names:
        raise SartorError(
            f"{folder} holds an ensemble already, which stays as it is: go on with it by the same command again, or in Python by "
            "EnsembleFolder(path)."
        )
    if any(name != "lock" and not _PARTS.fullmatch(name) for name in names):
        raise SartorError(f"{folder} holds other files and no ensemble: give an empty folder or a new one.")


def _own(folder: Path) -> None:
    """Make the folder its owner's alone."""
    try:
        folder.chmod(0o700)
    except OSError as error:
        raise SartorError(f"{folder} cannot be made its owner's alone: {error.strerror}.") from None


def _bytes_of(tensor: Tensor) -> bytes:
    """A tensor with its shape and type."""
    return f"{tuple(tensor.shape)} {tensor.dtype}".encode() + bytes(tensor.detach().contiguous().numpy().tobytes())
