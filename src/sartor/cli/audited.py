"""What `sartor audit` can look at: a run of SGD, an ensemble of PATE, federated rounds; from a run's folder or a file of settings.

A file of settings has the options of `sartor train`, or says `command = "pate"` or `command = "federate"` and has the options of that. A
folder says by its files what it is of.

Federated rounds have server and clients in this process, on the rows that the run dealt out. Coins and noise are the audit's own. Of a run
in a folder the plan, the clients and their budgets are those that it was begun with; a server may be at work there meanwhile.

An ensemble of PATE is made from settings with its data and teachers, from its folder by plan and budgets alone. A folder keeps votes of
real people, which a replay could only show to whoever asks; so votes are made up there. Its key is not used.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

import numpy as np

from sartor.cli.federate_settings import FederateSettings
from sartor.cli.output import from_document, listed, say, working
from sartor.cli.pate_settings import PateSettings
from sartor.documents import read_toml
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed

HOLDERS = 4
"""Who are zeroed, one after the other, unless another number is asked for."""
FROM_SHADOWS = ("lira", "rmia", "loss")
_COMMANDS = ("train", "pate", "federate")


class Audited(Protocol):
    """A mechanism with its data and its plan, of which a new, seeded run can be made as often as an audit needs one."""

    @property
    def may_be_shown(self) -> bool:
        """Whether the data are a set by name, and not people's own; known before anything of them is read."""

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read, and must not be written."""

    @property
    def title(self) -> str:
        """What it is, for a page."""

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """Replay with so many holders zeroed, or as many as usual, of so many steps, rounds or queries at most."""

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """Attack with so many canaries in all."""

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """Attack with shadow models."""


def that_fit(canaries: int, sizes: Sequence[int]) -> int:
    """As many canaries as a model whose arrays have these sizes has room for; it is said where those are fewer."""
    from sartor.audit.canaries import MOST_RUNS, most_canaries

    most = most_canaries(sizes)
    if canaries > most:
        say(f"note: this model has room for {most // MOST_RUNS:,} canaries in a run, so {most:,} are planted, over {MOST_RUNS} runs.")
    return min(canaries, most)


def audited(run: str, seed: int) -> Audited:
    """What a folder or a file of settings says; budgets and rows that are dealt out by lot are dealt out by the seed, where no run has."""
    path = Path(run)
    if not path.exists():
        raise SartorError(f"there is no {run}: give the folder of a run, or a file of settings.")
    return _of_folder(path) if path.is_dir() else _of_file(path, seed)


def _of_folder(path: Path) -> Audited:
    from sartor.cli.federate import SETTINGS
    from sartor.pate.folder import EnsembleFolder

    if (path / SETTINGS).exists():
        from sartor.cli.audited import AuditedRounds

        return AuditedRounds.of_folder(path)
    if EnsembleFolder.is_in(path):
        from sartor.cli.audited import AuditedVotes

        return AuditedVotes.of_folder(path)
    if not (path / "config.toml").is_file():
        raise SartorError(f"{path} is not the folder of a run of sartor train, pate or federate.")
    from sartor.cli.audited_steps import AuditedSteps

    return AuditedSteps.of_folder(path)


def _of_file(path: Path, seed: int) -> Audited:
    document = read_toml(path, "the settings")
    command = document.pop("command", "train")
    if command == "train":
        from sartor.cli.audited_steps import AuditedSteps

        return AuditedSteps.of_document(document, path.name, seed)
    if command == "pate":
        from sartor.cli.audited import AuditedVotes

        return AuditedVotes.of_document(document, path.name, seed)
    if command == "federate":
        from sartor.cli.audited import AuditedRounds

        return AuditedRounds.of_document(document, path.name, seed)
    raise SartorError(f"in {path.name}, command is {', '.join(_COMMANDS[:-1])} or {_COMMANDS[-1]}, not {command!r}.")


if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed
    from sartor.budgets import Budgets
    from sartor.federated import FederatedPlan
    from sartor.federated.task import Settings, Task


_FAR = 10.0  # in clips


class _Material(NamedTuple):
    """The task, the plan, the budgets of those who take part, and which clients of the task they are."""

    task: Task
    plan: FederatedPlan
    budgets: Budgets
    clients: list[int]


@dataclass(frozen=True)
class AuditedRounds:
    """The task of a run, what was asked of it, and its folder, if it has one."""

    settings: Settings
    asked: FederateSettings
    folder: Path | None

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """From the folder of a run."""
        from sartor.cli.federate import LEDGER, SETTINGS
        from sartor.federated.task import Settings

        return cls(Settings.read(path / SETTINGS), FederateSettings(), path / LEDGER)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], name: str, seed: int) -> Self:
        """From settings; rows and budgets are dealt out by their seed, or by the audit's."""
        asked = from_document(FederateSettings, listed(document, ("epsilon", "share", "delta")), name)
        own = seed if asked.seed is None else asked.seed
        return cls(asked.task(own), replace(asked, seed=own), None)

    @property
    def may_be_shown(self) -> bool:
        """All of its data sets have names."""
        return True

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read."""
        return self.settings.budgets or None, self.settings.policy or None

    @property
    def title(self) -> str:
        """What was trained."""
        plan = self._material.plan
        return f"{self.settings.dataset}: audit of {plan.rounds} federated rounds with {plan.accounted.scheme}"

    @cached_property
    def _material(self) -> _Material:
        from sartor.cli.federate import checked
        from sartor.federated.ledger import Begun
        from sartor.federated.task import task

        if self.folder is None:
            made = checked(self.settings, self.asked.strategy())
            return _Material(made.task, made.plan, made.enrolled.budgets, [int(key) for key in made.enrolled.keys])
        begun = Begun.read(self.folder)
        with working("reading the data"):
            found = task(self.settings)
            known = {str(client): client for client in range(found.clients)}
        if any(key not in known for key in begun.keys):
            raise SartorError("clients of this run have keys of their own, so which rows they have is not known here: audit its settings.")
        return _Material(found, begun.plan, begun.budgets, [known[key] for key in begun.keys])

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """Rounds again with clients silent, on the server's usual optimizer, which sees what was released alone.

        In every other round all clients go much further than the clip, so that it is seen to clip them.
        """
        import torch
        from torch.utils.data import TensorDataset

        from sartor.audit.replay_rounds import replay_rounds
        from sartor.ownership import Ownership

        task, plan, budgets, clients = self._material
        rows = [task.rows[client] for client in clients]
        owned = Ownership(np.repeat(np.arange(len(rows)), [len(part) for part in rows]), len(rows))
        places = np.split(np.arange(len(owned)), np.cumsum(owned.counts)[:-1])
        order = torch.from_numpy(np.concatenate(rows))
        data = TensorDataset(*(tensor[order] for tensor in task.data.train.tensors))

        def answer(data: Any, client: int, model: Any, number: int) -> dict[str, Any]:
            own = int(np.random.SeedSequence([seed, client, number]).generate_state(1)[0])
            inputs, labels = (tensor[torch.from_numpy(places[client])] for tensor in data.tensors)
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(own)
                state = {name: torch.from_numpy(np.array(array)) for name, array in model.items()}
                found = {name: value.numpy() for name, value in task.trained_on(inputs, labels, state, own).items()}
            return found if number % 2 else _further(model, found, _FAR * plan.accounted.clip)

        model = {name: value.numpy() for name, value in task.network().state_dict().items()}
        how: dict[str, Any] = {"ownership": owned, "holders": HOLDERS if holders is None else holders, "seed": seed, "most_rounds": steps}
        with working("replaying"):
            return replay_rounds(answer, data, model, budgets, plan, **how)

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """Canary clients; the real ones are silent, as whoever attacks one client may know and subtract what all others send."""
        from sartor.audit.clients import client_attack
        from sartor.audit.findings import findings

        task, plan, budgets, _ = self._material
        model = {name: value.numpy() for name, value in task.network().state_dict().items()}
        count = that_fit(canaries, [array.size for array in model.values() if array.dtype.kind == "f"])
        with working("rounds with canaries"):
            found = client_attack(model, budgets, plan, canaries=count, seed=seed)
        return findings("canary", found.white_box, plan.accounted, confidence=confidence, bounds=found.bounds, seed=seed)

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """There is no such attack."""
        raise SartorError(f"--attack {attack} is for models of sartor train; federated rounds are attacked by canary and replay.")


def _further(model: Mapping[str, Any], answer: Mapping[str, Any], length: float) -> dict[str, Any]:
    """An answer whose difference from the model is as long as this, in the same direction."""
    own = {name: value - model[name] for name, value in answer.items() if value.dtype.kind == "f"}
    whole = float(np.sqrt(sum(float(np.square(part, dtype=np.float64).sum()) for part in own.values())))
    factor = length / whole if whole > 0 else 1.0
    return {**answer, **{name: (model[name] + factor * part).astype(part.dtype) for name, part in own.items()}}


if TYPE_CHECKING:
    from sartor.audit.findings import Findings
    from sartor.audit.replay import Replayed
    from sartor.budgets import Budgets
    from sartor.ownership import Ownership
    from sartor.pate import PatePlan
    from sartor.pate.labelling import Labelling

_MADE_UP = 10  # classes of votes that are made up
_TEACHERS = "teachers and what they learn from, as these votes are made up: audit the settings of the ensemble"


class _Ensemble(NamedTuple):
    """Budgets and plan, and the data, where they are known."""

    people: Budgets
    plan: PatePlan
    work: Labelling | None
    ownership: Ownership | None = None


@dataclass(frozen=True)
class AuditedVotes:
    """What was asked of an ensemble, or the folder of one."""

    asked: PateSettings
    folder: Path | None

    @classmethod
    def of_folder(cls, path: Path) -> Self:
        """From the folder of an ensemble."""
        return cls(PateSettings(), path)

    @classmethod
    def of_document(cls, document: Mapping[str, Any], name: str, seed: int) -> Self:
        """From settings; budgets by shares are dealt out by the seed."""
        asked = replace(from_document(PateSettings, listed(document, ("epsilon", "share", "delta")), name), seed=seed)
        asked.check()
        if asked.bound != "independent":
            raise SartorError('the bound "dependent" makes no promise, so there is none to audit.')
        return cls(asked, None)

    @property
    def may_be_shown(self) -> bool:
        """Whether the data are a set by name; whose an ensemble in a folder is, it does not say."""
        return self.folder is None

    @property
    def inputs(self) -> tuple[str | None, ...]:
        """Files that are read."""
        return self.asked.budgets, self.asked.policy

    @property
    def title(self) -> str:
        """What was taught."""
        name = "an ensemble" if self._material.work is None else self._material.work.name
        return f"{name}: audit of {self._material.plan.teachers} teachers with {self._material.plan.variant}"

    @cached_property
    def _material(self) -> _Ensemble:
        from sartor.pate.folder import EnsembleFolder
        from sartor.pate.labelling import labelling

        if self.folder is not None:
            kept = EnsembleFolder(self.folder)
            return _Ensemble(kept.budgets, kept.plan, None, kept.ownership)
        with working("reading the data"):
            work = labelling(self.asked.dataset, self.asked.data)
        people = self.asked.people(len(work.private))
        return _Ensemble(people, self.asked.plan(people, work.classes, len(work.queries)), work)

    def replayed(self, seed: int, holders: int | None, steps: int) -> Replayed:
        """The teachers again without a holder, and the voting with their votes turned; of a folder, a voting with votes made up."""
        from sartor.audit.replay_votes import replay_ensemble, replay_votes
        from sartor.pate.labelling import usual_teachers

        people, plan, work, _ = self._material
        if work is None:
            votes = np.random.default_rng(seed).integers(_MADE_UP, size=(steps, plan.teachers))
            if holders is not None:
                raise SartorError("of an ensemble's folder one holder of each group is tried: --holders goes with its settings.")
            found = replay_votes(plan, votes, _MADE_UP, seed=seed)
            return replace(found, unseen=(*found.unseen, _TEACHERS))
        asked = self.asked
        teachers = usual_teachers(work, model=asked.model, epochs=asked.epochs, workers=asked.workers, seed=seed)
        how: dict[str, Any] = {"holders": HOLDERS if holders is None else holders, "seed": seed, "go_on": asked.go_on}
        return replay_ensemble(teachers, work.private, work.queries[:steps], work.classes, people, plan, **how)

    def by_canaries(self, seed: int, canaries: int, confidence: float) -> Findings:
        """One holder of each group, whose teachers vote for one class or for another, in many votings."""
        from sartor.audit.findings import REPEATED, findings
        from sartor.audit.votes import vote_attack

        people, plan, work, ownership = self._material
        repetitions = canaries // (2 * len(plan))
        if not repetitions:
            raise SartorError(f"there must be two votings for each of the {len(plan)} groups at least, not {canaries} in all.")
        queries = {} if work is None else {"queries": len(work.queries)}
        with working("voting"):
            scores = vote_attack(plan, people, ownership=ownership, repetitions=repetitions, seed=seed, **queries)
        return findings("canary", scores, plan, confidence=confidence, bounds=REPEATED, seed=seed)

    def by_shadows(self, attack: str, seed: int, shadows: int, confidence: float, cache: str | None, workers: int) -> Findings:
        """There is no such attack."""
        raise SartorError(f"--attack {attack} is for models of sartor train; labels of an ensemble are attacked by canary and replay.")
