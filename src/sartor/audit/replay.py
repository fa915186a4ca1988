"""Replay: a mechanism is run on the data, and again with one holder zeroed, under the same coins and the same releases.

Then every step can be looked at by itself: the sum before its noise may move by the holder's clip at most, and nothing else may move at
all. It is deterministic, costs one more run for each holder tried, and finds what no test of the parts sees: what happens around the
mechanism, in a collate function, a loss, a cache, a file. (After the record-and-replay idea of dp-recorder.)

What is asserted, of every step:
- the sum before noise moved by at most the clip that the *plan* has for the holder's budget (the rung, with a filter), and not at all
  where the holder was not drawn;
- everybody else is drawn as before, with the clips of their own budgets;
- the noise is the same with and without the holder, of the plan's deviation in every place, and comes again nowhere (`noise`), and the
  divisor is the plan's;
- coins fall as those of people who each have their own do, at the plan's rates (`draws`);
- units of a filter are enough for the rungs that were taken;
- the step was charged when its sum left;
- the model between steps and at the end, what the run prints, logs, warns of and returns, whether and how it ends, and files that others
  may read, where it returns their path, are the same without the holder.

Breaks if: what trains reads the holder's records, or remembers them, elsewhere than in the data set that it is given; that data set makes a
    record of several people's inside (`without`); what it shows is never the same twice; it draws random numbers by generators that it
    makes itself. Those who train are honest and may err: nobody's memory is searched. A run that passes is consistent with its plan on
    these data and holders, as far as it was looked at (`most_steps`); only the proof says it of all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from torch.utils.data import TensorDataset

from sartor.audit.choice import chosen, whole
from sartor.audit.judge import SLIGHTLY, Judge
from sartor.audit.record import Compare, Enough, Playback, Tape
from sartor.audit.sensitive import check_said
from sartor.audit.shown import Shown, compared, digest, seeded
from sartor.audit.without import extreme, fresh, without
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.numbers import to_json_number
from sartor.ownership import Ownership
from sartor.plans import Plan
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


_GENERATORS = (
    "random numbers that train draws by generators of its own, if it does (as where it makes a torch.Generator): sums move no more than "
    "they may where everybody stays in their place, so say random=True then"
)
MOST_STEPS = 50
"""Steps that are replayed, unless others are asked for."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found. `largest_move` is over the clip of the holder in question; `faults` name what broke, and nobody.

    It is `sensitive` unless the records may be shown.
    """

    steps: int
    holders_tried: int
    largest_move: float = field(repr=False)
    faults: tuple[str, ...] = field(default=(), repr=False)
    unseen: tuple[str, ...] = field(default=(), repr=False)
    """What could not be looked at: kinds of things in which a holder's records could not be replaced, or that are never the same twice."""
    ended: bool = True
    """Whether the run came to its end, or was stopped before: then nothing that it does at its end was seen."""
    sensitive: bool = True

    @property
    def verdict(self) -> str:
        """Whether what was seen is consistent with the plan."""
        return "refuted" if self.faults else "consistent"

    @property
    def complete(self) -> bool:
        """Whether nothing was unseen, as far as can be noticed, and the run came to its end."""
        return self.ended and not self.unseen

    def to_json(self, *, sensitive: bool = False) -> dict[str, Any]:
        """As a document, which has to be said to be `sensitive` where it is."""
        check_said(self.sensitive, sensitive)
        figures = {"steps": self.steps, "holders_tried": self.holders_tried, "largest_move": to_json_number(self.largest_move)}
        seen = {"faults": list(self.faults), "unseen": list(self.unseen), "ended": self.ended}
        return {"attack": "replay", "verdict": self.verdict, **figures, **seen, **({"sensitive": True} if self.sensitive else {})}


def replay(
    train: Train,
    dataset: Any,
    budgets: Budgets,
    plan: Plan | FederatedPlan,
    *,
    ownership: Ownership | None = None,
    holders: int | Sequence[int] = 4,
    seed: int = 0,
    most_steps: int = MOST_STEPS,
    random: bool = False,
    sensitive: bool = True,
) -> Replayed:
    """Run `train(dataset, seed)`, and again for some holders with everything of theirs zeroed; what differs is compared with the plan.

    Args:
        train: Makes a new model, trains it under the plan on the data and with the seed that it is given, keeps nothing for the next time,
            and returns what may be shown: an account, the model, a text, several of them, the `Path` of a file or folder, of which others
            see what they may read, or nothing.
        dataset: The records. Give raw ones (a tensor, an array, a `TensorDataset`, columns by name or in a tuple) where `train` makes
            records or statistics out of several: other people's then stand in the holder's places in all that is made. Any other data set
            is handed out record by record.
        budgets: Everybody's budgets.
        plan: What is promised.
        ownership: Whose the records are, where holders have several.
        holders: Places in the budgets, or how many shall be tried, of all groups in turn.
        seed: Of the runs and of who is tried.
        most_steps: Steps after which a run is stopped.
        random: Whether it draws random numbers which replay does not see, by generators that it makes itself; then everybody stays in
            their places.
        sensitive: Whether the records may not be shown.

    Returns:
        What broke, if anything, and what could not be looked at.

    Raises:
        SartorError: Nothing is released or nobody drawn, or the training is not the same twice.

    >>> import sartor, torch
    >>> data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    >>> budgets = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
    >>> plan = sartor.plan(budgets, steps=5, batch=20)
    >>> def train(data, seed):
    ...     return sartor.fit(torch.nn.Linear(4, 2), data, budgets, plan, seed=seed, progress=False).account.to_json()
    >>> replay(train, data, budgets, plan, holders=2).verdict
    'consistent'
    """
    accounted = plan.accounted if isinstance(plan, FederatedPlan) else plan
    group = accounted.groups_of(budgets)
    chosen(holders, group, seed)  # refused before anything is trained
    run = Twice(train, dataset, seed, Tape(whole(most_steps, "most_steps")), random=random)
    tape = run.tape
    if not tape.bare:
        raise SartorError("nothing was released while the run was looked at: train must run the plan (sartor.fit, sartor.make_private).")
    if not tape.draws:
        raise SartorError("sums were released, but nobody was seen to be drawn: hand draws through sartor.run.witness.seen(stream, draw).")
    run.refuse_other(ownership)
    judge = Judge(tape, accounted, group)
    faults, unseen, largest = [*tape.faults, *judge.of_the_run()], set(tape.unseen), 0.0
    tried = chosen(holders, group, seed, judge.drawn)
    for place, holder in enumerate(tried):
        rows = np.array([holder]) if ownership is None else np.flatnonzero(ownership.of_record == holder)
        instead, missed = without(dataset, rows)
        unseen |= missed
        larger = None if place or run.is_random else extreme(dataset, rows)
        for data, aligned in [(larger, False), *((instead, aligned) for aligned in ((True, False) if run.is_random else (False,)))]:
            if data is None:
                continue
            compare = None if run.is_random and not aligned else judge.of_holder(holder)
            again, shown = run.without(holder, data, aligned=aligned, compare=compare)
            if data is larger and not shown.reached_its_end:
                continue  # a run that fails of such numbers tells nothing
            if (again.faults or again.moved) and not faults:
                run.check_repeatable(judge.of_holder(NOBODY))
            seen, never = run.compared(shown, partial(run.without, holder, data, aligned=aligned))
            largest, unseen = max(largest, again.largest), unseen | never
            if run.trains_on_another(again):
                unseen.add("records that train reads from elsewhere than the data set that it is given")
            if again.moved and not aligned and not run.without(holder, data, aligned=True, compare=judge.of_holder(holder))[0].moved:
                unseen.add(_GENERATORS)
            faults += [*again.faults, *again.moved, *seen]
    if SLIGHTLY in faults and not run.rounds_alike(judge.of_holder(NOBODY)):
        faults = [fault for fault in faults if fault != SLIGHTLY]
        unseen.add("moves as small as sums are rounded, as they differ from run to run")
    if run.is_random:  # of smaller batches: others' random numbers are other ones, so sums say nothing, but all else must be the same
        unseen.add("sums of batches without the holder, as others would draw other random numbers")
    if not judge.has_seen_a_clip:
        unseen.add("clipping, as nothing of those who were zeroed was as long as their clip")
    return Replayed(tape.steps, len(tried), largest, tuple(dict.fromkeys(faults)), tuple(sorted(unseen)), run.first.ended, sensitive)
