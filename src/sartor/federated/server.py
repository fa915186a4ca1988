"""The server's step: the noisy mean update as a gradient for one of torch's optimizers.

It looks at what was released alone, so it costs nobody anything.
"""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.federated.updates import Named

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
