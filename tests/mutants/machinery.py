"""What a mutant is, who catches it, and how it is planted.

A catcher looks at the library and says whether something is wrong with it. There are three kinds: an attack (its lower bound is above what
a group was promised), a replay (it names a fault), and a test. What it needs from a sound library, plans for the most part, is made before
the mutant is planted. On the sound library no catcher may see anything.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import pytest

from sartor.accounting import spending

Kind = Literal["attack", "replay", "test"]
Plant = Callable[[pytest.MonkeyPatch], None]


@dataclass(frozen=True, eq=False)
class Catcher:
    """Who looks for a break: `sees`, given what was `prepared` by the sound library, says whether there is one."""

    name: str
    kind: Kind
    sees: Callable[..., bool]
    prepared: Callable[[], Any] | None = None

    def prepare(self) -> Callable[[], bool]:
        """Make what it needs by the library as it is now; and how to look afterwards."""
        given = () if self.prepared is None else (self.prepared(),)
        return lambda: bool(self.sees(*given))


@dataclass(frozen=True, eq=False)
class Mutant:
    """A deliberate break: what it is in one sentence, the patch that plants it, and all who must see it.

    `quick` ones are always tested, the others with --long.
    """

    name: str
    sentence: str
    plant: Plant
    caught_by: tuple[Catcher, ...]
    quick: bool

    @property
    def kind(self) -> str:
        """By whom it is caught."""
        return " and ".join(dict.fromkeys(catcher.kind for catcher in self.caught_by))

    @property
    def is_caught(self) -> bool:
        """Plant it, and have all of its catchers look."""
        looks = [catcher.prepare() for catcher in self.caught_by]
        with planted(self.name):
            return all(look() for look in looks)


MUTANTS: dict[str, Mutant] = {}
"""All of them, by their names; complete once the package was imported."""


def catcher(name: str, kind: Kind, prepared: Callable[[], Any] | None = None) -> Callable[[Callable[..., bool]], Catcher]:
    """Makes a catcher of a function that says whether it sees a break."""
    return lambda sees: Catcher(name, kind, sees, prepared)


def mutant(*caught_by: Catcher, quick: bool = False) -> Callable[[Plant], Plant]:
    """Registers a function that plants a break: its name is the mutant's, and its docstring says in a sentence what is broken."""

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        if name in MUTANTS or not caught_by:
            raise ValueError(f"{name} is there already, or nobody catches it.")
        MUTANTS[name] = Mutant(name, " ".join((plant.__doc__ or "").split()), plant, caught_by, quick)
        return plant

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """The library with a break in it, in this process; sound again at the end."""
    forget()
    try:
        with pytest.MonkeyPatch.context() as patch:
            MUTANTS[name].plant(patch)
            yield
    finally:
        forget()


def forget() -> None:
    """Empty all that the library remembers, so that nothing sound hides a break, and no break outlives its planting."""
    spending._memory.clear()
    for name, module in list(sys.modules.items()):
        if name.startswith("sartor."):
            for value in list(vars(module).values()):
                if callable(getattr(value, "cache_clear", None)):
                    value.cache_clear()


def catchers(mutants: Iterator[Mutant] | list[Mutant]) -> list[Catcher]:
    """Those who catch these mutants, each once."""
    return list(dict.fromkeys(one for mutant in mutants for one in mutant.caught_by))
