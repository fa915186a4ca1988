"""Federated rounds as `sartor audit` looks at them: server and clients in this process, on the rows that the run dealt out.

Coins and noise are the audit's own. Of a run in a folder the plan, the clients and their budgets are those that it was begun with; a server
may be at work there meanwhile.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import numpy as np

from sartor.cli.audited import HOLDERS, that_fit
from sartor.cli.federate_settings import FederateSettings
from sartor.cli.options import from_document, listed
from sartor.cli.output import working
from sartor.errors import SartorError

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
