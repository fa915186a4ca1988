"""One holder's records move nobody else's clipped gradient: that is tested, by exchanging records, and no code is read for it.

Whatever lies between a record and its gradient (fetching, collating, padding, layers, the loss) is the user's code, and any of it may let
one person's record change what another contributes; then no clip bounds anybody's influence. Four comparisons see it, on records that are
fetched and collated again:

*alone*: a few holders (the largest, the smallest, some at random) by themselves, in eval mode: their gradients are those in the batch;
*without one*: the batch without its largest holder, in eval mode: the sum of everybody else's clipped gradients does not move, by a
    thousandth of a clip, so that an influence which is spread thin is seen;
*others replaced*: all but a few become copies of one record of the same shape, in training mode under the same random numbers;
*again*: the first batch once more, after the others: memory.

Without a loss (a loop of one's own), collated rows are compared.

Guarantee: user code that lets a holder's gradient follow others' records, in the batches that were drawn and by more than the precision's
    tolerance, is refused before that batch's step; a refusal names no record.
Cost: in each tested batch five forward and backward passes, ten collations, and its records fetched once and sixteen of them five times
    more. Tested are `beforehand` up to `RECORDS` records, the first batch of two holders or more, and `DRAWN` at random over the run.
Breaks if: a data set makes records of other people's rows (replay finds that, `sartor.audit`); something is fitted on the first records
    that it ever sees and never again; mixing is so rare that no draw sees it. Steps before the one that is refused stay charged.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import default_collate

from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.run.stream import Stream
from sartor.sgd.batches import Likeness, leaves, likeness, shapes, taken
from sartor.sgd.check import Kept, Unchecked, laid_aside
from sartor.sgd.forks import reseed
from sartor.sgd.gradients import Owners, PerExample
from sartor.sgd.loss import Loss, pair
from sartor.sgd.lots import MIXED, PADDED, TRIES, Collate, Fetch, Lot, asked, chosen, kept_of, lot_of, refuse_exchanged_rows, refuse_rows
from sartor.sgd.pieces import Piece

RECORDS = 64
"""Compared before a run begins."""
DRAWN = 2
"""Batches that are drawn at random over a run."""
_SHAKEN, _KINKS = 4, 5.0  # times the parameters are shaken, and how much more than that a batch may differ
_LAST = 8.0  # units in the last place

Gradient = Mapping[str, Tensor]


@dataclass(frozen=True, eq=False)
class _Pass:
    """What a forward and backward pass gives: losses of rows, gradients of some holders, and the sum of everybody's clipped ones."""

    losses: Tensor
    gradients: Sequence[Gradient]
    sums: Gradient


class PropertyTest:
    """When batches of a run are tested, and the test.

    Args:
        engine: of the model that is trained.
        fetch: gets records by their numbers, all at once.
        collate: makes a batch of records; None is torch's.
        loss: one number per example of outputs and targets, or None where it cannot be seen.
        steps: of the run.
        stream: of the run; from it come batches, records and random numbers of the test.
    """

    def __init__(self, engine: PerExample, fetch: Fetch, collate: Collate | None, loss: Loss | None, *, steps: int, stream: Stream) -> None:
        self._engine, self._fetch, self._collate, self._loss = engine, fetch, collate or default_collate, loss
        self._steps, self._stream, self._kept = steps, stream, Kept(engine.model)
        self._has_passed = False
        self._modes: list[tuple[nn.Module, bool]] = []
        self._said: set[str] = set()
        self._eps = 0.0  # of the coarsest numbers that layers put out

    @cached_property
    def _drawn(self) -> set[int]:
        return {int(step) for step in self._stream.generator("property", 0).integers(self._steps, size=DRAWN)}

    def is_due(self, piece: Piece) -> bool:
        """Whether this batch, or this piece of one, is tested: the first of two holders or more, and some that are drawn at random."""
        if len(piece.clips) < 2 or not bool(piece.clips.any()):
            return False  # records of one holder alone could not show that they reach others
        if not self._has_passed:
            return True
        return piece.step in self._drawn and piece.number == int(self._stream.generator("tested piece", piece.step).integers(piece.pieces))

    def run(self, piece: Piece) -> None:
        """Test a piece that is due, before its step.

        Args:
            piece: whose records are fetched once more.

        Raises:
            SartorError: if a holder's gradient follows the records of others.
        """
        generator = self._stream.generator("property", piece.step + 1)
        seed = int(generator.integers(2**62))
        with laid_aside(self._engine, self._kept, seed) as self._modes:
            lot = lot_of(piece, self._fetch, self._collate, seed, self._say)
            few = chosen(lot, generator)
            if self._loss is None:
                refuse_rows(lot, few, self._say)
            else:
                self._refuse_gradients(lot, few)
        self._has_passed = True

    def beforehand(self, records: int, ownership: Ownership | None = None, clip: float = 1.0) -> None:
        """Test up to `RECORDS` evenly spaced records, before anything of a run is charged.

        Args:
            records: how many there are.
            ownership: whose they are, where holders have several.
            clip: the plan's, which tells what is small.

        Raises:
            SartorError: if a holder's gradient follows the records of others.
        """
        several = ownership is not None and not ownership.is_plain
        holders = records if ownership is None else ownership.holders
        places = np.unique(np.linspace(0, holders - 1, min(RECORDS // 2 if several else RECORDS, holders)).astype(np.int64))
        indices, counts = (places, np.ones(len(places), np.int64)) if ownership is None else ownership.records_of(places, 2)
        if len(places) > 1:
            owners = Owners(torch.tensor(counts)) if several else None
            self.run(Piece(self._steps, 0, indices.tolist(), torch.full((len(places),), clip), True, owners))
            self._has_passed = False

    def _refuse_gradients(self, lot: Lot, few: Sequence[int]) -> None:
        """Make the four comparisons; memory is judged first, as it shows in the others too."""
        everybody, kept = range(len(lot.counts)), kept_of(few)
        losses = self._losses(lot, everybody, lot.whole)
        self._kept.refuse_changes()  # before gradients are formed, as a step does
        begun = self._formed(lot, everybody, kept, losses)
        if not bool(begun.losses.isfinite().any()):
            raise SartorError(
                "the loss is finite for none of the records that were tried, so nothing would be learned: look at the first loss."
            )
        if lot.draws:
            refuse_exchanged_rows(lot, kept)
            self._refuse_padding(lot, few[1])
        wrong = self._mixes_alone(lot, few) or self._mixes_exchanged(lot, kept, begun)
        again = asked(lambda: self._pass(lot, everybody, kept, lot.make(lot.everything, lot.seed)))
        clips = [*self._clips(lot, kept), float(lot.clips.max())]
        if not _is_repeated(begun.losses, again.losses) or not all(
            map(self._agree, [*begun.gradients, begun.sums], [*again.gradients, again.sums], clips)
        ):
            raise SartorError(
                "the same batch has another loss when it comes again: something counts, remembers or draws by itself; keep such state in a "
                "buffer or attribute that a callback moves."
            )
        if wrong is not None:
            raise SartorError(wrong)

    def _mixes_exchanged(self, lot: Lot, kept: Sequence[int], begun: _Pass) -> str | None:
        """Whether the gradients of kept holders move when all others become copies of one record."""
        batch = asked(partial(lot.make, lot.exchanged(kept), lot.seed))
        if shapes(batch) != shapes(lot.whole):  # others' padding: as rows of the batch, records are of one shape
            batch = lot.fixed(lot.exchanged(kept))
        exchanged = asked(lambda: self._pass(lot, range(len(lot.counts)), kept, batch))
        same = all(map(self._agree, begun.gradients, exchanged.gradients, self._clips(lot, kept)))
        return None if same else MIXED.format("the model, the loss or the collate function")

    def _mixes_alone(self, lot: Lot, few: Sequence[int]) -> str | None:
        """Whether, in eval mode, a holder's gradient is another one alone, or the largest moves the sum of the others."""
        everybody, top = range(len(lot.counts)), few[0]

        def passed(holders: Sequence[int], chosen: Sequence[int]) -> _Pass:
            return asked(lambda: self._pass(lot, holders, chosen, lot.of(holders), train=False))

        try:
            among = self._pass(lot, everybody, few, lot.whole, train=False, silent=top)
        except (TypeError, ValueError, RuntimeError, KeyError, IndexError, AttributeError) as error:  # its words may show a record
            self._say(f"the loss fails in eval mode ({type(error).__name__}), so mixing is looked for in training mode alone.")
            return None
        for holder, gradient in zip(few, among.gradients, strict=True):
            alone = partial(passed, [holder], [holder])
            if not self._is_alike(gradient, among.losses[lot.rows(holder)], alone, float(lot.clips[holder])):
                return self._reason(lot, holder, few)
        without = partial(passed, [holder for holder in everybody if holder != top], [])
        left = without().sums
        away = _distance(among.sums, left)
        near = away <= self._tolerance * float(lot.clips[top])
        return None if near or self._is_rounding(among.sums, left, lambda: without().sums) else self._reason(lot, top, few)

    def _reason(self, lot: Lot, holder: int, few: Sequence[int]) -> str | None:
        """Why a holder's gradient is another one alone; models that draw random numbers in every mode draw others in smaller batches, which
        is no mixing."""
        everybody = range(len(lot.counts))
        first, *others = (self._pass(lot, everybody, [], lot.whole, train=False, seed=lot.seed + k).losses for k in range(TRIES))
        found = {one: likeness(lot.whole, lot.rows(one), len(lot.items), lot.of([one])) for one in (holder, *few)}
        if found[holder] > Likeness.PADDED and not lot.draws:
            return MIXED.format("the collate function")
        if all(_is_repeated(first, other) for other in others):
            return PADDED if found[holder] is Likeness.PADDED else MIXED.format("the model or the loss")
        if max(found.values()) is not Likeness.SAME:
            self._say("the model draws random numbers in eval mode, so whether padding reaches a gradient is not seen; draw in training.")
        return None

    def _is_alike(self, gradient: Gradient, losses: Tensor, alone: Callable[[], _Pass], clip: float) -> bool:
        """Whether a holder's gradient and losses in a batch are those alone, but for rounding."""
        found = alone()
        if not torch.allclose(losses.double(), found.losses.double(), self._tolerance, 0.01 * self._tolerance, equal_nan=True):
            return False
        own = found.gradients[0]
        return self._agree(gradient, own, clip) or self._is_rounding(gradient, own, lambda: alone().gradients[0])

    def _refuse_padding(self, lot: Lot, holder: int) -> None:
        """Behind a collate function that draws: first in its batch, a holder meets the same random numbers as alone, if they are drawn for
        one record after the other."""
        order, own = [holder, *(other for other in range(len(lot.counts)) if other != holder)], lot.rows(holder)
        whole = lot.make([row for one in order for row in lot.rows(one)], lot.seed)
        alone = asked(partial(lot.make, own, lot.seed))
        found = likeness(whole, range(len(own)), len(lot.items), alone)
        if found is Likeness.PADDED:
            among = self._pass(lot, order, [holder], whole, train=False)
            passed = partial(asked, partial(self._pass, lot, [holder], [holder], alone, train=False))
            if not self._is_alike(among.gradients[0], among.losses[: len(own)], passed, float(lot.clips[holder])):
                raise SartorError(PADDED)
        elif shapes(taken(whole, range(len(own)), len(lot.items))) != shapes(alone):
            self._say(
                "the collate function draws random numbers, so whether padding reaches a gradient is not seen: mask it, or pad alike."
            )

    def _pass(
        self,
        lot: Lot,
        holders: Sequence[int],
        chosen: Sequence[int],
        batch: Any,
        *,
        train: bool = True,
        silent: int | None = None,
        seed: int | None = None,
    ) -> _Pass:
        """Take a batch of holders through model, loss and backward pass, for gradients of the chosen; the silent one is in no sum."""
        return self._formed(lot, holders, chosen, self._losses(lot, holders, batch, train=train, silent=silent, seed=seed))

    def _losses(
        self, lot: Lot, holders: Sequence[int], batch: Any, *, train: bool = True, silent: int | None = None, seed: int | None = None
    ) -> Tensor:
        """The losses of a batch of holders, after their backward pass."""
        assert self._loss is not None
        for module, mode in self._modes:
            module.training = mode and train
        inputs, targets = pair(batch)
        counts = torch.tensor([lot.counts[holder] for holder in holders])
        clips = torch.tensor([0.0 if holder == silent else float(lot.clips[holder]) for holder in holders])
        reseed(lot.seed if seed is None else seed)
        self._engine.open(clips, Owners(counts) if int(counts.max()) > 1 else None)
        hooks = [unit.module.register_forward_hook(self._note) for unit in self._engine.units]
        try:
            losses = self._loss(self._engine.model(inputs), targets)
            if losses.requires_grad:
                losses.sum().backward()
        finally:
            for hook in hooks:
                hook.remove()
        return losses.detach()

    def _formed(self, lot: Lot, holders: Sequence[int], chosen: Sequence[int], losses: Tensor) -> _Pass:
        """Form the gradients of the chosen, and everybody's clipped sum."""
        ends = np.cumsum([lot.counts[holder] for holder in holders])
        places = [holders.index(holder) for holder in chosen]
        found = self._engine.gradients_of([range(ends[place] - lot.counts[holders[place]], ends[place]) for place in places])
        return _Pass(losses, found, self._engine.clipped_sums(1.0 if lot.shares is None else lot.shares[list(holders)]))

    def _note(self, module: Any, inputs: Any, output: Any) -> None:
        kinds = (leaf.dtype for leaf in leaves(output) if isinstance(leaf, Tensor) and leaf.is_floating_point())
        self._eps = max(self._eps, *(torch.finfo(kind).eps for kind in kinds), 0.0)

    @property
    def _tolerance(self) -> float:
        """How much of a gradient rounding may change, by the coarsest numbers that layers put out."""
        return 1e-6 if self._eps < 1e-10 else max(1e-3, _LAST * self._eps)

    def _clips(self, lot: Lot, holders: Sequence[int]) -> list[float]:
        return [float(lot.clips[holder]) for holder in holders]

    def _agree(self, one: Gradient, two: Gradient, clip: float) -> bool:
        size = _distance(two, {})
        if not math.isfinite(size):
            return not math.isfinite(_distance(one, {}))  # what is not finite contributes nothing
        return _distance(one, two) <= self._tolerance * (size + 0.01 * clip)

    def _is_rounding(self, one: Gradient, two: Gradient, again: Callable[[], Gradient]) -> bool:
        """Whether two gradients differ by what the last digits of the parameters change, as near the kinks of deep networks: kernels add up
        in another order for another number of rows."""
        away, moved, generator = _distance(one, two), 0.0, torch.Generator().manual_seed(0)
        by = min(_LAST * self._eps, 0.01)
        for _ in range(_SHAKEN):
            with torch.no_grad():
                for parameter in self._engine.parameters.values():
                    shaken = 1 + by * torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                    parameter.copy_(parameter.double() * shaken)
            moved = max(moved, _distance(again(), two))
            self._kept.put_back()
        return math.isfinite(away) and away <= _KINKS * moved

    def _say(self, sentence: str) -> None:
        """What cannot be seen is said once."""
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, Unchecked, stacklevel=3)


def _is_repeated(one: Tensor, two: Tensor) -> bool:
    """Whether losses of the same batch, made in the same way, are the same but for the last digits."""
    return one.shape == two.shape and torch.allclose(one, two, rtol=_LAST * torch.finfo(one.dtype).eps, atol=1e-30, equal_nan=True)


def _distance(one: Gradient, two: Gradient) -> float:
    """How far two gradients are apart; the second may be empty."""
    squares = 0.0
    for name in {*one, *two}:
        mine, other = one.get(name), two.get(name)
        away = mine - other if mine is not None and other is not None else mine if other is None else other
        squares += 0.0 if away is None else float(away.double().square().sum())
    return math.sqrt(squares) if squares >= 0 else math.nan
