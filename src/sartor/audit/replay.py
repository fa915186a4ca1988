"""Replay: a mechanism is run on the data, and again with one holder zeroed, under the same coins and the same releases.

Then every step can be looked at by itself: the sum before its noise may move by the holder's clip at most, and nothing else may move at
all. It is deterministic, costs one more run for each holder tried, and finds what no test of the parts sees: what happens around the
mechanism, in a collate function, a loss, a cache, a file. (After the record-and-replay idea of dp-recorder.)

What is asserted, of every step:
- the sum before noise moved by at most the clip that the *plan* has for the holder's budget (the rung, with a filter), and not at all
  where the holder was not drawn;
- everybody else is drawn as before, with the clips of their own budgets;
- the noise is the same with and without the holder, of the plan's deviation, independent between steps and arrays, and the divisor
  is the plan's;
- coins fall as often as the plan's rates say, and sizes of batches differ as those of coins do;
- units of a filter are enough for the rungs that were taken;
- the step was charged when its sum left, and what the run shows, prints and returns is the same without the holder.

Breaks if: what trains reads the holder's records from elsewhere than the data set that it is given; it is not repeatable under its seed. A
    run that passes is consistent with its plan on these data and holders; only the proof says it of all.
"""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from sartor.audit.judge import Judge
from sartor.audit.record import Enough, Playback, Tape
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.federated.plan import FederatedPlan
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.run.witness import looked_at_by
from sartor.sgd.pristine import light
from sartor.sgd.stores import stores

MOST_STEPS = 50
"""Steps that are replayed, unless others are asked for."""

Train = Callable[[Any, int], object]
"""From a data set and a seed to whatever is shown afterwards: it trains a new model, by `sartor.fit` or a loop around `make_private`."""


@dataclass(frozen=True)
class Replayed:
    """What a replay found. `largest_move` is over the clip of the holder in question; `faults` name what broke, and nobody."""

    steps: int
    holders_tried: int
    largest_move: float
    faults: tuple[str, ...] = ()
    unseen: tuple[str, ...] = ()
    """Kinds of things in which a holder's records could not be replaced."""

    @property
    def verdict(self) -> str:
        """Whether what was seen is consistent with the plan."""
        return "refuted" if self.faults else "consistent"

    def to_json(self) -> dict[str, Any]:
        """As a document."""
        figures = {"steps": self.steps, "holders_tried": self.holders_tried, "largest_move": self.largest_move}
        return {"attack": "replay", "verdict": self.verdict, **figures, "faults": list(self.faults)}


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
) -> Replayed:
    """Run `train(dataset, seed)`, and again for some holders with everything of theirs zeroed; what differs is compared with the plan.

    `train` makes a new model, trains it under the plan with the seed that it is given, and returns what may be shown (an account, a text,
    nothing). The data set of the second run has other people's records in the holder's places. `holders` are places in the budgets, or
    how many shall be tried, of all groups in turn. After `most_steps` steps a run is stopped.

    >>> import sartor
    >>> data = torch.utils.data.TensorDataset(torch.randn(60, 4), torch.randint(0, 2, (60,)))
    >>> budgets = sartor.Budgets.from_groups([(1.0, 30), (4.0, 30)], delta=1e-3)
    >>> plan = sartor.plan(budgets, steps=5, batch=20)
    >>> def train(data, seed):
    ...     return sartor.fit(torch.nn.Linear(4, 2), data, budgets, plan, seed=seed, progress=False).account.to_json()
    >>> replay(train, data, budgets, plan, holders=2).verdict
    'consistent'
    """
    accounted = plan.accounted if isinstance(plan, FederatedPlan) else plan
    tape, first = Tape(most_steps), _Shown()
    _run(tape, train, dataset, seed, first)
    if not tape.bare:
        raise SartorError("nothing was released while the run was looked at: train must run the plan (sartor.fit, sartor.make_private).")
    judge = Judge(tape, accounted, accounted.groups_of(budgets))
    faults = [*tape.faults, *judge.of_the_run()]
    chosen = judge.some(holders, seed) if isinstance(holders, int) else [int(holder) for holder in holders]
    if any(not 0 <= holder < len(budgets) for holder in chosen):
        raise SartorError(f"holders are places in the budgets, from 0 to {len(budgets) - 1}.")
    largest, unseen = 0.0, set[str]()
    for holder in chosen:
        rows = np.array([holder]) if ownership is None else np.flatnonzero(ownership.of_record == holder)
        instead, missed = without(dataset, rows)
        unseen |= missed
        again, shown = Playback(tape, holder, aligned=tape.is_random), _Shown()
        _run(again, train, instead, seed, shown)
        moved, found = judge.of_holder(again, holder)
        largest = max(largest, moved)
        faults += [*again.faults, *found, *shown.differs(first)]
    return Replayed(tape.steps, len(chosen), largest, tuple(dict.fromkeys(faults)), tuple(sorted(unseen)))


def without(dataset: Any, rows: NDArray[np.integer]) -> tuple[Any, set[str]]:
    """The data set with other people's records in some places, and what could not be replaced in it."""
    try:
        found = stores(dataset, None)
    except TypeError:  # no data set: whoever trains has the records elsewhere
        return dataset, {type(dataset).__name__}
    instead: dict[int, Any] = {}
    for store in found.found:
        own = [row for record in rows.tolist() if (row := store.row_of(int(record))) is not None]
        order = np.arange(store.length)
        others = np.setdiff1d(order, own)
        if len(own) and len(others):
            order[own] = others[np.arange(len(own)) % len(others)]
            instead[id(store.value)] = store.take(order)
    if not instead:
        return dataset, found.unseen | {type(dataset).__name__}
    return light(dataset, instead), found.unseen


class _Shown:
    """What anybody sees of a run: what it prints, and what it returns."""

    def __init__(self) -> None:
        self.printed, self.ended = io.StringIO(), False
        self.returned: object = None

    def differs(self, other: _Shown) -> list[str]:
        if self.ended != other.ended:
            return ["whether the run comes to its end follows the holder's records."]
        found = ["what is printed follows the holder's records."] if self.printed.getvalue() != other.printed.getvalue() else []
        if self.ended and _plain(self.returned) != _plain(other.returned):
            found.append("what is returned follows the holder's records although the same was released.")
        return found


def _run(witness: Tape | Playback, train: Train, dataset: Any, seed: int, shown: _Shown) -> None:
    with torch.random.fork_rng(devices=[]), looked_at_by(witness), redirect_stdout(shown.printed):
        torch.manual_seed(seed)
        try:
            shown.returned = train(dataset, seed)
            shown.ended = True
        except Enough:
            pass


def _plain(value: Any) -> Any:
    """Something that was returned, so that two of it can be compared."""
    if hasattr(value, "to_json"):
        value = value.to_json()
    if isinstance(value, torch.Tensor | np.ndarray):
        return torch.as_tensor(value).tolist()
    try:
        return json.dumps(value, sort_keys=True)
    except (TypeError, ValueError):
        return repr(value)
