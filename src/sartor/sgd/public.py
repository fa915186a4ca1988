"""What is given as public is not what is trained on under a budget.

A figure about a record that is trained on is a release that no budget covers. So records are compared, first by where they come from (parts
and chains of one data set) and then by the numbers and texts that they hold, however they were cut, copied or made again.

Guarantee: a record of the training data set itself, through any `Subset` and `ConcatDataset`, is never taken as public. Neither are records
    that equal protected ones more often than chance explains (`overlap`), among those compared: all where both are of tensors (up to
    100,000 of each), otherwise 2,000 of each, drawn evenly.
Cost: up to 2,000 records of either are asked for, if they are not of tensors.
Breaks if: public data can only be gone through, not asked for a record; records are made with random numbers that no seed repeats, or show
    other things than tensors, arrays, numbers and texts; they hold the same people in other numbers (other features, another scaling), or
    so few of them that chance cannot be ruled out; a small part was taken of data sets that are too large to be read whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.overlap import shared
from sartor.ownership import Ownership
from sartor.sgd.batches import is_opaque, leaves
from sartor.sgd.forks import forked
from sartor.sgd.loader import check_dataset

Rows = NDArray[np.int64]
Source = tuple[Any, Rows]

_TENSORS, _OTHERS = 100_000, 2_000  # records that are compared


def refuse_protected(public: Any, dataset: Any, budgets: Budgets, ownership: Ownership | None = None) -> None:
    """Refuse, as public, records that are trained on under a budget."""
    check_dataset(dataset, budgets, ownership)
    finite = np.isfinite(budgets.epsilon)
    protected = np.flatnonzero(finite if ownership is None else finite[ownership.of_record])
    if isinstance(public, IterableDataset) or not hasattr(public, "__len__") or not len(protected):
        return
    trained, given = list(_sources(dataset, protected)), list(_sources(public, np.arange(len(public))))
    if _same(trained, given) or _equal(trained, given, dataset):
        raise SartorError(
            "public= holds records that are trained on under a budget, and figures about them would protect nobody: give other records, "
            "of people who agreed to that, or ask for figures about the training data as such (sensitive=True)."
        )


def _same(trained: list[Source], given: list[Source]) -> bool:
    return any(mine is theirs and bool(np.isin(rows, others).any()) for mine, rows in given for theirs, others in trained)


def _equal(trained: list[Source], given: list[Source], dataset: Any) -> bool:
    """Whether records equal protected ones beyond chance, or are all the training data, whoever of them is protected."""
    asked, everybody = _counted(given), list(_sources(dataset, np.arange(len(dataset))))
    return bool(shared(_counted(trained), asked)) or (bool(asked) and _length(given) == _length(everybody) and asked == _counted(everybody))


def _length(sources: list[Source]) -> int:
    return sum(len(rows) for _, rows in sources)


def _sources(data: Any, rows: Rows) -> Iterator[Source]:
    """The data sets that rows come from, and which rows of theirs they are."""
    if type(data) is Subset:
        yield from _sources(data.dataset, np.asarray(data.indices, np.int64)[rows])
    elif type(data) is ConcatDataset:
        ends = np.asarray(data.cumulative_sizes)
        for part, begin, end in zip(data.datasets, [0, *ends[:-1]], ends, strict=True):
            yield from _sources(part, rows[(begin <= rows) & (rows < end)] - begin)
    elif len(rows):
        yield data, rows % len(data)


def _counted(sources: list[Source]) -> Counter[bytes]:
    """How often each record occurs, among as many as are compared."""
    most = _TENSORS if all(type(data) is TensorDataset for data, _ in sources) else _OTHERS
    count = _length(sources)
    kept = np.zeros(count, bool)
    kept[np.random.default_rng(0).permutation(count)[:most]] = True
    found: Counter[bytes] = Counter()
    begin = 0
    for data, rows in sources:
        some = rows[kept[begin : begin + len(rows)]]
        found.update(_of_tensors(data, some) if type(data) is TensorDataset else _of_records(data, some))
        begin += len(rows)
    return found


def _of_tensors(data: TensorDataset, rows: Rows) -> Iterator[bytes]:
    if is_opaque(data.tensors):
        yield from _of_records(data, rows[:_OTHERS])
        return
    for chunk in np.array_split(rows, max(1, len(rows) // 1024)):
        parts = [tensor[chunk].detach().cpu().numpy() for tensor in data.tensors]
        for i in range(len(chunk)):
            yield _hashed(part[i].tobytes() for part in parts)


def _of_records(data: Any, rows: Rows) -> Iterator[bytes]:
    """Records that show what they hold; each under the same common random numbers."""
    for i in rows:
        with forked(0):
            record = data[int(i)]
        if not is_opaque(record):
            yield _hashed(map(_leaf, leaves(record)))


def _leaf(value: Any) -> bytes:
    """A value as it is in a tensor, whatever it was: labels are numbers here and tensors there."""
    if isinstance(value, Tensor):
        return bytes(value.detach().cpu().numpy().tobytes())
    if isinstance(value, np.ndarray | np.generic):
        return value.tobytes()
    if isinstance(value, bool | int | float):
        return np.asarray(value, np.float32 if isinstance(value, float) else np.int64 if type(value) is int else bool).tobytes()
    return repr(value).encode(errors="surrogatepass")


def _hashed(parts: Iterator[bytes]) -> bytes:
    found = blake2b(digest_size=16)
    for part in parts:
        found.update(part)
    return found.digest()
