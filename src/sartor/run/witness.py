"""Who looks on while a mechanism runs: the seam through which audits record a run and replay it with one holder zeroed.

A witness sees who is drawn and what sums are before their noise, and may say what was released instead. So there is none where coins and
noise come from the operating system: only a seeded run, which protects nobody anyway, can be looked at.

Guarantee: nothing of a run that is private passes through here.
Proof: `witness_of` is the only way to the witness that is present, and it refuses a stream that is not seeded.
Breaks if: a seeded run is released.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.run.sampling import Draw
    from sartor.run.stream import Stream

Array = NDArray[np.float64]


class Bare(NamedTuple):
    """One sum of a step before its noise, and what was made of it. Secret.

    `unit` times the clip that a holder was drawn with is how far that holder may move the sum; `deviation` is that of the noise, and `over`
    what the noisy sum was divided by, as far as the mechanism itself says. `charged` is how many steps were charged when it left.
    """

    step: int
    name: str
    sums: Mapping[str, Array]
    released: Mapping[str, Array]
    unit: float
    deviation: float
    over: float
    charged: int


class Witness(Protocol):
    """What an audit does while a mechanism runs."""

    def stands(self, step: int, state: Mapping[str, Any]) -> None:
        """What anybody may see before a step: parameters, buffers and gradients of the model."""

    def drawn(self, draw: Draw) -> Draw:
        """Who takes part in a step, and with which clips; what it returns is what counts."""

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum leaves; what it returns is what leaves."""

    def voted(self, place: int, counts: Array, weights: Array, passed: NDArray[np.bool_], labels: NDArray[np.int64]) -> Any:
        """Queries get their labels, from a place on: which passed the test, and the labels; what it returns is what they get."""


_PRESENT: ContextVar[Witness | None] = ContextVar("witness", default=None)


def witness_of(stream: Stream) -> Witness | None:
    """Who looks on a mechanism with this stream; nobody, usually."""
    found = _PRESENT.get()
    if found is not None and not stream.seeded:
        raise SartorError("only a seeded run can be looked at: give the seed of the audit to whatever trains (seed=).")
    return found


def seen(stream: Stream, draw: Draw) -> Draw:
    """A draw, as whoever looks on leaves it."""
    witness = witness_of(stream)
    return draw if witness is None else witness.drawn(draw)


@contextmanager
def looked_at_by(witness: Witness) -> Iterator[None]:
    """Mechanisms that begin inside are looked at."""
    token = _PRESENT.set(witness)
    try:
        yield
    finally:
        _PRESENT.reset(token)
