"""The server's step: the noisy mean update as a gradient for one of torch's optimizers.

It looks at what was released alone, so it costs nobody anything.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.federated.updates import Arrays

Model = list[NDArray[Any]]


class ServerOptimizer:
    """SGD with momentum or Adam on the model's floating-point arrays; others (counters, masks) stay as they are.

    With SGD at a rate of 1, the default, the model moves by the mean update: federated averaging.

    >>> server = ServerOptimizer([np.zeros(2), np.array(3)])
    >>> [part.tolist() for part in server.step([np.ones(2), np.array(0.0)])]
    [[1.0, 1.0], 3]
    """

    def __init__(
        self,
        model: Sequence[NDArray[Any]],
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
            raise SartorError(f"the server's momentum lies in [0, 1), not at {momentum}.")
        self._model = [np.array(part) for part in model]
        if any(part.dtype.kind not in "fiub" for part in self._model):
            raise SartorError("the model has an array that holds neither numbers nor truth values; complex ones cannot be trained.")
        self._moving = [i for i, part in enumerate(self._model) if part.dtype.kind == "f"]
        if not self._moving:
            raise SartorError("the model has no floating-point array, so there is nothing to train.")
        self._parameters = [torch.nn.Parameter(torch.from_numpy(self._model[i].astype(np.float64))) for i in self._moving]
        self._optimizer: torch.optim.Optimizer
        if name == "sgd":
            self._optimizer = torch.optim.SGD(self._parameters, lr=lr, momentum=momentum)
        else:
            self._optimizer = torch.optim.Adam(self._parameters, lr=lr, betas=betas, eps=eps)

    @property
    def model(self) -> Model:
        """The arrays as they are now, of the types that they came in."""
        found = list(self._model)
        for i, parameter in zip(self._moving, self._parameters, strict=True):
            found[i] = parameter.detach().numpy().astype(self._model[i].dtype)
        return found

    def step(self, mean: Arrays) -> Model:
        """Move the model by a mean update."""
        for i, parameter in zip(self._moving, self._parameters, strict=True):
            parameter.grad = -torch.from_numpy(np.array(mean[i], np.float64)).reshape(parameter.shape)
        self._optimizer.step()
        return self.model

    def state(self) -> dict[str, Any]:
        """All that a server needs to go on from here, as it is now."""
        return copy.deepcopy({"parameters": [p.detach() for p in self._parameters], "optimizer": self._optimizer.state_dict()})

    def load(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        try:
            kept = list(state["parameters"])
            same = [part.shape for part in kept] == [own.shape for own in self._parameters]
            if same:
                self._optimizer.load_state_dict(copy.deepcopy(state["optimizer"]))
        except (KeyError, TypeError, ValueError, AttributeError):
            raise SartorError("the server's state cannot be read, so the run cannot go on from it.") from None
        if not same:
            raise SartorError("the server's state is of another model.")
        with torch.no_grad():
            for own, part in zip(self._parameters, kept, strict=True):
                own.copy_(part)
