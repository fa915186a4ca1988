"""Options of filters, which `sartor plan` and `sartor train` share: how they are asked for, what is usual, and what makes no sense."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from sartor.accounting import rdp
from sartor.errors import SartorError
from sartor.numbers import numbers
from sartor.plans.filters import KINDS, LADDER

_FEWEST = 10  # stretches, unless others are asked for

FullSteps = Annotated[
    int | None, typer.Option(help="Filters: how many of the steps a holder at full norm pays for; otherwise three in four.")
]
Ladder = Annotated[
    str | None,
    typer.Option(metavar="COSTS", help=f"Ladder: whole costs of its rungs, ascending to that of full norm; {','.join(map(str, LADDER))}."),
]


@dataclass(frozen=True, kw_only=True)
class FilterOptions:
    """What was said of a filter; None is what was not. `option` is the one that names its `kind`, as sentences say it.

    >>> asked = FilterOptions(option="--filter", kind="ladder", refresh=10, ladder="1,2,4")
    >>> asked.of_plan(steps=100, batch=50, holders=1_000)
    {'filter': 'ladder', 'refresh': 10, 'full_steps': 70, 'ladder': (1, 2, 4)}
    """

    option: str
    kind: str | None = None
    refresh: int | None = None
    full_steps: int | None = None
    ladder: str | None = None
    others: tuple[str, ...] = ()
    """What else the option may be, which is no filter but looks at norms too."""

    def check(self, accountant: str | None = None) -> None:
        """Refuse what makes no sense together, where an accountant was asked for, or none."""
        option, kinds = self.option, (*self.others, *KINDS)
        if self.kind not in (None, *kinds):
            raise SartorError(f'{option} is one of {", ".join(kinds)}, not "{self.kind}".')
        if self.refresh is not None and self.kind is None:
            raise SartorError(f"--refresh goes with {option}.")
        if self.full_steps is not None and self.kind not in KINDS:
            raise SartorError(f"--full-steps goes with a filter: {option} {' or '.join(KINDS)}.")
        if self.ladder is not None and self.kind != "ladder":
            raise SartorError(f"--ladder goes with {option} ladder.")
        for name, value in {"--refresh": self.refresh, "--full-steps": self.full_steps}.items():
            if value is not None and value < 1:
                raise SartorError(f"{name} must be 1 or more, not {value}.")
        if self.kind == "renyi" and accountant not in (None, rdp.NAME):
            raise SartorError(f"{option} renyi is judged by the accountant {rdp.NAME}: leave --accountant out, or ask for {option} ladder.")
        self._costs()

    @property
    def accountant(self) -> dict[str, str]:
        """The accountant that a filter needs, by its name as an argument; nothing, where any will do."""
        return {"accountant": rdp.NAME} if self.kind == "renyi" else {}

    def every(self, *, steps: int, batch: float, holders: int) -> int:
        """Steps between looks at everybody's norms: as was said, or in which as many people are drawn as there are.

        A filter looks ten times at least: with fewer stretches it costs more than it has to.
        """
        if self.refresh is not None:
            if self.refresh > steps and self.kind in KINDS:
                raise SartorError(f"--refresh must be at most the {steps} steps, not {self.refresh}.")
            return min(steps, self.refresh)
        most = max(1, steps // _FEWEST if self.kind in KINDS else steps)
        return min(most, max(1, math.ceil(holders / batch))) if holders < most * batch else most

    def of_plan(self, *, steps: int, batch: float, holders: int) -> dict[str, Any]:
        """What a plan is told of a filter; nothing, where there is none."""
        if self.kind not in KINDS:
            return {}
        every = self.every(steps=steps, batch=batch, holders=holders)
        three_in_four = max(1, steps * 3 // 4)
        usually = three_in_four // every * every if 0 < every < three_in_four else three_in_four
        full = usually if self.full_steps is None else self.full_steps
        return {"filter": self.kind, "refresh": every, "full_steps": full, **({} if self.ladder is None else {"ladder": self._costs()})}

    def _costs(self) -> tuple[int, ...]:
        found = [] if self.ladder is None else numbers(self.ladder, "--ladder")
        if not all(math.isfinite(cost) and cost == int(cost) for cost in found):
            raise SartorError(f'--ladder takes whole numbers separated by commas, not "{self.ladder}".')
        return tuple(int(cost) for cost in found)
