"""What `sartor pate` was asked for: one value from the command line through every function, and its checks."""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sartor import usual
from sartor.allowed import Allowed
from sartor.budgets import Budgets
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.pate import Accountant, GNMax, PatePlan
    from sartor.pate.usual import Usual

_ACCOUNTING = ("exact", "fine", "paper")
_KINDS = ("confident", "gnmax")


@dataclass(frozen=True, kw_only=True)
class PateSettings:
    """The options of `sartor pate`; what was not said is None, and usual for the data set."""

    dataset: Annotated[str, typer.Option(help="digits, mnist or adult.")] = "digits"
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data set's files are; otherwise $SARTOR_DATA or data.")] = None
    variant: Annotated[str, typer.Option(help="standard, upsample, weight or vanish.")] = "weight"
    # a small share's budget is not for a log
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas.")] = field(default=None, repr=False)
    share: Annotated[str | None, typer.Option(help="Share of the holders in each group, separated by commas.")] = field(
        default=None, repr=False
    )
    delta: Annotated[str | None, typer.Option(help="Delta, one for all or one per group.")] = field(default=None, repr=False)
    budgets: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of holder,epsilon[,delta] or holder,level instead.")] = None
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="TOML that maps levels to numbers.")] = None
    reserve: Annotated[float, typer.Option(help="Share of every budget kept for later releases.")] = 0.0
    teachers: Annotated[int | None, typer.Option(help="Number of teachers (250; 100 for digits).")] = None
    model: Annotated[
        str | None, typer.Option(help="Kind of teachers: network (mnist), forest (adult) or neighbour (digits), if not the usual one.")
    ] = None
    aggregator: Annotated[str | None, typer.Option(help="confident or gnmax (digits).")] = None
    noise: Annotated[
        float | None,
        typer.Option(
            help="Deviation of the noise on every count, in votes; otherwise the paper's, or what a plausible consensus survives."
        ),
    ] = None
    threshold: Annotated[float | None, typer.Option(help="confident: votes that must agree.")] = None
    threshold_noise: Annotated[float | None, typer.Option(help="confident: deviation of the noise of that test.")] = None
    tune: Annotated[bool, typer.Option("--tune", help="Let all groups run out together by the true cost of votes.")] = False
    bound: Annotated[str, typer.Option(help="independent, or dependent (sensitive: for research).")] = "independent"
    accounting: Annotated[str | None, typer.Option(help="exact, fine or paper (orders 2 to 50).")] = None
    labels: Annotated[int | None, typer.Option(min=1, help="How many labels are enough.")] = None
    go_on: Annotated[bool, typer.Option("--go-on", help="Go on without the groups that are out (weight, vanish).")] = False
    epochs: Annotated[int | None, typer.Option(min=1, help="Epochs of each teacher, for networks.")] = None
    workers: Annotated[int | None, typer.Option(min=1, help="Processes that train teachers; otherwise one for each core.")] = None
    keep: Annotated[
        str | None,
        typer.Option(
            metavar="DIR",
            help="Keep teachers, votes, labels and account here (sensitive): the same command goes on after a stop, and costs once.",
        ),
    ] = None
    further: Annotated[
        bool, typer.Option("--further", help="With --keep: ask and pay for further labels, where the same request was answered before.")
    ] = False
    out: Annotated[str | None, typer.Option(metavar="FILE", help="Write the labels here, as a CSV of query,label.")] = None
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None

    def check(self) -> None:
        """Refuse settings that nothing can be made of, before anything is read."""
        self.allowed()
        if self.kind not in _KINDS:
            raise SartorError(f'--aggregator is confident or gnmax, not "{self.kind}"; the interactive one needs a student, in Python.')
        if self.kind == "gnmax" and (self.threshold is not None or self.threshold_noise is not None):
            raise SartorError("--threshold and --threshold-noise go with the confident aggregator.")
        if self.further and self.keep is None:
            raise SartorError("--further asks for labels beyond those in a folder: give the folder (--keep DIR).")
        if self.accounting not in (None, *_ACCOUNTING):
            raise SartorError(f'--accounting is exact, fine or paper, not "{self.accounting}".')

    @cached_property
    def usual(self) -> Usual:
        """What is usual for the data set."""
        from sartor.pate import usual as of_pate

        return of_pate.usual(self.dataset)

    @property
    def kind(self) -> str:
        """The aggregator by name."""
        return self.usual.kind if self.aggregator is None else self.aggregator

    @property
    def assumed(self) -> str | None:
        """The budgets that are taken because nothing was said, in words."""
        if self.allowed().is_said:
            return None
        taken = self.allowed().or_else(usual.ALLOWED)
        return f"epsilon {taken.epsilon} for {taken.share} of the people, at delta {taken.delta}"

    def allowed(self) -> Allowed:
        """What people allow, said once."""
        options = {"file": self.budgets, "policy": self.policy}
        return Allowed(self.epsilon, self.share, self.delta, **options, reserve=self.reserve, seed=self.seed)

    def people(self, holders: int) -> Budgets:
        """Everybody's budget."""
        return self.allowed().or_else(usual.ALLOWED).budgets(holders)

    def plan(self, people: Budgets, classes: int, queries: int) -> PatePlan:
        """The plan; where noise is chosen, with no more of it than it takes to pay for all queries."""
        from sartor import pate
        from sartor.pate.forecast import quietest

        count = self.usual.teachers if self.teachers is None else self.teachers
        made = pate.plan(people, self.variant, teachers=count, aggregator=self._aggregator(count, classes), tune=self.tune)
        return quietest(made, queries, accountant=self.accountant) if self.noise is None and self.usual.aggregator is None else made

    def _aggregator(self, teachers: int, classes: int) -> GNMax:
        """The data set's usual parameters in the size of this ensemble, or what `aggregator_for` chooses, and what was said instead."""
        from sartor.pate import GNMax, aggregator_for

        if self.usual.aggregator is None:
            usual = aggregator_for(teachers, classes, self.kind)
        else:
            usual = self.usual.aggregator.scaled(teachers / self.usual.teachers)
            usual = GNMax(usual.noise) if self.kind == "gnmax" else usual
        said = {name: getattr(self, name) for name in ("noise", "threshold", "threshold_noise")}
        known = {field.name for field in fields(usual)}
        return replace(usual, **{name: value for name, value in said.items() if value is not None and name in known})

    @property
    def accountant(self) -> Accountant | None:
        """How costs add up; None for what is usual under the bound."""
        from sartor.pate import Accountant

        known = {"exact": Accountant, "fine": Accountant.fine, "paper": Accountant.paper}
        return None if self.accounting is None else known[self.accounting]()

    @property
    def voting(self) -> dict[str, Any]:
        """The options of an aggregation."""
        return {"bound": self.bound, "accountant": self.accountant, "labels": self.labels, "go_on": self.go_on}
