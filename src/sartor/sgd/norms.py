"""Everybody's gradient norms at the released model, in one pass over the data.

They follow each holder's own records and the released model alone: no dropout, no batch that was drawn, and random changes to a record by
random numbers of its own, which are the run's secret. A holder with several records has the norm of their mean or sum, as the plan combines
them. Whom rounding could put on either side of a rung is looked at once more, alone: how a norm rounds depends on how many records are
looked at with it, which is other people's.

Breaks if: the model, the loss or a collate function mixes records; the model keeps something of them (what it keeps in parameters and
    buffers is put back, and refused).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from sartor.errors import SartorError
from sartor.progress import bar
from sartor.run.stream import Stream
from sartor.sgd.check import Kept, laid_aside
from sartor.sgd.forks import reseed
from sartor.sgd.gradients import PerExample
from sartor.sgd.loss import pair
from sartor.sgd.pieces import Draws, Piece

Array = NDArray[np.float64]

_RECORDS = 512  # at once, unless batches are cut smaller
_ALONE = 4  # holders who are looked at by themselves as well
_CLOSE = 0.01  # of a norm: rounding, and kinks of deep networks, move it less
_MIXED = (
    "a holder's gradient is not the same alone and beside others, so the norm that it is tracked by would follow other people's records; "
    "nothing between a record and its loss may mix records (batch statistics, padding that the loss sees, a collate function that sorts)."
)
_REMEMBERS = (
    "a holder's gradient is another one after everybody was looked at than before, at the same model: the model, the loss or the data set "
    "remembers what it has seen (a moving average, a cache), so tracked norms would follow other people's records."
)


class Norms:
    """From a model, data and a loss to norms; each call is a pass over everybody."""

    def __init__(
        self, engine: PerExample, draws: Draws, batch: Callable[..., Any], loss: Callable[[Any, Any], Tensor], stream: Stream
    ) -> None:
        self._engine, self._draws, self._batch, self._loss, self._stream = engine, draws, batch, loss, stream
        self._kept = Kept(engine.model)
        self._secret = 0
        self.progress = True
        self.unsure: Callable[[Array], NDArray[np.bool_]] = lambda norms: np.zeros(len(norms), bool)
        """Whose norm is so close to where something is decided by it that rounding could decide."""

    def __call__(self, holders: int, stretch: int) -> Array:
        """The norm of every holder's gradient. Sensitive: it is of private data, and without noise."""
        self._secret = int(self._stream.generator("tracked records", stretch).integers(2**62))
        size, found = min(self._draws.size or _RECORDS, _RECORDS), np.empty(holders)
        with laid_aside(self._engine, self._kept, self._secret), bar("tracking norms", holders, wanted=self.progress) as advance:
            self._engine.model.eval()
            some = self._some(holders, stretch)
            before = self._alone(some, size)
            for begin in range(0, holders, size):
                part = np.arange(begin, min(begin + size, holders))
                found[part] = self._norms(part, size)
                advance(int(part[-1]) + 1)
            _refuse_mixing(found[some], before, self._alone(some, size))
            for holder in np.flatnonzero(self.unsure(found)):
                found[holder] = self._norms(np.array([holder]), size)[0]
            self._kept.refuse_changes()
        return found

    def _norms(self, holders: NDArray[np.int64], size: int) -> Array:
        found: list[float] = []
        whole: dict[str, Tensor] = {}
        for piece in self._draws.of_holders(holders, size):
            self._backward(piece)
            if piece.begins and piece.ends:
                found.extend(self._engine.norms(1.0 if piece.shares is None else piece.shares).tolist())
                continue
            sums = {name: value.double() for name, value in self._engine.plain_sums().items()}
            whole = sums if piece.begins else {name: value + whole[name] for name, value in sums.items()}
            if piece.ends:
                share = 1.0 if piece.shares is None else float(piece.shares[0])
                found.append(share * math.sqrt(sum(float(value.square().sum()) for value in whole.values())))
        return np.array(found)

    def _backward(self, piece: Piece) -> None:
        inputs, targets = pair(self._batch(piece.indices, self._secret))
        reseed(self._secret)
        self._engine.open(piece.clips, piece.owners)
        self._loss(self._engine.model(inputs), targets).sum().backward()

    def _some(self, holders: int, stretch: int) -> NDArray[np.int64]:
        """Holders who are looked at by themselves as well; which ones is secret."""
        return self._stream.generator("tracked", stretch).choice(holders, min(_ALONE, holders) if holders > 1 else 0, replace=False)

    def _alone(self, some: NDArray[np.int64], size: int) -> Array:
        return np.concatenate([np.zeros(0), *(self._norms(np.array([holder]), size) for holder in some)])


def _refuse_mixing(among: Array, before: Array, after: Array) -> None:
    """Compare holders among others with themselves alone: before anybody was looked at, and after everybody was, bit by bit the same."""
    if not np.array_equal(before, after, equal_nan=True):
        raise SartorError(_REMEMBERS)
    both = np.stack([after, among])
    finite = np.isfinite(both).all(axis=0)
    if np.any(np.abs(both[0] - both[1])[finite] > _CLOSE * both.max(axis=0)[finite]):
        raise SartorError(_MIXED)
