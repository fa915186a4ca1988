"""Neighbouring relations: which two data sets a guarantee cannot tell apart. Every plan, exposure and account carries its own.

Example:
    >>> import sartor
    >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
    >>> sartor.plan(budgets, steps=5, batch=20).relation.name
    'zero-out'
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dp_accounting import NeighboringRelation


@dataclass(frozen=True)
class Relation:
    """What may happen to one holder's data between two neighbours. Plan, budgets and who takes part are the same in both."""

    name: str
    meaning: str

    def to_dp_accounting(self) -> NeighboringRelation:
        """This relation in the language of dp_accounting."""
        from dp_accounting import NeighboringRelation

        return {"zero-out": NeighboringRelation.REPLACE_SPECIAL, "replace": NeighboringRelation.REPLACE_ONE}[self.name]

    def __str__(self) -> str:
        return f"{self.name}: {self.meaning}"


ZERO_OUT = Relation("zero-out", "everything that one holder contributes becomes zero, or the other way round")
REPLACE = Relation("replace", "everything of one holder is removed or replaced by anything else")


def relation_of(name: str) -> Relation:
    """The relation of this name."""
    for relation in (ZERO_OUT, REPLACE):
        if relation.name == name:
            return relation
    raise ValueError(f'there is no neighbouring relation "{name}"; there are "{ZERO_OUT.name}" and "{REPLACE.name}".')
