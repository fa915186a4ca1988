"""What a seeded run does, step by step, on a tape; and the same run played again to one with a holder zeroed.

A tape holds who was drawn, every sum before its noise, and what was released. The second run has the same coins and is told the same
releases, so it is at every step where the first one was, and whatever differs is the holder's doing.

Both are witnesses (`sartor.run.witness`): they see seeded runs alone. What they hold is sensitive throughout.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.audit.shown import digest
from sartor.run.sampling import Draw
from sartor.run.witness import Array, Bare, Poll, Source

Key = tuple[str, int]
"""The name of a sum and its step."""

See = Callable[[], Mapping[str, Any]]
"""Looks at what anybody may see of a model."""


BESIDE = "gradient of "
"""How the names of gradients begin in what anybody may see of a model."""


class Enough(BaseException):
    """As many steps as were wanted are on the tape: no error, which a loop might catch to try again."""


def _looks(state: Mapping[str, Any]) -> tuple[str, str]:
    """Digests of the model as it is kept, and of the gradients beside it, which a run that is taken up again does not have yet."""
    beside = {name for name in state if name.startswith(BESIDE)}
    return digest({name: state[name] for name in state.keys() - beside}), digest({name: state[name] for name in beside})


def flat(values: Mapping[str, Array]) -> Array:
    """The arrays of a sum as one vector."""
    return np.concatenate([np.zeros(0), *(np.asarray(value, np.float64).reshape(-1) for value in values.values())])


class Tape:
    """The first run. A step that is taken again, as after a kill, must be the same one."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.draws: dict[int, Draw] = {}
        self.bare: dict[Key, Bare] = {}
        self.states: dict[int, list[tuple[str, str]]] = {}
        """How the model looked before a step, each time that it was taken."""
        self.polls: dict[int, Poll] = {}
        self.faults: list[str] = []
        self.unseen = set[str]()
        self.sources: list[Source] = []
        """What the runs of SGD make their batches of."""
        self.is_random = False
        """Whether something between draw and sum uses the usual random numbers, as dropout does."""
        self.stopped = False
        """Whether there were as many steps as were wanted."""
        self._random: bytes | None = None
        self._see: See = dict
        self.end: str | None = None
        """How the model looked when the run was over."""

    @property
    def steps(self) -> int:
        """Steps of which something was released."""
        return len({step for _, step in self.bare})

    def reads(self, source: Source) -> None:
        """A run was made."""
        self.sources.append(source)

    def overlooked(self) -> None:
        """A private run elsewhere."""
        self.unseen.add("a private run that began in another thread meanwhile")

    def stands(self, step: int, see: See) -> None:
        """Before a step."""
        if step >= self.most:
            self.stopped = True
            raise Enough
        looks = self.states.setdefault(step, [])
        looks.append(_looks(see()))
        if looks[0][0] != looks[-1][0]:
            self.faults.append("a step was taken twice, from different models.")
        self.is_random = self.is_random or (self._random is not None and self._random != _random())
        self._see = see

    def begins(self) -> None:
        """A step's records are there, and the model's random numbers are set."""
        self._random = _random()

    def closes(self) -> None:
        """The run is over."""
        self.end = _looks(self._see())[0]

    def drawn(self, draw: Draw) -> Draw:
        """The coins of a step."""
        known = self.draws.setdefault(draw.step, draw)
        if not (np.array_equal(known.indices, draw.indices) and np.array_equal(known.clips, draw.clips)):
            self.faults.append("a step was drawn twice, with different coins or clips.")
        self._random = _random()
        return draw

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum of a step."""
        self.is_random = self.is_random or (self._random is not None and self._random != _random())
        self._random = None
        key = bare.name, bare.step
        known = self.bare.setdefault(key, bare)
        if known is bare:
            return known.released
        if _shapes(known) != _shapes(bare):
            self.faults.append("a step was taken by two models: every run of a plan spends all of it.")
            return bare.released
        if not np.array_equal(flat(known.sums), flat(bare.sums)):
            self.faults.append("two different sums left under the noise of one step, so their difference is bare.")
        elif not np.array_equal(flat(known.released), flat(bare.released)):
            self.faults.append("a sum left twice, each time under other noise.")
        return known.released

    def voted(self, poll: Poll) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Queries."""
        self.polls[poll.place] = poll
        return poll.passed, poll.labels


Compare = Callable[[Bare, Bare], tuple[float, list[str]]]
"""From a sum of the first run and the same of the second to by how much of their clip the holder moved it, and what is wrong."""


class Playback:
    """The second run, in which everything of a holder's is zeroed: they are not drawn, or, `aligned`, drawn with a clip of 0.

    The latter leaves everybody where they were in the batch, so that random numbers of the model (dropout) stay those of the same people.
    Sums are compared as they come, and not kept.
    """

    def __init__(self, tape: Tape, holder: int, *, aligned: bool, compare: Compare | None = None) -> None:
        self._tape, self._holder, self._aligned, self._compare = tape, holder, aligned, compare
        self.sums = set[Key]()
        self.largest, self.moved = 0.0, list[str]()
        """By how much of their clip the holder moved a sum at most, and what is wrong with sums."""
        self.polls: dict[int, Poll] = {}
        self.sources: list[Source] = []
        self._taken: Counter[int] = Counter()
        self._see: See = dict
        self.stopped = False
        self.faults: list[str] = []

    def reads(self, source: Source) -> None:
        """A run was made."""
        self.sources.append(source)

    def overlooked(self) -> None:
        """A private run elsewhere."""

    def stands(self, step: int, see: See) -> None:
        """Before a step."""
        if step >= self._tape.most:
            self.stopped = True
            raise Enough
        looks = self._tape.states.get(step, [])
        self._taken[step] += 1
        if self._taken[step] > len(looks) or looks[self._taken[step] - 1] != _looks(see()):
            self.faults.append("what anybody may see of the model between steps differs although the same was released.")
        self._see = see

    def begins(self) -> None:
        """A step's records are there."""

    def closes(self) -> None:
        """The run is over."""
        if self._tape.end != _looks(self._see())[0]:
            self.faults.append("what anybody may see of the model at the end differs although the same was released.")
        if self.sums != set(self._tape.bare):
            self.faults.append("how many steps there are follows the holder's records.")

    def drawn(self, draw: Draw) -> Draw:
        """The coins of a step, without the holder's."""
        others, known = draw.indices != self._holder, self._tape.draws.get(draw.step)
        if known is not None:  # drawn ahead, beyond the tape
            there = known.indices != self._holder
            if not np.array_equal(known.indices[there], draw.indices[others]):
                self.faults.append("who else is drawn follows the holder's records.")
            elif not np.array_equal(known.clips[there], draw.clips[others]):
                self.faults.append("other people's clips follow the holder's records.")
        if self._aligned:  # as it was then: a holder with other records may have other rungs, or rest
            then = draw if known is None else known
            return Draw(then.step, then.indices, np.where(then.indices != self._holder, then.clips, 0.0))
        return Draw(draw.step, draw.indices[others], draw.clips[others])

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum of a step; what leaves is what left before."""
        key = bare.name, bare.step
        self.sums.add(key)
        known = self._tape.bare.get(key)
        if known is None or _shapes(known) != _shapes(bare):
            self.faults.append("the run without the holder releases something else, or more often.")
            return bare.released
        if self._compare is not None:
            moved, found = self._compare(known, bare)
            self.largest, self.moved = max(self.largest, moved), [*self.moved, *found]
        return known.released

    def voted(self, poll: Poll) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
        """Queries; their labels are what they were before."""
        self.polls[poll.place] = poll
        known = self._tape.polls.get(poll.place)
        if known is None or len(known.labels) != len(poll.labels):
            self.faults.append("which queries are asked follows the holder's records.")
            return poll.passed, poll.labels
        return known.passed, known.labels


def _shapes(bare: Bare) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, np.shape(value)) for name, value in bare.sums.items()]


def _random() -> bytes:
    """Where the usual generators are."""
    numbers = np.random.get_state(legacy=False)  # noqa: NPY002
    return torch.get_rng_state().numpy().tobytes() + repr((numbers, random.getstate())).encode()
