"""What is usual: for each data set a model and how it is trained, what people allow unless they say, and how clients train.

One table for every command and benchmark. Whoever asks for something else gets that.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from sartor.allowed import Allowed
from sartor.errors import SartorError
from sartor.numbers import check_pace

_MOST_CLIP = 1e30  # of gradients in single precision
_ADAM_LR = 0.01  # where the usual optimizer is another


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a model is trained, with nothing left to be said. The fields are in the order in which a run's settings are written."""

    model: str = "logistic"
    scheme: str = "scale"
    accountant: str = "pld"
    steps: int = 300
    batch: float
    clip: float = 0.5
    lr: float = 1.0
    optimizer: str = "sgd"
    momentum: float = 0.0
    reserve: float = 0.0

    @property
    def of_plan(self) -> dict[str, Any]:
        """What `sartor.plan` takes of it, beside the scheme."""
        return {"steps": self.steps, "batch": self.batch, "clip": self.clip, "accountant": self.accountant}

    def __post_init__(self) -> None:
        if self.optimizer not in ("sgd", "adam"):
            raise SartorError(f'there is no optimizer "{self.optimizer}"; there are sgd and adam.')
        if self.optimizer == "adam" and self.momentum:
            raise SartorError("--momentum goes with the optimizer sgd; adam has its own.")
        check_pace(self.lr, self.momentum)
        if not 0 < self.clip <= _MOST_CLIP:
            raise SartorError(f"--clip must be above 0 and at most {_MOST_CLIP:g}, not {self.clip:g}.")

    def but(self, said: Mapping[str, Any]) -> Recipe:
        """This recipe with what was said instead; an optimizer other than the usual one has a learning rate of its own."""
        own = {"lr": _ADAM_LR} if said.get("optimizer") == "adam" != self.optimizer else {}
        return replace(self, **{**own, **said})


@dataclass(frozen=True, kw_only=True)
class Federation:
    """How clients train one model together."""

    clients: int = 100
    per_round: float = 30
    rounds: int = 50
    split: str = "iid"
    delta: str = "1e-4"  # less than one in the number of clients
    clip: float = 1.0
    epochs: int = 5
    batch: int = 20
    lr: float = 0.1
    server_optimizer: str = "sgd"
    server_lr: float = 1.0
    server_momentum: float = 0.0


# MNIST, SVHN and CIFAR-10: IDP-SGD, table 5. The others are ours: round figures that train, not tuned to the last point. For digits the
# simplest model is the best one under noise.
_RECIPES = {
    "adult": Recipe(steps=1_000, batch=512, clip=1.0),
    "cifar10": Recipe(model="cifar-cnn", steps=1_465, batch=1_024, clip=0.4, lr=0.7),
    "digits": Recipe(steps=300, batch=256, clip=0.5, lr=2.0),
    "fashion-mnist": Recipe(model="mnist-cnn", steps=9_375, batch=512, clip=0.2, lr=0.6),
    "imdb": Recipe(model="embedding", steps=400, batch=512, clip=1.0, lr=0.01, optimizer="adam"),
    "mnist": Recipe(model="mnist-cnn", steps=9_375, batch=512, clip=0.2, lr=0.6),
    "names": Recipe(model="char-lstm", steps=600, batch=256, clip=1.0),
    "snli": Recipe(model="embedding", steps=500, batch=1_024, clip=1.0, lr=0.005, optimizer="adam"),
    "svhn": Recipe(model="cifar-cnn", steps=2_146, batch=1_024, clip=0.9, lr=0.2),
}
ALLOWED = Allowed(epsilon="1,2,3", share="0.34,0.43,0.23", delta="1e-5")  # the budgets of the papers
FEDERATION = Federation()


def recipe(dataset: str) -> Recipe:
    """How a model is usually trained on a data set.

    >>> recipe("mnist").model, recipe("mnist").steps
    ('mnist-cnn', 9375)
    """
    return _RECIPES[dataset]


def recipe_for(holders: int) -> Recipe:
    """A start for data that nobody has a recipe for."""
    return Recipe(batch=float(min(512, max(1, holders // 6))))
