"""Any torch optimizer, fed with noisy gradients alone.

It is an `Optimizer` for schedulers and everything else that asks; groups, state and defaults are those of the one inside. Its step takes
the gradient from the run, never from autograd.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from sartor.errors import SartorError
from sartor.numbers import check_pace
from sartor.run.account import RunAccount
from sartor.run.sealed import digest
from sartor.sgd.run import Run

_OURS = "sartor"


class PrivateOptimizer(Optimizer):
    """An optimizer whose steps are those of a plan. Made by `sartor.make_private`."""

    def __init__(self, optimizer: Optimizer, run: Run) -> None:  # the parent's state is the inner optimizer's, so it is not set up twice
        self.inner = optimizer
        self.run = run
        self._plan = digest([json.dumps(run.plan.record(), sort_keys=True).encode()])
        self._stepping = False
        self.took_step = False
        """Whether the last call of `step` took a step of the plan, or only finished a piece of its batch: schedulers follow steps."""
        self._guard = optimizer.register_step_pre_hook(self._refuse_bare_steps)
        self._optimizer_step_pre_hooks = optimizer._optimizer_step_pre_hooks
        self._optimizer_step_post_hooks = optimizer._optimizer_step_post_hooks

    @property
    def param_groups(self) -> list[dict[str, Any]]:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.param_groups

    @property
    def state(self) -> Any:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.state

    @property
    def defaults(self) -> dict[str, Any]:  # type: ignore[override]
        """The inner optimizer's."""
        return self.inner.defaults

    def step(self, closure: Callable[[], Any] | None = None) -> None:  # type: ignore[override]
        """Finish the batch at hand; after its last piece, move the parameters along the noisy gradient, and stop if they are not finite."""
        if closure is not None:
            raise SartorError("a closure would look at the batch several times; call backward once, then step().")
        self.took_step = False
        self._refuse_others()
        gradients = self.run.finish()
        if gradients is None:
            return
        self._move(gradients)
        self.run.moving = False
        self.took_step = True
        self.run.stop_unless_finite()

    def _move(self, gradients: dict[str, Tensor]) -> None:
        for name, parameter in self.run.engine.parameters.items():
            parameter.grad = gradients[name]
        self._stepping = True
        try:
            self.inner.step()
        except RuntimeError as error:
            if "overflow" not in str(error):
                raise
            raise self.run.not_finite() from None  # torch refuses a learning rate beyond what the parameters' type can hold
        finally:
            self._stepping = False

    def _refuse_bare_steps(self, optimizer: Optimizer, arguments: Any, keywords: Any) -> None:
        if not self._stepping:
            raise SartorError("this optimizer belongs to a private run: step the one that make_private returned.")

    def let_go(self) -> None:
        """Give the inner optimizer back; its steps are the user's again."""
        self._guard.remove()

    def _refuse_others(self) -> None:
        """Parameters that were thawed or added after the run began have bare gradients: they must not move by them."""
        ours = {id(parameter) for parameter in self.run.engine.parameters.values()}
        names = {id(parameter): name for name, parameter in self.run.engine.model.named_parameters()}
        for group in self.inner.param_groups:
            for parameter in group["params"]:
                if id(parameter) not in ours and (parameter.requires_grad or parameter.grad is not None):
                    raise SartorError(
                        f"{names.get(id(parameter), 'a parameter of the optimizer')} was frozen or absent when the run began, so its "
                        "gradients are neither clipped nor noised; make the model private with all that is to be trained."
                    )

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients of the piece at hand."""
        self.inner.zero_grad(set_to_none)
        self.run.forget_backward()

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Refused: parameters are fixed when the run begins."""
        raise SartorError("parameters cannot be added to a private run; make the model private with all of them.")

    def state_dict(self) -> dict[str, Any]:
        """Return the inner optimizer's state, with the plan and the steps that are charged under "sartor"."""
        return {
            **self.inner.state_dict(),
            _OURS: {"plan": self._plan, "run": self.run.name, "steps": max(self.run.steps, self.run.charged)},
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the inner optimizer's state, and count the steps that it says were charged; never fewer than this run has.

        Args:
            state_dict: What `state_dict` gave, here or in another process, or the state of a plain optimizer.

        Raises:
            SartorError: if it is of another plan, or together there are more steps than the plan has.
        """
        state = dict(state_dict)
        counted = state.pop(_OURS, None)
        if counted is not None:
            if counted["plan"] != self._plan:
                raise SartorError("this optimizer state was saved under another plan: make the model private with that one.")
            self.run.count(int(counted["steps"]), of=str(counted["run"]))
        self.inner.load_state_dict(state)

    def account(self) -> RunAccount:
        """What each group has spent so far."""
        return self.run.account()

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise SartorError("a private run cannot be copied or pickled; use a checkpoint.")

    def __repr__(self) -> str:
        return f"PrivateOptimizer({type(self.inner).__name__}, {self.run.account()!r})"


def make(kind: str | Callable[[Any], Optimizer], parameters: Any, *, lr: float, momentum: float) -> Optimizer:
    """An optimizer by name, or from a function of the parameters."""
    if callable(kind):
        return kind(parameters)
    check_pace(lr, momentum)
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=lr, momentum=momentum)
    if kind == "adam":
        return torch.optim.Adam(parameters, lr=lr)
    raise SartorError(f'the optimizer is "sgd", "adam" or a function of the parameters, not "{kind}".')
