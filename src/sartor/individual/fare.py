"""How the groups fare: accuracy, loss and mean reading by budget, class or another attribute, and how readings go with the loss.

People who allow little may be served badly by a model that learned little from them. Whether they are is told by figures about the
training records themselves, which no budget covers. So there are two ways to ask the same question:

- `released_fare` pays for the answer out of the plan's reserve: sums with noise, of figures within public ranges (`release` has guarantee
  and proof). Everybody may see it.
- `fare` computes it as it is, for whoever may see the training data, and for nobody else. Groups of fewer than ten holders are merged in it
  too, as a table is soon shown to somebody.

A holder with several records counts once: right and lost as the mean over their records, and of a category that all of them share, or of
none. Nothing of it follows from other people's records, which is what a release needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor import confidential
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.individual.readings import Reading
from sartor.individual.release import check
from sartor.individual.request import BUDGET, CLASS, COLUMNS, Figures, Release, Request
from sartor.individual.reserve import Reserve
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.run.stream import Stream

if TYPE_CHECKING:
    from torch import Tensor, nn
    from torch.utils.data import Dataset

Array = NDArray[np.float64]
Places = NDArray[np.intp]

NOWHERE = -1
"""The place of who is of no category."""


@dataclass(frozen=True, repr=False, eq=False)
class Attribute:
    """What people are told apart by. Its name and its categories, all that there may be, are public; whose is which is not.

    `values` has one entry for each holder, in the order of the budgets. Without them it is the class: the target of each record, whose
    number is the place of its category.

    >>> Attribute("sex", ["f", "m"], ["m", "f", "f"])
    Attribute(sex: 2 categories)
    """

    name: str
    categories: Sequence[str]
    values: Sequence[Any] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "categories", tuple(self.categories))
        if self.values is None and self.name != CLASS:
            raise SartorError(f'give a value of "{self.name}" for each holder; "{CLASS}" alone is known from the data.')

    def __repr__(self) -> str:
        return f"Attribute({self.name}: {len(self.categories)} categories)"


@dataclass(frozen=True, repr=False, eq=False)
class Fare:
    """How the groups fare as it is, without noise. Sensitive: it follows from people's records, and no budget covers it.

    A row of `groups` says what it is of, how many holders it has, and means over them, as one of a `Release` does. `correlation` is that of
    the reading with the logarithm of the loss, over all holders. A figure of fewer than ten people, or none, is NaN.
    """

    by: str
    groups: tuple[Mapping[str, Any], ...]
    correlation: float

    def __repr__(self) -> str:
        return f"Fare(by {self.by}; sensitive)"


def fare(
    model: nn.Module,
    data: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    reading: Reading,
    *,
    by: Attribute | None = None,
    columns: Sequence[str] = COLUMNS,
    ownership: Ownership | None = None,
    loss: Callable[..., Tensor] | None = None,
    sensitive: bool = False,
) -> Fare:
    """How the groups of a plan fare, or the categories of an attribute, as it is. Only where it is said that this is `sensitive`."""
    if sensitive is not True:
        raise SartorError(
            "figures of groups on their own training records are covered by no budget: release them out of the plan's reserve "
            "(released_fare), or say sensitive=True and show them to nobody who may not see the records."
        )
    _check_types(by, reading)
    request = request_for(by, columns)
    figures = _figures(model, data, budgets, plan, reading, by, ownership, loss)
    _check_classes(data, request)
    check(plan, figures, request)
    account, correct, lost, group = (np.asarray(each) for each in (figures.account, figures.correct, figures.loss, figures.group))
    known = {"account": account, "accuracy": correct, "loss": lost}
    rows = []
    for of, row in _rows(plan, group, by):
        inside = (group >= row.start) & (group < row.stop)
        rows.append({**of, "holders": int(inside.sum()), **{name: _mean(known[name][inside]) for name in request.columns}})
    return Fare(str(request.groups), tuple(rows), _pearson(account, np.log(np.maximum(lost, request.least_loss))))


def released_fare(
    reserve: Reserve,
    model: nn.Module,
    data: Dataset[Any],
    budgets: Budgets,
    reading: Reading,
    *,
    epsilon: float,
    by: Attribute | None = None,
    columns: Sequence[str] = COLUMNS,
    ownership: Ownership | None = None,
    loss: Callable[..., Tensor] | None = None,
    stream: Stream | None = None,
) -> Release:
    """The same with noise, paid out of a run's reserve, and charged before it is seen; asked again, it is the same and costs nothing.

    Guarantee: that of `Reserve.release`.
    Breaks if: the model was not released by the run that the reserve is of; the run was seeded; `loss` mixes people's records.
    """
    if not isinstance(reserve, Reserve):
        raise SartorError("what is released is paid out of a reserve: give it first (sartor.individual.reserve.Reserve).")
    _check_types(by, reading)
    request = request_for(by, columns)
    before = reserve.told(request, epsilon=epsilon) if stream is None else None
    if before is not None:
        return before
    figures = _figures(model, data, budgets, reserve.plan, reading, by, ownership, loss)
    _check_classes(data, request)
    return reserve.release(figures, request, epsilon=epsilon, stream=stream)


def _check_types(by: object, reading: object) -> None:
    if by is not None and not isinstance(by, Attribute):
        raise SartorError('by is an Attribute: Attribute("class", ["0", "1"]) for the targets, or with a value for each holder.')
    if not isinstance(reading, Reading):
        raise SartorError("there is no reading of this run: train with tracking=sartor.Tracking(...), or by a plan with a filter.")


def request_for(by: Attribute | None, columns: Sequence[str] = COLUMNS) -> Request:
    """The request that asks how groups fare, which is public."""
    if by is None:
        return Request(mean=False, groups=BUDGET, columns=columns, correlation=True)
    return Request(mean=False, groups=by.name, categories=by.categories, columns=columns, correlation=True)


def classes_of_holders(data: Dataset[Any], ownership: Ownership | None = None) -> Places:
    """The class that all records of each holder have; -1 where they differ, or targets are not one class for each record. Sensitive."""
    from sartor.sgd.training import classes

    return shared(classes(data), ownership)


def places(values: Sequence[Any], categories: Sequence[str]) -> Places:
    """The place of each value among the categories, compared as text; -1 for one that is none of them. Nothing is refused: see `release`.

    >>> places(["m", "?", 1], ["1", "m"]).tolist()
    [1, -1, 0]
    """
    place = {name.strip(): i for i, name in enumerate(categories)}
    return np.fromiter((place.get(str(value).strip(), NOWHERE) for value in values), np.intp, len(values))


def shared(of_records: ArrayLike, ownership: Ownership | None) -> Places:
    """The place that all records of each holder share, and -1 where they differ.

    >>> shared([4, 4, 2, 4], Ownership([0, 0, 1, 1], 2)).tolist()
    [4, -1]
    """
    found = np.asarray(of_records, np.intp)
    if ownership is None:
        return found
    if found.shape != ownership.of_record.shape:
        raise SartorError(f"there are {len(found):,} values for {len(ownership):,} records.")
    least, most = np.full(ownership.holders, np.iinfo(np.intp).max), np.full(ownership.holders, np.iinfo(np.intp).min)
    np.minimum.at(least, ownership.of_record, found)
    np.maximum.at(most, ownership.of_record, found)
    return np.where(least == most, least, NOWHERE)


def _figures(
    model: nn.Module,
    data: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    reading: Reading,
    by: Attribute | None,
    ownership: Ownership | None,
    loss: Callable[..., Tensor] | None,
) -> Figures:
    """What the question is answered from: of each holder their reading, how the model does on their records, and where they belong."""
    from sartor.sgd.loader import check_dataset
    from sartor.sgd.training import by_holder

    group = plan.groups_of(budgets)
    check_dataset(data, budgets, ownership)
    if by is not None:
        group = classes_of_holders(data, ownership) if by.values is None else places(by.values, by.categories)
        group = np.where((group >= 0) & (group < len(by.categories)), group, NOWHERE)
    return Figures(reading.accounts(sensitive=True), *by_holder(model, data, ownership, loss), group)


def _check_classes(data: Dataset[Any], request: Request) -> None:
    """Refuse to tell accuracy of targets that are no classes; that they are none is a matter of their type, which is public."""
    from sartor.sgd.training import has_classes

    if "accuracy" in request.columns and not has_classes(data):
        raise SartorError('these targets are no classes, so there is no accuracy to tell: ask for columns=("account", "loss").')


def _rows(plan: Plan, group: Places, by: Attribute | None) -> list[tuple[dict[str, Any], slice]]:
    """What each row is of, small groups merged."""
    if by is None:
        shown = (("epsilon", plan.epsilon), ("delta", plan.delta))
        view = plan.view
        return [({name: confidential.to_json(view.value(of, row)) for name, of in shown}, row) for row in view.rows()]
    sizes = np.bincount(group[group >= 0], minlength=len(by.categories))
    named = [(list(by.categories[row]), row) for row in confidential.rows(sizes)]
    return [({by.name: names[0] if len(names) == 1 else names}, row) for names, row in named]


def _mean(values: Array) -> float:
    known = values[np.isfinite(values)]
    return math.nan if confidential.are_few(len(known)) else float(known.mean())


def _pearson(x: Array, y: Array) -> float:
    known = np.isfinite(x) & np.isfinite(y)
    if confidential.are_few(int(known.sum())):
        return math.nan
    x, y = x[known] - x[known].mean(), y[known] - y[known].mean()
    size = math.sqrt(float(x @ x) * float(y @ y))
    return float(np.clip(x @ y / size, -1.0, 1.0)) if size > 0 else math.nan
