"""A run that was looked at once, and can be again: with a holder zeroed, or, to see what differs by itself, with nobody."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset

from sartor.audit.fingerprint import digest
from sartor.audit.judge import SLIGHTLY
from sartor.audit.record import Compare, Enough, Playback, Tape
from sartor.audit.shown import Shown, compared, seeded
from sartor.audit.without import fresh
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.run.witness import looked_at_by
from sartor.sgd.run import NotFinite

NOBODY = -1
"""In the place of a holder: nobody is zeroed."""
_TIMES = 3  # how often a run is made again
_LOOKED_AT = 10  # records that are fetched to see whether they are random

Train = Callable[[Any, int], object]
"""From a data set and a seed to whatever is shown afterwards: it trains a new model, by `sartor.fit` or a loop around `make_private`."""


class Twice:
    """Runs `train` on a tape, and again as often as is asked for."""

    def __init__(self, train: Train, dataset: Any, seed: int, tape: Tape, *, random: bool) -> None:
        self._train, self._dataset, self._seed, self.tape = train, dataset, seed, tape
        self.first = Shown()
        tape.is_random = random or _is_random(dataset, None)
        _run(tape, train, fresh(dataset), seed, self.first, whatever=False)
        self.first.tell()
        self.is_random = tape.is_random or any(_is_random(source.dataset, source.collate) for source in tape.sources)

    def refuse_other(self, ownership: Ownership | None) -> None:
        """Refuse an ownership that is not the one that is trained with."""
        for source in self.tape.sources:
            one, other = ((None if of is None else of.of_record) for of in (source.ownership, ownership))
            if (one is None) != (other is None) or not np.array_equal(np.asarray(one), np.asarray(other)):
                raise SartorError("train has another ownership than replay, which must know whose records it replaces: give both the same.")

    def trains_on_another(self, again: Playback) -> bool:
        """Whether a second run trained on the very data set of the first, and so not on the one that it was given."""
        return any(one.dataset is other.dataset for one, other in zip(self.tape.sources, again.sources, strict=False))

    def without(self, holder: int, instead: Any, *, aligned: bool, compare: Compare | None = None) -> tuple[Playback, Shown]:
        """The run on another data set, in which a holder is zeroed: not drawn, or, `aligned`, drawn with a clip of 0."""
        again, shown = Playback(self.tape, holder, aligned=aligned, compare=compare), Shown()
        _run(again, self._train, fresh(instead), self._seed, shown, whatever=True)
        return again, shown

    def with_all(self, compare: Compare | None = None) -> tuple[Playback, Shown]:
        """The run with nobody zeroed."""
        return self.without(NOBODY, self._dataset, aligned=True, compare=compare)

    def compared(self, shown: Shown, again: Callable[[], tuple[Playback, Shown]]) -> tuple[list[str], set[str]]:
        """What follows the holder in what is seen, and what could not be compared, as it is never the same."""
        return compared(self.first, shown, control=lambda: self.with_all()[1], again=lambda: again()[1])

    def rounds_alike(self, compare: Compare) -> bool:
        """Whether sums of the same are the same to the last digit, as often as they are asked for."""
        return not any(self.with_all(compare)[0].moved for _ in range(_TIMES))

    def check_repeatable(self, compare: Compare) -> None:
        """Refuse a run that is not the same twice: nothing could be said of what a holder moves."""
        again, _ = self.with_all(compare)
        if again.faults or set(again.moved) - {SLIGHTLY}:
            raise SartorError(
                "this training is not the same twice under one seed: let all that it draws follow the seed (torch, numpy and random do), "
                "and make the model in train."
            )


def _is_random(dataset: Any, collate: Any) -> bool:
    """Whether a few records come out otherwise under other random numbers, so that everybody must stay in their place."""
    if type(dataset) is TensorDataset and collate is None:
        return False

    def some(seed: int) -> str:
        with seeded(seed):
            return digest((collate or list)([dataset[row] for row in range(min(len(dataset), _LOOKED_AT))]))

    try:
        return some(1) != some(2)
    except Exception:  # no data set, or whatever one makes of being asked
        return False


def _run(witness: Tape | Playback, train: Train, dataset: Any, seed: int, shown: Shown, *, whatever: bool) -> None:
    """Look at a run; `whatever` error ends it is a way to end, or else only what its own model may do."""
    with shown.looking(), seeded(seed), looked_at_by(witness):
        try:
            shown.returned(train(dataset, seed))
        except Enough:
            shown.stopped()
        except SystemExit as error:
            if not whatever:
                raise SartorError("train ends the program (SystemExit): let it return instead.") from None
            shown.failed(error)
        except Exception as error:
            if not (whatever or isinstance(error, NotFinite)):
                raise
            shown.failed(error)
    if witness.stopped:  # though a loop may have caught it
        shown.stopped()
    witness.closes()
