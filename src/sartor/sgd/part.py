"""An example alone equals its part in the batch, in loss and gradient: what `fit` can see and a loop of one's own cannot.

After the backward pass of a checked batch (`sartor.sgd.alone` says which), before its step: a few examples go through model and loss alone,
by copies that nothing went through before, and their losses and gradients are compared with those attributed to them in the batch.

Guarantee: a loss, a layer or padding that lets other examples, of this batch or of earlier ones, change an example's loss or gradient by
    more than TOLERANCE of it, in the batches and at the places that were drawn, is refused before that batch's step.
Cost: `EXAMPLES` passes of one example and the forming of their gradients, in a checked step; up to four passes of the batch more for each
    where layers are random.
Breaks if: examples are mixed by less (all of a batch of n moved by TOLERANCE together are n times that), or so rarely that no draw sees it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from sartor.errors import SartorError
from sartor.sgd.alone import Pair
from sartor.sgd.loss import Loss
from sartor.sgd.pristine import Copies, Pristine
from sartor.sgd.rows import Likeness
from sartor.sgd.run import Run

EXAMPLES = 3
TOLERANCE = 1e-3
_SMALL = 1e-5
_SEEDS = 4
_CHANGES, _LAST, _KINKS = 4, 1e-6, 5.0  # shakes of the parameters, by so much of each, and how much more a batch may differ

Found = tuple[Tensor, Mapping[str, Tensor]]


class Parts:
    """Compares losses and gradients of one run."""

    def __init__(self, run: Run, measure: Loss) -> None:
        self._run, self._engine, self._measure = run, run.engine, measure
        self._model: nn.Module = run.engine.model

    def compare(self, pairs: Sequence[Pair], losses: Tensor, state: Tensor, pristine: Pristine) -> None:
        """Refuse the batch whose backward pass was just made, before its step, if an example of it is not the same alone.

        `state` is that of torch's random numbers before its forward pass.
        """
        self._pristine, self._start = pristine, state
        self._run.refuse_changes()
        some = list(pairs)[:EXAMPLES]
        attributed = iter(self._engine.gradients_of([pair.place for pair in some if pair.real]))
        found = [(losses[pair.place].detach(), next(attributed)) if pair.real else None for pair in some]
        clips = self._run.open_clips

        def check() -> None:
            with self._aside():
                self._refuse_memory(some[0])
                for pair, real in zip(some, found, strict=True):
                    mine = self._attributed(pair.one, pair.place, pair.rows) if real is None else real
                    clip = float(clips.max() if real is None else clips[pair.place])
                    if not _agree(mine, self._alone(pair), clip):
                        self._refuse_unless_random(pair, clip)

        self._run.demand(check)  # after the self-check, which names the layer that mixes

    @contextmanager
    def _aside(self) -> Iterator[None]:
        """Whatever happens inside leaves no trace: modes, random numbers, parameters and buffers are put back."""
        modes = [(module, module.training) for module in self._model.modules()]
        try:
            with torch.random.fork_rng(devices=[]), torch.enable_grad():
                yield
        finally:
            self._engine.close()
            self._run.put_back()
            for module, training in modes:
                module.training = training
            for parameter in self._engine.parameters.values():
                parameter.grad = None

    def _seed(self, seed: int | None) -> None:
        torch.default_generator.set_state(self._start) if seed is None else torch.manual_seed(seed)

    def _attributed(self, batch: Any, place: int, rows: int, seed: int | None = None) -> Found:
        """An example's loss in a batch, and the gradient that is attributed to it, by the model and the loss that train."""
        self._seed(seed)
        inputs, targets = batch
        self._engine.open(torch.ones(rows))
        losses = self._measure(self._model(inputs), targets)
        losses.sum().backward()
        (gradients,) = self._engine.gradients_of([place])
        self._engine.close()
        self._run.put_back()
        return losses[place].detach(), gradients

    def _alone(self, pair: Pair, seed: int | None = None) -> Found:
        """The example's loss and gradient by itself, by copies that nothing went through."""
        copies = self._pristine.fresh()
        for own, copied in zip(self._model.modules(), copies.model.modules(), strict=True):
            copied.training = own.training
        self._seed(seed)
        try:
            return self._by_copies(copies, pair)
        except SartorError:
            raise
        except Exception as error:  # whatever it says may show the record
            raise SartorError(
                f"the model or the loss fails on one example alone ({type(error).__name__}), so it cannot be compared with its part in a "
                "batch; make them take any number of examples from 1, and keep nothing from one call to the next."
            ) from None

    def _by_copies(self, copies: Copies, pair: Pair) -> Found:
        inputs, targets = pair.two
        loss = copies.loss(copies.model(inputs), targets)[pair.other]
        parameters = {name: value for name, value in self._engine.parameters.items() if value.requires_grad}  # some may be frozen by now
        gradients = torch.autograd.grad(loss, list(parameters.values()), allow_unused=True) if loss.requires_grad else ()
        return loss.detach(), {name: g for name, g in zip(parameters, gradients, strict=False) if g is not None}

    def _refuse_memory(self, pair: Pair) -> None:
        """The same example must have the same loss when it comes again, and once others have gone through: however slow a moving average
        is, it moves the last digits. With gradients, as in training: some remember then alone."""
        first = self._loss(pair)
        if not _same(first, self._loss(pair)):
            raise SartorError(
                "an example's loss changes from one call to the next under the same random numbers: the model or the loss counts its "
                "calls, remembers what it saw or has random numbers of its own, so nobody can see what others do to it; make each "
                "example's loss from its own record and torch's random numbers."
            )
        self._seed(1)
        self._measure(self._model(pair.one[0]), pair.one[1])
        if not _same(first, self._loss(pair)):
            raise SartorError(
                "an example's loss changed once others had gone through the model and the loss: one of them remembers what it saw (a "
                "moving average, a memory bank) and would carry private data on beside the accounting; use those without memory."
            )

    def _is_rounding(self, pair: Pair, mine: Found, alone: Found) -> bool:
        """Whether what differs between a batch and an example alone is what the last digits of the parameters change in the example alone,
        as they do near the kinks of deep networks: kernels add up in another order for another number of rows. Who the others are was seen
        to make no difference before."""
        if not _near(mine[0], alone[0]):
            return False
        away, generator = _distance(mine[1], alone[1]), torch.Generator().manual_seed(0)
        moved = 0.0
        for _ in range(_CHANGES):
            with torch.no_grad():
                for parameter in self._engine.parameters.values():
                    shaken = 1 + _LAST * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.copy_(parameter.double() * shaken)
            moved = max(moved, _distance(self._alone(pair)[1], alone[1]))
            self._run.put_back()
        return math.isfinite(away) and away <= _KINKS * moved

    def _loss(self, pair: Pair) -> Tensor:
        self._seed(None)
        inputs, targets = pair.two
        return self._measure(self._model(inputs), targets)[pair.other].detach()

    def _refuse_unless_random(self, pair: Pair, clip: float) -> None:
        """Layers that draw random numbers (dropout) are told from mixing by repeating under the same ones, and with them switched off."""
        # the same shapes, so the same random numbers, whoever the others are
        mine, only = (self._attributed(batch, pair.place, pair.rows) for batch in (pair.one, pair.only()))
        if not _agree(mine, only, clip):
            _refuse(pair)
        self._model.eval()
        mine = self._attributed(pair.one, pair.place, pair.rows)
        if _agree(mine, alone := self._alone(pair), clip) or self._is_rounding(pair, mine, alone):
            return
        if not any(not _agree(self._attributed(pair.one, pair.place, pair.rows, seed), mine, clip) for seed in range(_SEEDS)):
            _refuse(pair)
        if pair.likeness is not Likeness.SAME:
            raise SartorError(
                "the model or the loss draws random numbers in every mode, and records are padded or collated by batches, so that nobody "
                "can see whether others reach an example's loss; draw them in training mode alone (self.training)."
            )


def _agree(one: Found, two: Found, clip: float) -> bool:
    if not bool(torch.isfinite(torch.stack([one[0], two[0]])).all()):
        return not bool(torch.isfinite(torch.stack([one[0], two[0]])).any())
    if not _near(one[0], two[0]):
        return False
    away = _distance(one[1], two[1])
    size: float = sum(float(value.double().square().sum()) for value in two[1].values()) ** 0.5
    if not math.isfinite(size):
        return not math.isfinite(away)  # what is not finite contributes nothing
    return away <= TOLERANCE * size + _SMALL * clip


def _near(one: Tensor, two: Tensor) -> bool:
    """Whether two losses are the same but for TOLERANCE."""
    return abs(float(one) - float(two)) <= TOLERANCE * max(abs(float(one)), abs(float(two))) + _SMALL


def _distance(one: Mapping[str, Tensor], two: Mapping[str, Tensor]) -> float:
    """How far two gradients are apart."""
    found: float = sum(float(_minus(one.get(name), two.get(name)).double().square().sum()) for name in {*one, *two}) ** 0.5
    return found


def _same(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one, two) or bool(one.isnan() & two.isnan())


def _minus(one: Tensor | None, two: Tensor | None) -> Tensor:
    if one is None or two is None:
        given = one if two is None else two
        assert given is not None
        return given
    return one - two


def _refuse(pair: Pair) -> None:
    if pair.likeness is Likeness.PADDED:
        raise SartorError(
            "an example's loss or gradient depends on how far its batch is padded, which the longest record of others decides, so no one's "
            "influence can be bounded; mask padded positions in the model and leave them out of the loss (ignore_index, sums over an "
            "example's own positions), or pad every record to the same length."
        )
    raise SartorError(
        "an example's loss or gradient is not the same alone as in its batch: the loss, a layer or something that the collate function "
        "says of the batch lets others reach it (as weights by the batch's classes, contrastive terms, moving averages and (n, 1) against "
        "(n) do), so no one's influence can be bounded; make each example's loss from its own record, and remember none."
    )
