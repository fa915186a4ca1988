"""A federated task from settings alone: data, who holds which rows, budgets, the network and how clients train.

Settings are plain numbers and texts, so that they travel in a Flower app's configuration, and every process builds the same task from them.
"""

from __future__ import annotations

import math
import os
from dataclasses import asdict, dataclass, field, fields
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sartor import usual
from sartor.allowed import Allowed
from sartor.budgets import Budgets
from sartor.data import Data, load
from sartor.documents import read_json
from sartor.errors import SartorError
from sartor.federated import splits
from sartor.federated.local import accuracy, train_locally
from sartor.models import registry
from sartor.numbers import check_seed

DATASETS = ("digits", "fashion-mnist", "mnist")


@dataclass(frozen=True)
class Settings:
    """What a task is made from. Budgets are shares of the clients (`epsilon`, `share`, `delta`, with commas) or a file by client's key."""

    dataset: str = "digits"
    data: str = ""
    clients: int = usual.FEDERATION.clients
    split: str = usual.FEDERATION.split
    epsilon: str = field(default=str(usual.ALLOWED.epsilon), repr=False)  # a small share's budget is not for a log
    share: str = field(default=str(usual.ALLOWED.share), repr=False)
    delta: str = field(default=usual.FEDERATION.delta, repr=False)
    budgets: str = ""
    policy: str = ""
    model: str = ""
    epochs: int = usual.FEDERATION.epochs
    batch: int = usual.FEDERATION.batch
    lr: float = usual.FEDERATION.lr
    seed: int = 0
    """Of the split, the choice of budgets and the first model; not of coins and noise."""

    def __post_init__(self) -> None:
        for name in ("clients", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise SartorError(f"--{name} must be 1 or more, not {getattr(self, name)}.")
        if not 0 < self.lr < math.inf:
            raise SartorError(f"--lr must be positive and finite, not {self.lr}.")
        check_seed(self.seed)

    @property
    def allowed(self) -> Allowed:
        """What clients allow."""
        said = {"file": self.budgets} if self.budgets else {"epsilon": self.epsilon, "share": self.share or None}
        return Allowed(**said, delta=self.delta, policy=self.policy or None, seed=self.seed)

    @classmethod
    def from_json(cls, document: Any) -> Settings:
        """The settings of a JSON document that has all of them, each of its type: a default would deal rows and budgets out anew."""
        try:
            return cls(**{field.name: _of_type(type(field.default), document[field.name]) for field in fields(cls)})
        except (KeyError, TypeError):
            raise SartorError("these are not the settings of a federated task: some are missing, or of another type.") from None

    @classmethod
    def read(cls, path: str | os.PathLike[str]) -> Settings:
        """The settings in a file."""
        try:
            return cls.from_json(read_json(path, "the run's"))
        except SartorError as error:
            raise SartorError(f"the run in {Path(path).parent} cannot be continued: {error}") from None

    def to_json(self) -> dict[str, Any]:
        """These settings as plain values."""
        return asdict(self)

    def check_same(self, kept: Settings, folder: str | os.PathLike[str]) -> None:
        """Refuse to go on with the run in a folder that was begun with others."""
        begun = kept.to_json()
        other = [name for name, value in self.to_json().items() if value != begun[name]]
        if other:
            raise SartorError(f"the run in {folder} was started with other settings ({', '.join(other)}); give a new folder for a new run.")


def _of_type(kind: type, value: Any) -> Any:
    if kind is float and type(value) is int:
        return float(value)
    if type(value) is not kind:
        raise TypeError
    return value


@dataclass(frozen=True)
class Task:
    """What a server and its clients share. Rows of a client are for that client."""

    settings: Settings

    @cached_property
    def data(self) -> Data:
        """Training rows, which clients hold, and public test rows."""
        if self.settings.dataset not in DATASETS:
            raise SartorError(f'there is no federated data set "{self.settings.dataset}"; there are {", ".join(DATASETS)}.')
        return load(self.settings.dataset, self.settings.data or None)

    @cached_property
    def rows(self) -> list[NDArray[np.int64]]:
        """The rows of each client."""
        labels, given = self.data.train.tensors[1].numpy(), self.settings
        kind, *rest = given.split.split(":")
        if kind == "writer":
            if given.dataset != "mnist":
                raise SartorError(f"the writers of {given.dataset} are not known; --split writer goes with mnist.")
            from sartor.data.images import read_writers

            return splits.by_owner(read_writers(given.data or None, labels))
        try:
            values = [float(number) for number in rest]
        except ValueError:
            raise SartorError(f'--split {given.split} has something that is not a number after "{kind}:".') from None
        if kind == "iid" and not values:
            return splits.iid(labels, given.clients, seed=given.seed)
        if kind == "dirichlet" and len(values) == 1:
            return splits.dirichlet(labels, given.clients, values[0], seed=given.seed)
        if kind == "pachinko" and len(values) == 2:
            return splits.pachinko(labels, given.clients, values[0], values[1], seed=given.seed)
        raise SartorError(f'a split is "iid", "dirichlet:0.3", "pachinko:0.1:10" or "writer", not "{given.split}".')

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.rows)

    @cached_property
    def budgets(self) -> Budgets:
        """The budget of each client, by its number."""
        allowed = self.settings.allowed
        return allowed.budgets(self.clients if allowed.file is None else [str(client) for client in range(self.clients)])

    def network(self) -> nn.Module:
        """The first model."""
        data = self.data
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.settings.seed)
            name = self.settings.model or usual.recipe(self.settings.dataset).model
            return registry.build(name, shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)

    def trained(self, client: int, state: dict[str, Tensor], seed: int | None = None) -> dict[str, Tensor]:
        """The model after a client's training, from the server's."""
        rows, (inputs, labels) = torch.from_numpy(self.rows[client]), self.data.train.tensors
        return self.trained_on(inputs[rows], labels[rows], state, seed)

    def trained_on(self, inputs: Tensor, labels: Tensor, state: dict[str, Tensor], seed: int | None = None) -> dict[str, Tensor]:
        """The model after training as a client's on some rows."""
        model = self.network()
        model.load_state_dict(state)
        how = {"epochs": self.settings.epochs, "batch": self.settings.batch, "lr": self.settings.lr}
        found: dict[str, Tensor] = train_locally(model, inputs, labels, seed=seed, **how).state_dict()  # type: ignore[arg-type]
        return found

    def accuracy(self, state: dict[str, Tensor]) -> float:
        """On the public test rows."""
        model = self.network()
        model.load_state_dict(state)
        inputs, labels = self.data.test.tensors
        return accuracy(model, inputs, labels)


@lru_cache(maxsize=2)
def task(settings: Settings) -> Task:
    """The task of these settings, made once in a process."""
    return Task(settings)
