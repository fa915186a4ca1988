"""One run of a plan: where it stands, and the only place where a sum gets its noise.

Loader and optimizer share a run. The loader opens a batch (or a piece of one), the forward and backward pass fill it, the optimizer's step
closes it; the run refuses every other order.

Guarantee: for each holder, (epsilon, delta)-DP at their own budget under zeroing everything of theirs, for all models that the run ever
    showed, together.
Proof: at each step each holder is drawn by an independent coin at their group's rate (`sampling`), their gradient, which is that of all
    records they lend to the step, enters the sum with norm at most their group's clip (`gradients`, and `_clipped` for a holder in
    several pieces), and Gaussian noise of the plan's deviation is added once per step before anything leaves.
    What follows (division by the expected batch, the optimizer) looks at the noisy sum alone. The plan's accountant bounds the composition
    of its steps, and no step beyond them is possible. Every step that was ever drawn counts, also over the end of a process
    (`sartor.run.journal`).
Breaks if: the loss or code between modules mixes examples; the model is fed other records than those drawn; losses, norms or gradients seen
    on the way are shown to anyone; a seed is given; the loader's batches are looked at to decide when to stop.
"""

from __future__ import annotations

import math
import secrets
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sartor.errors import Exhausted, SartorError
from sartor.plans import Plan
from sartor.run.account import RunAccount
from sartor.run.stream import Stream, normal
from sartor.run.witness import Bare, witness_of
from sartor.sgd.check import Kept, SelfCheck
from sartor.sgd.gradients import MARGIN, PerExample
from sartor.sgd.pieces import Piece


class NotFinite(SartorError):
    """The model that the run shows is no longer made of finite numbers: it ended there, and `account` says what it has spent."""

    def __init__(self, sentence: str, account: RunAccount) -> None:
        super().__init__(sentence)
        self.account = account


class OutOfTurn(SartorError):
    """A step without its batch, or a batch without its step."""


class Run:
    """The state of one run: the steps taken, the batch under way, and the sums of its pieces."""

    def __init__(
        self, plan: Plan, engine: PerExample, stream: Stream, *, reduction: str, noise_draws: int, check: bool, records: int
    ) -> None:
        if reduction not in ("mean", "sum"):
            raise SartorError(f'a loss is reduced by "mean" or "sum", not by "{reduction}"; reduce a loss of "none" yourself.')
        if noise_draws < 1:
            raise SartorError("noise is the sum of 1 or more draws.")
        self.plan, self.engine, self.stream = plan, engine, stream
        self.reduction, self.noise_draws, self.records = reduction, noise_draws, records
        self.name = secrets.token_hex(8)
        """Tells this run from others in the state of optimizers. Public."""
        self.drawn = 0
        """The step up to which coins were drawn, handed out or not."""
        self.charged = 0
        """The step up to which everybody is charged on the disk; 0 where nothing is kept."""
        self.moving = False
        """Whether a step is amid moving the parameters, or was interrupted there."""
        self._steps = self._lost = 0
        self.counted: dict[str, int] = {}
        """Steps of other runs that an optimizer's state told of, by their names."""
        self._seeded = stream.seeded
        self._witness = witness_of(stream)
        self._ended = False
        self._piece: Piece | None = None
        self._pieces = 0
        self._sums: dict[str, Tensor] = {}
        self._unfinished: dict[str, Tensor] | None = None
        self._kept = Kept(engine.model)
        several = records > int(plan.holders.sum())
        self._check = SelfCheck(engine, self._kept, several=several) if check else None

    @property
    def steps(self) -> int:
        """Steps that count: taken, or lost by an earlier process. The next one to take has this number."""
        return self._steps

    @property
    def lost(self) -> int:
        """Steps that count and that this model did not take."""
        return self._lost

    @property
    def seeded(self) -> bool:
        """Whether any step of the run was drawn from a seed."""
        return self._seeded

    @property
    def left(self) -> int:
        """Steps that can still be taken."""
        return 0 if self._ended else self.plan.steps - self._steps

    def account(self) -> RunAccount:
        """What has been spent so far, per group."""
        ahead = max(0, self.charged - self._steps)
        return RunAccount(self.plan, self._steps, self._seeded, self.records, self._lost, ahead, bool(self.counted))

    def go_on_at(self, step: int, *, lost: int, name: str, seeded: bool, counted: dict[str, int]) -> None:
        """Count the steps of the run that this one continues; only before its first step.

        Raises:
            OutOfTurn: after the first step, or beyond the plan.
        """
        if self._steps or self._piece is not None or not 0 <= lost <= step <= self.plan.steps:
            raise OutOfTurn("take up a kept run first (resume=True), before an optimizer's state is loaded or a step is taken.")
        self._steps, self._lost, self._seeded = step, lost, self._seeded or seeded
        self.name, self.counted = name, dict(counted)
        self.drawn = self.charged = step

    def count(self, steps: int, *, of: str) -> None:
        """Count steps that an optimizer's state says were taken: in this run, or in another that this one continues.

        Raises:
            SartorError: if there are more steps than the plan has, or a batch is open.
        """
        if self._piece is not None:
            raise OutOfTurn("load an optimizer's state between two batches.")
        if of == self.name:
            return  # they are counted here already
        more = steps - self.counted.get(of, 0)
        if more <= 0:
            return
        tosses = bool(np.any(self.plan.parts.inclusion < 1))
        if self.charged or (tosses and self._steps):
            raise OutOfTurn(
                "load an optimizer's state before the first batch: what it has spent must be on the disk before any other step."
            )
        position = self._steps + more
        if tosses:  # the coins of a round that was begun elsewhere fell there, so all of it is spent
            position = int(min((end for end in self.plan.parts.last if end >= position), default=position))
        if position > self.plan.steps:
            raise SartorError(
                f"the state has {steps} steps of this plan and the run {self._steps}: together more than the plan's {self.plan.steps}."
            )
        self.counted[of] = steps
        self._steps = position
        self.drawn = max(self.drawn, position)

    def settle(self, charged: int) -> None:
        """Count what was drawn and not taken as lost: the run stops here, charged so far."""
        self._lost, self._steps, self.charged = self._lost + charged - self._steps, charged, charged

    def stop(self) -> None:
        """No further step can be taken."""
        self.abandon()
        self._ended = True

    def end(self) -> None:
        """No further step can be taken, and the model is the user's again."""
        self.stop()
        if self._check is not None:
            self._check.detach()
        self.engine.detach()

    def stop_unless_finite(self) -> None:
        """End the run where a parameter is NaN or infinite: nothing is learned from there on, and every step would still be charged.

        It looks at what the step has released and at nothing else, so it costs no one anything.
        """
        parameters = [parameter.detach() for parameter in self.engine.parameters.values()]
        # a sum is quick and misses nothing, but may overflow by itself: what it suspects is looked at number by number
        if math.isfinite(sum(float(parameter.sum()) for parameter in parameters)) or all(bool(p.isfinite().all()) for p in parameters):
            return
        raise self.not_finite()

    def not_finite(self) -> NotFinite:
        """End the run at a step that made no finite model, and give what to raise."""
        self._ended = True
        return NotFinite(
            f"the model is no longer finite after step {self._steps} of {self.plan.steps}, so the run ends. The steps taken stay charged: "
            "start a new run with a smaller learning rate and the remaining budget.",
            self.account(),
        )

    def __copy__(self) -> Run:
        raise SartorError("a run cannot be copied: both copies would spend the same budgets and use the same noise.")

    def __deepcopy__(self, memo: object) -> Run:
        return self.__copy__()

    def __reduce__(self) -> str:
        raise SartorError("a run cannot be pickled; use a checkpoint.")

    def begin(self, piece: Piece) -> None:
        """Open a piece that the loader hands out."""
        self.stream.check_process()
        if self._piece is not None:
            raise OutOfTurn(f"the batch of step {self._piece.step + 1} was not stepped: each batch is followed by optimizer.step().")
        if self._ended or piece.step != self._steps or piece.number != self._pieces:
            raise OutOfTurn(
                f"this batch is of step {piece.step + 1} and not the next to come: iterate the loader anew, one iterator at a time."
            )
        if self._witness is not None and not piece.number:
            self._witness.stands(piece.step, self._seen)
        if self._witness is not None:
            self._witness.begins()
        for parameter in self.engine.parameters.values():
            parameter.grad = None
        self._piece = piece
        self._kept.keep()
        self.engine.open(piece.clips, piece.owners)
        if self._check is not None:
            self._check.begin(piece.rows, piece.owners)

    def exhausted(self) -> Exhausted:
        """Give what to raise where no step is left."""
        done = self._steps == self.plan.steps
        return Exhausted(f"the plan's {self._steps} steps are done." if done else f"this run ended after its step {self._steps}.")

    def refuse_changes(self) -> None:
        """Whether the forward pass changed a parameter or buffer."""
        self._kept.refuse_changes()

    def abandon(self) -> None:
        """Forget a batch that was handed out and not stepped: nothing of it was released, and the same one is handed out again."""
        self._piece, self._sums, self._pieces, self._unfinished = None, {}, 0, None
        self.engine.close()

    def forget_backward(self) -> None:
        """What `zero_grad` means here: the gradients noted for this piece are dropped."""
        self.engine.forget_gradients()

    def finish(self) -> dict[str, Tensor] | None:
        """Close the piece. After the last one of a batch: the noisy mean gradient, whose step is charged; before that None."""
        self.stream.check_process()
        piece = self._piece
        if piece is None:
            if not self.left:
                raise self.exhausted()
            raise OutOfTurn("a step needs a batch from the private loader, and each batch is stepped once.")
        if not self.engine.has_gradients:
            raise OutOfTurn(
                "no backward pass through the private model was seen for this batch; call loss.backward() before optimizer.step()."
            )
        if self.reduction == "mean" and self.engine.is_coarse:
            raise SartorError(
                "in half precision a mean loss rounds everybody's gradient by the size of the batch, which one person moves: sum the loss, "
                'and give make_private reduction="sum".'
            )
        self.refuse_changes()
        sums, unfinished = self._summed(piece)
        if self._check is not None and self._check.passed():
            self._check = None
        self._unfinished = unfinished
        self._sums = {name: value + self._sums[name] if self._sums else value for name, value in sums.items()} if sums else self._sums
        self._piece, self._pieces = None, self._pieces + 1
        if not piece.last:
            return None
        # charged first: whatever happens from here on, the step counts
        self._steps += 1
        self.moving = True
        sums, self._sums, self._pieces = self._sums, {}, 0
        noisy = self._noisy(sums, piece.step)
        return noisy if self._witness is None else self._witnessed(piece.step, sums, noisy)

    def _summed(self, piece: Piece) -> tuple[dict[str, Tensor], dict[str, Tensor] | None]:
        """The clipped sum over the piece's holders (nothing, if its one holder goes on), and what is known of one who goes on."""
        scale = float(piece.rows) if self.reduction == "mean" else 1.0
        if piece.begins and piece.ends:
            return self.engine.clipped_sums(scale if piece.shares is None else scale * piece.shares), None
        whole = {name: scale * value.double() for name, value in self.engine.plain_sums().items()}
        if not piece.begins:
            assert self._unfinished is not None
            whole = {name: value + self._unfinished[name] for name, value in whole.items()}
        return (self._clipped(whole, piece), None) if piece.ends else ({}, whole)

    def _clipped(self, whole: dict[str, Tensor], piece: Piece) -> dict[str, Tensor]:
        """The gradient of a holder in several pieces, clipped once, when all of their records are in it."""
        share = 1.0 if piece.shares is None else float(piece.shares[0])
        norm = share * math.sqrt(sum(float(value.square().sum()) for value in whole.values()))
        clip = float(piece.clips[0])
        factor = share * (1 - MARGIN) * min(1.0, clip / norm) if norm > 0 and math.isfinite(norm) else 0.0
        kind = {name: self.engine.parameters[name].dtype for name in whole}
        # zero times infinity is not zero: who is not finite contributes nothing
        return {n: (value * factor).to(kind[n]) if factor else torch.zeros_like(value, dtype=kind[n]) for n, value in whole.items()}

    def _noisy(self, sums: dict[str, Tensor], step: int) -> dict[str, Tensor]:
        """The sums plus noise of the plan's deviation, one independent number for each coordinate, over the expected batch."""
        total = sum(value.numel() for value in sums.values())
        noise = torch.from_numpy(normal(self.stream.generator("noise", step), total, self.plan.noise_at(step), self.noise_draws))
        found, start = {}, 0
        for name, value in sums.items():
            end = start + value.numel()
            noisy = (value.double() + noise[start:end].view(value.shape)) / self.plan.batch
            found[name] = noisy.to(self.engine.parameters[name].dtype)
            start = end
        return found

    def noise_of(self, step: int) -> dict[str, NDArray[np.float64]]:
        """What is added to the sums of a step; secret, and known beforehand in a seeded run alone, which an audit may look at."""
        if not self.stream.seeded:
            raise SartorError("the noise of a private run is nobody's to know.")
        nothing = {name: torch.zeros_like(value) for name, value in self.engine.parameters.items()}
        return {name: value.detach().double().cpu().numpy() * self.plan.batch for name, value in self._noisy(nothing, step).items()}

    def _seen(self) -> dict[str, Any]:
        """What anybody may see of the model between two steps."""
        gradients = {f"gradient of {n}": p.grad for n, p in self.engine.model.named_parameters() if p.grad is not None}
        return {**dict(self.engine.model.named_buffers()), **self.engine.model.state_dict(), **gradients}

    def _witnessed(self, step: int, sums: dict[str, Tensor], noisy: dict[str, Tensor]) -> dict[str, Tensor]:
        assert self._witness is not None
        bare, after = ({name: value.detach().cpu().numpy().copy() for name, value in values.items()} for values in (sums, noisy))
        deviation, over = self.plan.noise_at(step), self.plan.batch
        told = self._witness.released(Bare(step, "gradients", bare, after, 1.0, deviation, over, self._steps))
        return {name: torch.tensor(told[name], dtype=value.dtype).view(value.shape) for name, value in noisy.items()}


def check_parameters(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Whether the optimizer moves exactly the model's trainable parameters."""
    moved = {id(p) for group in optimizer.param_groups for p in group["params"]}
    trainable = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    missing = [name for key, name in trainable.items() if key not in moved]
    if missing:
        raise SartorError(f"{missing[0]} is trainable but not in the optimizer; freeze it (requires_grad_(False)) or add it.")
    known = {id(p) for p in model.parameters()}
    if not moved <= known:
        raise SartorError("the optimizer has parameters that are not the model's.")
