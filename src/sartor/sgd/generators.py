"""The random numbers that records are made with: the common ones, and generators that data sets and collate functions have of their own.

A batch must be a function of records, code and the run's own stream: only then can it be repeated, by a run that resumes and by whoever
compares an example with itself. So all of them are seeded before each batch, wherever they are kept, and put back afterwards.

Guarantee: two calls under one seed, by objects in the same state, draw the same numbers.
Breaks if: code draws from the operating system, from a generator in a global variable of another module or in a library's own memory, or
    keeps generators where they are not looked for (sets, beyond the bounds below). What cannot be repeated is refused (`sartor.sgd.alone`).
"""

from __future__ import annotations

import functools
import itertools
import random
import types
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from sartor.sgd.packages import package_of
from sartor.sgd.trees import attributes

COMMON = (np.random.mtrand._rand, random._inst, torch.default_generator)
"""The generators that all code shares, which `seeded` seeds by their own functions."""

_MOST, _SOME = 2000, 100  # objects that are looked into, entries of a container
_KINDS = (np.random.Generator, np.random.BitGenerator, np.random.RandomState, torch.Generator, random.Random)
_LEAVES = (type(None), bool, int, float, complex, str, bytes, range, Tensor, np.ndarray, np.generic, type, types.ModuleType)


def repeatable(seed: int, make: Callable[[], Any], *owners: Any) -> Any:
    """What `make` returns under the random numbers of a seed, those of the owners' generators included.

    A generator that comes into being meanwhile (as those do that are made on first use) was not seeded: then it is made once more.
    """
    known = own(*owners)
    with seeded(seed, known):
        made = make()
    now = own(*owners)
    if len(now) == len(known):
        return made
    with seeded(seed, now):
        return make()


@contextmanager
def seeded(seed: int, generators: Sequence[Any] = ()) -> Iterator[None]:
    """The common random numbers of torch, NumPy and Python from a seed, and these generators; all go on afterwards as before."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    states = [_state(generator) for generator in generators]
    with torch.random.fork_rng(devices=[]):
        reseed(seed, generators)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)
            for generator, state in zip(generators, states, strict=True):
                _put_back(generator, state)


def reseed(seed: int, generators: Sequence[Any] = ()) -> None:
    """Begin the common random numbers and those of these generators anew, inside of `seeded`."""
    torch.manual_seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002
    random.seed(seed)
    for number, generator in enumerate(generators):
        _seed(generator, np.random.SeedSequence((seed, number)))


def own(*owners: Any) -> list[Any]:
    """The generators that objects and functions keep, in the order of their attributes, closures and the globals that their code names.

    >>> class Noisy:
    ...     def __init__(self):
    ...         self.noise = {"rng": np.random.default_rng(0)}
    >>> len(own(Noisy()))
    1
    """
    met: dict[int, Any] = {}
    found: list[Any] = []
    waiting = deque(owners)
    while waiting and len(met) < _MOST:
        value = waiting.popleft()
        if isinstance(value, _LEAVES) or id(value) in met:
            continue
        met[id(value)] = value
        if _is_own(value):
            found.append(value)
        else:
            waiting.extend(_within(value))
    return found


def _is_own(value: Any) -> bool:
    return isinstance(value, _KINDS) and not isinstance(value, random.SystemRandom) and not any(value is known for known in COMMON)


def _within(value: Any) -> Iterator[Any]:
    if isinstance(value, Mapping | list | tuple | deque):
        entries = value.values() if isinstance(value, Mapping) else value
        some = list(itertools.islice(entries, _SOME))
        yield from (list(entries) if any(map(_is_own, some)) else some)  # one for each record, say
    if isinstance(value, types.FunctionType):
        yield from _of_function(value)
    elif isinstance(value, types.MethodType):
        yield from (value.__self__, value.__func__)
    elif isinstance(value, functools.partial):
        yield from (value.func, value.args, value.keywords)
    elif not isinstance(value, types.BuiltinFunctionType):
        yield from attributes(value).values()
        yield from _methods(type(value))  # type: ignore[arg-type]


def _of_function(function: types.FunctionType) -> Iterator[Any]:
    for cell in function.__closure__ or ():
        try:
            yield cell.cell_contents
        except ValueError:  # not filled yet
            continue
    yield from (function.__defaults__, function.__kwdefaults__)
    if package_of(function) is None:
        yield from (function.__globals__[name] for name in _names(function.__code__) if name in function.__globals__)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[str, ...]:
    inner = (name for part in code.co_consts if isinstance(part, types.CodeType) for name in _names(part))
    return tuple(dict.fromkeys([*code.co_names, *inner]))


@functools.lru_cache(maxsize=4096)
def _methods(kind: type) -> tuple[Any, ...]:
    """The functions of a class of the user's: they may name a generator in a global variable."""
    parts = (part for base in kind.__mro__ if package_of(base) is None for part in vars(base).values())
    plain = (getattr(part, "__func__", None) or getattr(part, "fget", None) or part for part in parts)
    return tuple(part for part in plain if isinstance(part, types.FunctionType) or _is_own(part))


def _seed(generator: Any, sequence: np.random.SeedSequence) -> None:
    if isinstance(generator, np.random.RandomState):
        fresh = type(generator._bit_generator)(sequence).state
        generator.set_state({**fresh, "has_gauss": 0, "gauss": 0.0})
    elif isinstance(generator, np.random.Generator | np.random.BitGenerator):
        bits: Any = generator.bit_generator if isinstance(generator, np.random.Generator) else generator
        bits.state = type(bits)(sequence).state
    else:
        number = int(sequence.generate_state(1, np.uint64)[0]) >> 1
        generator.manual_seed(number) if isinstance(generator, torch.Generator) else generator.seed(number)


def _state(generator: Any) -> Any:
    if isinstance(generator, np.random.RandomState):
        return generator.get_state(legacy=False)
    if isinstance(generator, np.random.Generator):
        return generator.bit_generator.state
    if isinstance(generator, np.random.BitGenerator):
        return generator.state
    return generator.get_state() if isinstance(generator, torch.Generator) else generator.getstate()


def _put_back(generator: Any, state: Any) -> None:
    if isinstance(generator, np.random.Generator):
        generator.bit_generator.state = state
    elif isinstance(generator, np.random.BitGenerator):
        generator.state = state
    elif isinstance(generator, random.Random):
        generator.setstate(state)
    else:
        generator.set_state(state)
