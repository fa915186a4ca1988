"""What a seeded run does, step by step, on a tape; and the same run played again to one with a holder zeroed.

A tape holds who was drawn, every sum before its noise, and what was released. The second run has the same coins and is told the same
releases, so it is at every step where the first one was, and whatever differs is the holder's doing.

Both are witnesses (`sartor.run.witness`): they see seeded runs alone. What they hold is sensitive throughout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from hashlib import blake2b
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.run.sampling import Draw
from sartor.run.witness import Array, Bare

Key = tuple[str, int]
"""The name of a sum and its step."""


BESIDE = "gradient of "
"""How the names of gradients begin in what anybody may see of a model."""


class Enough(Exception):
    """As many steps as were wanted are on the tape."""


def digest(state: Mapping[str, Any]) -> str:
    """A fingerprint of a model as anybody may see it."""
    found = blake2b(digest_size=16)
    for name in sorted(state):
        value = state[name].detach() if isinstance(state[name], torch.Tensor) else torch.as_tensor(state[name])
        found.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
        found.update(value.cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def _looks(state: Mapping[str, Any]) -> tuple[str, str]:
    """Fingerprints of the model as it is kept, and of the gradients beside it, which a run that is taken up again does not have yet."""
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
        self.votes: dict[int, tuple[Array, Array, NDArray[np.bool_], NDArray[np.int64]]] = {}
        self.faults: list[str] = []
        self.is_random = False
        """Whether something between draw and sum uses torch's random numbers, as dropout does."""
        self._random: bytes | None = None

    @property
    def steps(self) -> int:
        """Steps of which something was released."""
        return len({step for _, step in self.bare})

    def stands(self, step: int, state: Mapping[str, Any]) -> None:
        """Before a step."""
        if step >= self.most:
            raise Enough
        looks = self.states.setdefault(step, [])
        looks.append(_looks(state))
        if looks[0][0] != looks[-1][0]:
            self.faults.append("a step was taken twice, from different models.")
        self._random = _random()

    def drawn(self, draw: Draw) -> Draw:
        """The coins of a step."""
        known = self.draws.setdefault(draw.step, draw)
        if not (np.array_equal(known.indices, draw.indices) and np.array_equal(known.clips, draw.clips)):
            self.faults.append("a step was drawn twice, with different coins or clips.")
        return draw

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum of a step."""
        self.is_random = self.is_random or (self._random is not None and self._random != _random())
        key = bare.name, bare.step
        known = self.bare.setdefault(key, bare)
        if known is not bare and not np.array_equal(flat(known.sums), flat(bare.sums)):
            self.faults.append("two different sums left under the noise of one step, so their difference is bare.")
        elif known is not bare and not np.array_equal(flat(known.released), flat(bare.released)):
            self.faults.append("a sum left twice, each time under other noise.")
        return known.released

    def voted(self, place: int, counts: Array, weights: Array, passed: NDArray[np.bool_], labels: NDArray[np.int64]) -> Any:
        """Queries."""
        self.votes[place] = counts, weights, passed, labels
        return passed, labels


class Playback:
    """The second run, in which everything of a holder's is zeroed: they are not drawn, or, `aligned`, drawn with a clip of 0.

    The latter leaves everybody where they were in the batch, so that random numbers of the model (dropout) stay those of the same people.
    """

    def __init__(self, tape: Tape, holder: int, *, aligned: bool) -> None:
        self._tape, self._holder, self._aligned = tape, holder, aligned
        self.bare: dict[Key, Bare] = {}
        self.votes: dict[int, tuple[Array, Array, NDArray[np.bool_], NDArray[np.int64]]] = {}
        self.draws = 0
        self._taken: Counter[int] = Counter()
        self.faults: list[str] = []

    def stands(self, step: int, state: Mapping[str, Any]) -> None:
        """Before a step."""
        if step >= self._tape.most:
            raise Enough
        looks = self._tape.states.get(step, [])
        self._taken[step] += 1
        if self._taken[step] > len(looks) or looks[self._taken[step] - 1] != _looks(state):
            self.faults.append("what anybody may see of the model between steps differs although the same was released.")

    def drawn(self, draw: Draw) -> Draw:
        """The coins of a step, without the holder's."""
        self.draws += 1
        others, known = draw.indices != self._holder, self._tape.draws.get(draw.step)
        if known is not None:  # drawn ahead, beyond the tape
            there = known.indices != self._holder
            if not np.array_equal(known.indices[there], draw.indices[others]):
                self.faults.append("who else is drawn follows the holder's records.")
            elif not np.array_equal(known.clips[there], draw.clips[others]):
                self.faults.append("other people's clips follow the holder's records.")
        if self._aligned:
            return Draw(draw.step, draw.indices, np.where(others, draw.clips, 0.0))
        return Draw(draw.step, draw.indices[others], draw.clips[others])

    def released(self, bare: Bare) -> Mapping[str, Array]:
        """A sum of a step; what leaves is what left before."""
        key = bare.name, bare.step
        self.bare[key] = bare
        known = self._tape.bare.get(key)
        if known is None:
            self.faults.append("the run without the holder releases something else, or more often.")
            return bare.released
        return known.released

    def voted(self, place: int, counts: Array, weights: Array, passed: NDArray[np.bool_], labels: NDArray[np.int64]) -> Any:
        """Queries; their labels are what they were before."""
        self.votes[place] = counts, weights, passed, labels
        known = self._tape.votes.get(place)
        if known is None or len(known[3]) != len(labels):
            self.faults.append("which queries are asked follows the holder's records.")
            return passed, labels
        return known[2], known[3]


def _random() -> bytes:
    return torch.get_rng_state().numpy().tobytes()
