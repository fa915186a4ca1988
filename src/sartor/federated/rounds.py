"""One round on the server: answers come in, each is used once, and one noisy mean goes out.

Guarantee: what `release` gives is a sum in which each drawn client has one vector no longer than its clip, and one centred bit times its
    share, plus the plan's noise, over the expected number of clients; see `sartor.federated.plan`.
Proof: `add` takes an answer only from a client that was drawn and has not answered, checks and clips it before it touches a sum, and
    `release` can be called once. A client that fails, is late or sends what is no update leaves both sums as they are: it contributes zero,
    which the plan charges like any other draw.
Breaks if: sums are looked at before `release`; a round's events are shown to anyone (they follow who was drawn); two rounds of one step are
    released under one stream, whose noise they would share.

The server's step takes the noisy mean update as a gradient for one of torch's optimizers. It looks at what was released alone, so it costs
nobody anything.
"""

from __future__ import annotations

import copy
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.federated.updates import Array, Malformed, Named, clipped, update_of
from sartor.run.sampling import Draw
from sartor.run.stream import Stream, normal
from sartor.run.witness import Bare, Witness, witness_of

Model = dict[str, NDArray[Any]]


class ServerOptimizer:
    """SGD with momentum or Adam on the model's floating-point arrays; others (counters, masks) stay as they are.

    Arrays go by their names, in the model, in updates and in what is saved.

    With SGD at a rate of 1, the default, the model moves by the mean update: federated averaging.

    >>> server = ServerOptimizer({"weight": np.zeros(2), "seen": np.array(3)})
    >>> {name: part.tolist() for name, part in server.step({"seen": np.array(0.0), "weight": np.ones(2)}).items()}
    {'weight': [1.0, 1.0], 'seen': 3}
    """

    def __init__(
        self,
        model: Named,
        name: str = "sgd",
        *,
        lr: float = 1.0,
        momentum: float = 0.0,
        betas: tuple[float, float] = (0.9, 0.99),
        eps: float = 1e-3,
    ) -> None:
        if not 0 < lr < np.inf:
            raise SartorError(f"the server's learning rate must be positive and finite, not {lr}.")
        if name not in ("sgd", "adam"):
            raise SartorError(f'there is no server optimizer "{name}"; there are sgd and adam.')
        if not 0 <= momentum < 1:
            raise SartorError(f"the server's momentum must lie in [0, 1), not be {momentum}.")
        self._model = {name: np.array(part) for name, part in model.items()}
        if any(part.dtype.kind not in "fiub" for part in self._model.values()):
            raise SartorError("the model has an array that holds neither numbers nor truth values; complex ones cannot be trained.")
        self._parameters = {
            name: torch.nn.Parameter(torch.from_numpy(part.astype(np.float64)))
            for name, part in self._model.items()
            if part.dtype.kind == "f"
        }
        if not self._parameters:
            raise SartorError("the model has no floating-point array, so there is nothing to train.")
        self._optimizer: torch.optim.Optimizer
        if name == "sgd":
            self._optimizer = torch.optim.SGD(self._parameters.values(), lr=lr, momentum=momentum)
        else:
            self._optimizer = torch.optim.Adam(self._parameters.values(), lr=lr, betas=betas, eps=eps)

    @property
    def model(self) -> Model:
        """The arrays as they are now, of the types that they came in."""
        moved = {name: parameter.detach().numpy().astype(self._model[name].dtype) for name, parameter in self._parameters.items()}
        return {**self._model, **moved}

    def step(self, mean: Named) -> Model:
        """Move the model by a mean update."""
        for name, parameter in self._parameters.items():
            parameter.grad = -torch.from_numpy(np.array(mean[name], np.float64)).reshape(parameter.shape)
        self._optimizer.step()
        return self.model

    def state(self) -> dict[str, Any]:
        """All that a server needs to go on from here, as it is now: of each array its values, and what the optimizer remembers of it."""
        kept = {name: {"value": own.detach(), "memory": dict(self._optimizer.state[own])} for name, own in self._parameters.items()}
        return copy.deepcopy(kept)

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        try:
            shapes = {name: kept["value"].shape for name, kept in state.items()}
            memory = {name: dict(kept["memory"]) for name, kept in state.items()}
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SartorError("the server's state cannot be read, so the run cannot go on from it.") from None
        if shapes != {name: own.shape for name, own in self._parameters.items()}:
            raise SartorError("the server's state belongs to another model.")
        if any(not _fits(part, shapes[name]) for name in memory for part in memory[name].values()):
            raise SartorError("the server's state cannot be read, so the run cannot go on from it.")
        with torch.no_grad():
            for name, own in self._parameters.items():
                own.copy_(state[name]["value"])
                self._optimizer.state[own] = copy.deepcopy(memory[name])


def _fits(memory: Any, shape: torch.Size) -> bool:
    """Whether an optimizer can remember this of an array: one number for each of the array's, one for all, or nothing yet."""
    return memory is None or (isinstance(memory, torch.Tensor) and memory.shape in (shape, torch.Size()))


@dataclass(frozen=True, eq=False)
class Released:
    """What leaves a round: the noisy mean update, an array for each of the model's under its name, and the clip of the next round."""

    mean: dict[str, Array] = field(repr=False)
    clip: float


class Round:
    """The answers of one round, added up as they come."""

    def __init__(self, plan: FederatedPlan, draw: Draw, model: Named, clip: float, *, charged: int | None = None) -> None:
        """A round for those who were drawn, from a model, at the clip in force; `charged` is how many rounds are, for whoever looks on."""
        if not 0 < clip < np.inf:
            raise SartorError(f"the clip of a round must be positive and finite, not {clip}.")
        self._plan, self._clip, self._step = plan, float(clip), draw.step
        self._charged = charged
        self._model = {name: np.asarray(part) for name, part in model.items()}
        shares = draw.clips / plan.accounted.clip
        self._waiting = dict(zip(draw.indices.tolist(), shares.tolist(), strict=True))
        self._answered: set[int] = set()
        self._sums = [np.zeros(part.shape) for part in self._model.values()]
        self._bits = 0.0
        self._released = False
        self.events: Counter[str] = Counter()
        """How many answers were used, and how many were not and why. Sensitive: it follows who was drawn."""

    @property
    def drawn(self) -> tuple[int, ...]:
        """Whom to ask. Secret."""
        return (*self._waiting, *self._answered)

    def add(self, client: int, answer: Named) -> bool:
        """Add a client's answer, its arrays after training by their names; whether it was used."""
        if self._released:
            return self._dropped("late")
        if client in self._answered:
            return self._dropped("twice")
        if client not in self._waiting:
            return self._dropped("unasked")
        share = self._waiting.pop(client)
        self._answered.add(client)
        try:
            update, length = clipped(update_of(answer, self._model), share * self._clip)
        except Malformed:
            return self._dropped("malformed")
        for total, part in zip(self._sums, update, strict=True):
            total += part
        self._bits += share * (0.5 if length <= self._clip else -0.5)
        self.events["used"] += 1
        return True

    def _dropped(self, why: str) -> bool:
        self.events[why] += 1
        return False

    def release(self, stream: Stream) -> Released:
        """Close the round: the sums with their noise. Charge for the round before anyone is drawn for it."""
        stream.check_process()
        if self._released:
            raise SartorError("this round was released: a second release would show its sum under other noise.")
        witness = witness_of(stream)
        if witness is not None:
            witness.stands(self._step, lambda: self._model)
        self._released = True
        self.events["silent"] = len(self._waiting)
        plan = self._plan
        sizes = [total.size for total in self._sums]
        noise = normal(stream.generator("federated", self._step), sum(sizes), plan.update_noise_multiplier * self._clip)
        mean, start = {}, 0
        for name, total, size in zip(self._model, self._sums, sizes, strict=True):
            mean[name] = (total + noise[start : start + size].reshape(total.shape)) / plan.per_round
            start += size
        if witness is not None:
            mean = self._witnessed(witness, mean)
        self._sums = []
        return Released(mean, self._next_clip(stream))

    def _witnessed(self, witness: Witness, mean: dict[str, Array]) -> dict[str, Array]:
        plan, unit = self._plan, self._clip / self._plan.accounted.clip
        bare = dict(zip(self._model, self._sums, strict=True))
        told = witness.released(
            Bare(self._step, "updates", bare, mean, unit, plan.update_noise_multiplier * self._clip, plan.per_round, self._charged)
        )
        return {name: np.asarray(told[name]).reshape(part.shape) for name, part in mean.items()}

    def _next_clip(self, stream: Stream) -> float:
        """The clip after a step towards the quantile, by the noisy count."""
        plan = self._plan
        if plan.adaptive is None:
            return self._clip
        noise = float(normal(stream.generator("federated count", self._step), 1, plan.count_noise)[0])
        counted = (self._bits + noise) / plan.expected_share
        witness = witness_of(stream)
        if witness is not None:
            before, after = {"count": np.array([self._bits])}, {"count": np.array([counted])}
            unit, over = 0.5 / plan.accounted.clip, plan.expected_share
            told = witness.released(Bare(self._step, "count", before, after, unit, plan.count_noise, over, self._charged))
            counted = float(told["count"][0])
        # not cut to [0, 1], which would push the clip of a high or low quantile away from it
        shorter = counted + 0.5
        with np.errstate(over="ignore"):
            return float(np.clip(self._clip * np.exp(-plan.adaptive.lr * (shorter - plan.adaptive.quantile)), 1e-12, 1e12))
