"""A run that was looked at once, and can be again: with a holder zeroed, or, to see what differs by itself, with nobody."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.audit.judge import SLIGHTLY
from sartor.audit.opened import listening
from sartor.audit.reached import beside, digests, of_records, reached, told, warm
from sartor.audit.record import Compare, Enough, Playback, Tape
from sartor.audit.shown import Shown, compared
from sartor.audit.without import copied, is_random
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.run.witness import looked_at_by
from sartor.sgd.contents import content
from sartor.sgd.generators import own, repeatable
from sartor.sgd.run import NotFinite

NOBODY = -1
"""In the place of a holder: nobody is zeroed."""
_TIMES = 3  # how often a run is made again
_LOOKED_AT = 10  # records that are fetched to see how they are made

Train = Callable[[Any, int], object]
"""From a data set and a seed to whatever is shown afterwards: it trains a new model, by `sartor.fit` or a loop around `make_private`."""


class Twice:
    """Runs `train` on a tape, and again as often as is asked for; what is in the data set before is there again each time."""

    def __init__(self, train: Train, dataset: Any, seed: int, tape: Tape, *, random: bool) -> None:
        self._train, self._dataset, self._seed, self.tape = train, dataset, seed, tape
        self.first = Shown()
        self._before, self._warm = digests(train), warm(train)
        tape.is_random = random or bool(_generators(train)) or _is_augmented(copied(dataset))
        self._reads = _run(tape, train, copied(dataset), seed, self.first, whatever=False)
        self.first.tell()
        self.is_random = tape.is_random or any(_is_augmented(copied(source.dataset), source.collate) for source in tape.sources)

    @property
    def remembers(self) -> bool:
        """Whether something that is trained with is not as it was before the first run: it may hide a holder in the second."""
        return digests(self._train) != self._before

    @property
    def unseen(self) -> set[str]:
        """What the way to the batches, or whatever trains, has beside the records that it is given."""
        found = {name for source in self.tape.sources if source.collate is not None for name in beside(source.collate)}
        names = of_records(reached(self._train))
        if names:
            found.add(f"numbers that train reaches beside its argument ({told(names)})")
        if self._warm:
            found.add(f"what was cached before anything was replayed ({told(self._warm)})")
        if self._reads:
            found.add("what train reads from files")
        return found

    def refuse_other(self, ownership: Ownership | None) -> None:
        """Refuse an ownership that is not the one that is trained with."""
        for source in self.tape.sources:
            one, other = ((None if of is None else of.of_record) for of in (source.ownership, ownership))
            if (one is None) != (other is None) or not np.array_equal(np.asarray(one), np.asarray(other)):
                raise SartorError("train has another ownership than replay, which must know whose records it replaces: give both the same.")

    def elsewhere(self, again: Playback, instead: Any, rows: NDArray[np.integer]) -> set[str]:
        """Whether batches of a second run were made of the same records of the holder as in the first, though others were given."""
        own = _digests(self._dataset, rows)
        if own is None or own == _digests(instead, rows):
            return set()
        for one, other in zip(self.tape.sources, again.sources, strict=False):
            found = _digests(one.dataset, rows)
            if found is not None and found == _digests(other.dataset, rows):
                return {"records that train reads from elsewhere than the data set that it is given"}
        return set()

    def without(self, holder: int, instead: Any, *, aligned: bool, compare: Compare | None = None) -> tuple[Playback, Shown]:
        """The run on another data set, in which a holder is zeroed: not drawn, or, `aligned`, drawn with a clip of 0."""
        again, shown = Playback(self.tape, holder, aligned=aligned, compare=compare), Shown()
        self._reads = _run(again, self._train, copied(instead), self._seed, shown, whatever=True) or self._reads
        return again, shown

    def compared(self, shown: Shown, again: Callable[[], tuple[Playback, Shown]]) -> tuple[list[str], set[str]]:
        """What follows the holder in what is seen, and what could not be compared, as it is never the same."""
        control = functools.partial(self.without, NOBODY, self._dataset, aligned=True)
        faults, unseen = compared(self.first, shown, control=lambda: control()[1], again=lambda: again()[1])
        if self.first.keeps_otherwise(shown):
            unseen.add("what the model keeps beside its state, which differs from run to run: release its state_dict alone")
        return faults, unseen

    def rounds_alike(self, compare: Compare) -> bool:
        """Whether sums of the same are the same to the last digit, as often as they are asked for."""
        return not any(self.without(NOBODY, self._dataset, aligned=True, compare=compare)[0].moved for _ in range(_TIMES))

    def check_repeatable(self, compare: Compare) -> None:
        """Refuse a run that is not the same twice: nothing could be said of what a holder moves."""
        again, _ = self.without(NOBODY, self._dataset, aligned=True, compare=compare)
        if again.faults or set(again.moved) - {SLIGHTLY}:
            raise SartorError(
                "this training is not the same twice under one seed and on the same data, so replay cannot tell what a holder moves: let "
                "all that it draws follow the seed (torch, numpy and random are), make the model in train, and keep nothing between runs."
            )


def _generators(train: Train) -> list[Any]:
    try:
        return own(train)
    except Exception:  # whatever an object makes of being looked into
        return []


def _is_augmented(dataset: Any, collate: Any = None) -> bool:
    """Whether records come out otherwise under other random numbers: then everybody stays in their place, so that these stay theirs."""
    if type(dataset) is TensorDataset and collate is None:
        return False
    try:
        rows = range(min(len(dataset), _LOOKED_AT))
    except Exception:  # no data set, or whatever one makes of being asked
        return False
    return is_random(lambda: (collate or list)([dataset[row] for row in rows]), dataset, collate)


def _digests(dataset: Any, rows: NDArray[np.integer]) -> list[bytes] | None:
    """What a few records hold."""
    try:
        fresh = copied(dataset)
        return [content(repeatable(0, partial(fresh.__getitem__, row), fresh)) for row in rows[:_LOOKED_AT].tolist()]
    except Exception:  # no data set, or records that show nothing
        return None


def _run(witness: Tape | Playback, train: Train, dataset: Any, seed: int, shown: Shown, *, whatever: bool) -> bool:
    """Look at a run, and say whether it read files; `whatever` error ends it is a way to end, or else only what its own model may do."""
    returned: list[object] = []
    with _seeded(seed), looked_at_by(witness), shown.looking():
        with listening() as opened:
            try:
                returned.append(train(dataset, seed))
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
        for value in returned:  # what is written where it says is read here, and not by train
            shown.returned(value)
    for source in witness.sources:
        shown.keeps(source.model)
    if witness.stopped:  # though a loop may have caught it
        shown.stopped()
    witness.closes()
    return bool(opened.read)


@contextmanager
def _seeded(seed: int) -> Iterator[None]:
    """The usual generators begin at a seed, and are put back where they were."""
    before, numbers = random.getstate(), np.random.get_state()  # noqa: NPY002
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            random.seed(seed)
            np.random.seed(seed % 2**32)  # noqa: NPY002
            yield
    finally:
        random.setstate(before)
        np.random.set_state(numbers)  # noqa: NPY002
