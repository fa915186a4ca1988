"""Who looks on while a mechanism runs: the seam through which audits record a run and replay it with one holder zeroed.

A witness sees who is drawn and what sums are before their noise, and may say what was released instead. So there is none where coins and
noise come from the operating system: only a seeded run, which protects nobody anyway, can be looked at.

Guarantee: nothing of a run that is private passes through here.
Proof: `witness_of` is the only way to the witness that is present, and it refuses a stream that is not seeded.
Breaks if: a seeded run is released.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
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
    what the noisy sum was divided by, as far as the mechanism itself says. `charged` is how many steps were charged when it left, if
    somebody counts them.
    """

    step: int
    name: str
    sums: Mapping[str, Array]
    released: Mapping[str, Array]
    unit: float
    deviation: float
    over: float
    charged: int | None


class Test(NamedTuple):
    """What is compared with a threshold before queries are answered, without and with its noise. Secret."""

    figure: Array
    noisy: Array
    threshold: Array


class Poll(NamedTuple):
    """Some queries of a voting, from a place on: counts of weighted votes, without and with noise, and what was made of them. Secret."""

    place: int
    counts: Array
    noisy: Array
    weights: Array
    test: Test | None
    passed: NDArray[np.bool_]
    labels: NDArray[np.int64]


class Ahead(NamedTuple):
    """What of a seeded run is fixed beforehand: the coins of any step of the plan, and its noise over each parameter. Secret."""

    draw: Callable[[int], Draw]
    noise: Callable[[int], Mapping[str, Array]]


class Source(NamedTuple):
    """A run of SGD: what it makes its batches of, what it trains, and its coins and noise. `ownership` says whose records are, if there are
    several of somebody."""

    dataset: Any
    collate: Any
    ownership: Any
    model: Any
    ahead: Ahead


class Witness(Protocol):
    """What an audit does while a mechanism runs."""

    def reads(self, source: Source) -> None:
        """A run of SGD was made."""

    def overlooked(self) -> None:
        """A private run began in another thread meanwhile; nothing of it is seen."""

    def stands(self, step: int, see: Callable[[], Mapping[str, Any]]) -> None:
        """A step is about to be taken; `see` gives what anybody may see of the model, whenever it is asked."""

    def begins(self) -> None:
        """The records of a step are there and the model's random numbers are set; what draws from here on is the model."""

    def drawn(self, draw: Draw) -> Draw:
        """Who takes part in a step, and with which clips; what it returns is what counts."""

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum leaves; what it returns is what leaves."""

    def voted(self, poll: Poll) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Queries get their labels: which passed the test, and the labels; what it returns is what they get."""


_PRESENT: ContextVar[Witness | None] = ContextVar("witness", default=None)
_EVERYWHERE: list[tuple[Witness, frozenset[threading.Thread]]] = []
"""Who looks on, and the threads that were there before, whose runs are not theirs."""


def witness_of(stream: Stream) -> Witness | None:
    """Who looks on a mechanism with this stream; nobody, usually.

    Seeded runs in threads that began meanwhile are looked at as well, which whoever trains may have begun; private ones are left alone.
    """
    found = _PRESENT.get()
    if found is not None and not stream.seeded:
        raise SartorError("only a seeded run can be looked at: give the seed of the audit to whatever trains (seed=).")
    if found is None:
        here = threading.current_thread()
        theirs = next((witness for witness, before in reversed(_EVERYWHERE) if here not in before), None)
        if theirs is None or stream.seeded:
            return theirs
        theirs.overlooked()
    return found


def seen(stream: Stream, draw: Draw) -> Draw:
    """A draw, as whoever looks on leaves it."""
    witness = witness_of(stream)
    return draw if witness is None else witness.drawn(draw)


@contextmanager
def looked_at_by(witness: Witness) -> Iterator[None]:
    """Mechanisms that begin inside are looked at."""
    token = _PRESENT.set(witness)
    everywhere = witness, frozenset(threading.enumerate())
    _EVERYWHERE.append(everywhere)
    try:
        yield
    finally:
        _EVERYWHERE.remove(everywhere)
        _PRESENT.reset(token)
