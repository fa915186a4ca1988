"""Model, loss, collate function and data set as they were before anything went through them.

A batch may leave something behind where nobody looks: in a plain attribute, a closure, a cache. Whoever compares an example alone with its
part in the batch must not do it with objects that have seen the batch, or both agree on what it left. So copies are kept from the begin
that nothing goes through; each comparison takes copies of those. Parameters and buffers are the model's own, which are watched elsewhere.

Breaks if: something cannot be copied (then it is used itself, and said), remembers in global variables, or inside of the entries of a
    container of more than `SOME`, which copies share. Large tensors and arrays are shared too; who writes into one is refused.
"""

from __future__ import annotations

import copy
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from torch import Tensor, nn
from torch.utils.data import Dataset

from sartor.errors import SartorError
from sartor.sgd.check import Unchecked
from sartor.sgd.generators import COMMON
from sartor.sgd.trees import attributes

LARGE = 2**20  # bytes that are not copied
SOME = 100  # entries of a container that are copied with it
_MOST = 10_000  # objects that are looked into


@dataclass(frozen=True, eq=False)
class Copies:
    """What records go through on their way to a gradient."""

    model: nn.Module
    loss: Any
    collate: Callable[[list[Any]], Any] | None
    dataset: Dataset[Any]


class Pristine:
    """Keeps copies from before the first batch. Made before any hook is put on the model."""

    def __init__(self, model: nn.Module, loss: Any, collate: Any, dataset: Any) -> None:
        self._kept, self._can = Copies(model, loss, collate, dataset), True
        self._spared: tuple[Any, ...] | None = None  # parts that cannot be copied (locks, files): they are used themselves
        self._kept = self.fresh()
        self._large = [(value, _sum(value)) for value in _shared(dataset, {})]

    def refuse_moved(self) -> None:
        """Refuse a data set that wrote into large tensors or arrays, which copies share, since the begin or the last change in public."""
        if any(_sum(value) != before for value, before in self._large):
            raise SartorError(
                f"the data set changes a tensor or an array of more than {LARGE >> 20} MiB as records are fetched, so nobody can see what "
                "one record leaves there for another; keep what is made of records (a cache) in a dictionary by their numbers."
            )

    def moved_in_public(self) -> None:
        """What changed by now was changed by public code."""
        self._large = [(value, _sum(value)) for value, _ in self._large]

    def fresh(self) -> Copies:
        """Copies of all, which nothing has gone through."""
        return self._copies(True) if self._can else self._kept

    def records(self, instead: Mapping[int, Any] | None = None) -> Copies:
        """The same, with the model and the loss that are kept: for those who only make batches. `instead` has what is put in the place of
        parts of what is `kept`, by their ids."""
        return self._copies(False, instead) if self._can else self._kept

    @property
    def kept(self) -> Copies | None:
        """What copies are made of, to be looked at alone; None where there are none."""
        return self._kept if self._can else None

    def _copies(self, everything: bool, instead: Mapping[int, Any] | None = None) -> Copies:
        kept = self._kept
        memo = {id(value): value for value in (*kept.model.parameters(), *kept.model.buffers(), *COMMON, *(self._spared or ()))}
        try:
            memo.update(instead or {})
            dataset = memo[id(kept.dataset)] if id(kept.dataset) in memo else _object(kept.dataset, memo)
            memo[id(kept.dataset)] = dataset
            model, loss = (deep(kept.model, memo), deep(kept.loss, memo)) if everything else (kept.model, kept.loss)
            return Copies(model, loss, deep(kept.collate, memo), dataset)
        except Exception as error:  # whatever a class makes of being copied
            if self._spared is None:
                self._spared = tuple(_uncopied(kept, memo))
                return self._copies(everything, instead)
            self._can = False
            warnings.warn(
                f"the model, the loss, the collate function or the data set cannot be copied ({type(error).__name__}), so what they keep "
                "of one batch for the next is not seen.",
                Unchecked,
                stacklevel=2,
            )
            return kept


def _uncopied(kept: Copies, memo: dict[int, Any]) -> Iterator[Any]:
    owners = [*kept.model.modules(), kept.loss, getattr(kept.loss, "_given", None), kept.collate, kept.dataset]
    for owner in owners:
        for value in getattr(owner, "__dict__", {}).values():
            try:
                light(value, dict(memo))
            except Exception:  # whatever a class makes of being copied
                if not isinstance(value, dict | nn.Module):
                    yield value


def deep(value: Any, memo: dict[int, Any]) -> Any:
    """A deep copy; of a function, one with cells of its own, which `copy` takes for constants."""
    if not isinstance(value, types.FunctionType) or not value.__closure__:
        return copy.deepcopy(value, memo)
    if id(value) in memo:
        return memo[id(value)]
    cells = tuple(types.CellType(deep(cell.cell_contents, memo)) for cell in value.__closure__)
    made = types.FunctionType(value.__code__, value.__globals__, value.__name__, value.__defaults__, cells)
    made.__kwdefaults__ = value.__kwdefaults__
    memo[id(value)] = made
    return made


def light(value: Any, memo: dict[int, Any]) -> Any:
    """A copy of what a data set is made of: containers are copied, however large, but their records (the entries of a large one, large
    tensors and arrays) are shared. `memo` has what is put in the place of something, as for `copy.deepcopy`."""
    if id(value) in memo:
        return memo[id(value)]
    if isinstance(value, Tensor | np.ndarray):
        return value if value.nbytes > LARGE else deep(value, memo)
    if isinstance(value, list | tuple | dict | set):
        return _container(value, memo)
    return _object(value, memo) if isinstance(value, Dataset) else deep(value, memo)


def _object(value: Any, memo: dict[int, Any]) -> Any:
    held = attributes(value)
    if not held:
        return light(value, memo) if isinstance(value, list | tuple | dict | set) else value
    memo[id(value)] = made = copy.copy(value)
    for name, part in held.items():
        object.__setattr__(made, name, light(part, memo))
    return made


def _shared(value: Any, met: dict[int, Any]) -> Iterator[Any]:
    """The tensors and arrays in a data set that `light` does not copy, as far as they can be written into."""
    if id(value) in met or len(met) > _MOST:
        return
    met[id(value)] = value
    if isinstance(value, Tensor | np.ndarray):
        if value.nbytes > LARGE and (isinstance(value, Tensor) or (value.flags.writeable and not isinstance(value, np.memmap))):
            yield value
    elif isinstance(value, list | tuple | dict):
        for part in (value.values() if isinstance(value, dict) else value) if len(value) <= SOME else ():
            yield from _shared(part, met)
    elif isinstance(value, Dataset):
        for part in attributes(value).values():
            yield from _shared(part, met)


def _sum(value: Any) -> Any:
    """What moves when a tensor or an array is written into."""
    if isinstance(value, Tensor):
        return value._version
    words = value.view(f"u{value.itemsize}") if value.itemsize in (1, 2, 4, 8) and not value.dtype.hasobject else None
    return None if words is None else int(np.add.reduce(words, axis=None, dtype=np.uint64))


def _container(value: Any, memo: dict[int, Any]) -> Any:
    if len(value) > SOME:
        memo[id(value)] = made = copy.copy(value)
        return made
    if type(value) is tuple:
        return tuple(light(part, memo) for part in value)
    if type(value) is list:
        entries: list[Any] = []
        memo[id(value)] = entries
        entries.extend(light(part, memo) for part in value)
        return entries
    if type(value) is dict:
        named: dict[Any, Any] = {}
        memo[id(value)] = named
        named.update((key, light(part, memo)) for key, part in value.items())
        return named
    return deep(value, memo)
