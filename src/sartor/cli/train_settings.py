"""What `sartor train` was asked for: one value from the command line and files of settings to the run's folder, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sartor import usual
from sartor.allowed import Allowed
from sartor.cli.filters import FilterOptions, FullSteps, Ladder
from sartor.cli.output import from_document, listed, over, said
from sartor.cli.rounds import check_published, threshold_of
from sartor.documents import read_toml
from sartor.errors import SartorError
from sartor.plans.plan import COMBINED

_PATHS = ("data", "table", "test", "schema", "arrays", "budgets", "policy")
_LISTS = ("epsilon", "share", "delta", "ladder", "threshold")
_OF_SOURCE = {"dataset": ("data",), "table": ("target", "test", "sensitive", "schema", "id_column", "budget_column"), "arrays": ()}
_OF_SCHEME = ("mix", "max_excess", "threshold", "order", "rounds", "spread")
_OF_PLAN = ("records_per_holder", "combine")
_OF_RECORDS = ("strictest", *_OF_PLAN)
READINGS = ("estimate", "strict")
"""Individual accounts that change nobody's budget."""


@dataclass(frozen=True, kw_only=True)
class TrainSettings:
    """The options of `sartor train`; what was not said is None, and usual or unneeded."""

    dataset: Annotated[str | None, typer.Option(help="digits, mnist, fashion-mnist, cifar10, svhn, adult, names, imdb or snli.")] = None
    data: Annotated[str | None, typer.Option(metavar="DIR", help="Where the data set's files are; otherwise $SARTOR_DATA or data.")] = None
    table: Annotated[str | None, typer.Option(metavar="FILE", help="A CSV or Parquet table of your own instead.")] = None
    target: Annotated[str | None, typer.Option(help="Table: the column to predict.")] = None
    test: Annotated[str | None, typer.Option(metavar="FILE", help="Table: public test rows, of others who agreed to that.")] = None
    sensitive: Annotated[
        bool,
        typer.Option("--sensitive", help="Table: hold a fifth out, and write accuracy on it to held-out.json in --out, for you alone."),
    ] = False
    schema: Annotated[str | None, typer.Option(metavar="FILE", help="Table: TOML of public bounds, categories and classes.")] = None
    id_column: Annotated[
        str | None, typer.Option(help="Table: the column that names the holder, who may have several rows; otherwise each row is a holder.")
    ] = None
    arrays: Annotated[str | None, typer.Option(metavar="DIR", help="Arrays x_train, y_train, x_test and y_test instead.")] = None
    records_per_holder: Annotated[
        int | None, typer.Option(help="Most rows of a drawn holder in a step, drawn at random; otherwise all.")
    ] = None
    combine: Annotated[str | None, typer.Option(help="Whether the mean (default) or the sum of a holder's gradients is clipped.")] = None
    model: Annotated[str | None, typer.Option(help="Model by name; otherwise the usual one for the data.")] = None
    scheme: Annotated[
        str | None,
        typer.Option(help="scale (default), sample, hybrid, uniform, exclude, sequential, rounds, jorgensen, adapdp; equal with a filter."),
    ] = None
    # a small share's budget is not for a log
    epsilon: Annotated[str | None, typer.Option(help="Epsilon of each group, separated by commas; inf marks public records.")] = field(
        default=None, repr=False
    )
    share: Annotated[str | None, typer.Option(help="Share of the holders in each group, separated by commas.")] = field(
        default=None, repr=False
    )
    delta: Annotated[str | None, typer.Option(help="Delta, one for all or one per group.")] = field(default=None, repr=False)
    budgets: Annotated[str | None, typer.Option(metavar="FILE", help="CSV of holder,epsilon[,delta] or holder,level instead.")] = None
    budget_column: Annotated[str | None, typer.Option(help="Table: the column of epsilons or levels.")] = None
    strictest: Annotated[
        bool, typer.Option("--strictest", help="Where a holder's rows allow different things, the strictest holds; otherwise refused.")
    ] = False
    policy: Annotated[str | None, typer.Option(metavar="FILE", help="TOML that maps levels to numbers.")] = None
    accountant: Annotated[str | None, typer.Option(help="pld (tight, default) or rdp.")] = None
    steps: Annotated[int | None, typer.Option(help="Number of steps.")] = None
    batch: Annotated[float | None, typer.Option(help="Expected size of a batch, in holders.")] = None
    clip: Annotated[float | None, typer.Option(help="Clip norm; its mean, where clips are personal.")] = None
    lr: Annotated[float | None, typer.Option(help="Learning rate.")] = None
    optimizer: Annotated[str | None, typer.Option(help="sgd or adam.")] = None
    momentum: Annotated[float | None, typer.Option(help="Momentum of sgd.")] = None
    mix: Annotated[float | None, typer.Option(help="hybrid: share of sampling, in [0, 1].")] = None
    max_excess: Annotated[float | None, typer.Option(help="hybrid: as much sampling as this excess allows.")] = None
    threshold: Annotated[
        str | None, typer.Option(help="exclude: the smallest epsilon that takes part; rounds: fixed:W, adaptive, or numbers with commas.")
    ] = None
    rounds: Annotated[int | None, typer.Option(help="rounds, adapdp: how many there are.")] = None
    spread: Annotated[str | None, typer.Option(help="rounds, adapdp: onion, even or search.")] = None
    form: Annotated[str | None, typer.Option(help="rounds, adapdp: sound (default), or published, for comparison.")] = None
    unsound: Annotated[bool, typer.Option("--unsound", help="With --form published: its guarantee does not hold, and you know.")] = False
    order: Annotated[str | None, typer.Option(help="sequential: strictest-first or open-first.")] = None
    individual: Annotated[
        str | None,
        typer.Option(help="Individual accounts: estimate or strict (readings), ladder or renyi (filters that let cheap people go on)."),
    ] = None
    refresh: Annotated[
        int | None, typer.Option(help="Individual accounts: steps between looks at everybody's norms; usually an epoch.")
    ] = None
    full_steps: FullSteps = None
    ladder: Ladder = None
    reserve: Annotated[float | None, typer.Option(help="Share of every budget kept for later releases.")] = None
    max_physical_batch: Annotated[int | None, typer.Option(help="Most examples in memory at once.")] = None
    seed: Annotated[int | None, typer.Option(help="For tests: a seeded run can be repeated, and is not private.")] = None

    @classmethod
    def from_document(cls, document: Mapping[str, Any], name: str) -> TrainSettings:
        """The settings in a document called `name`, of the types that the options have."""
        return from_document(cls, listed(document, _LISTS), name)

    @classmethod
    def read(cls, path: str) -> TrainSettings:
        """The settings in a TOML file."""
        return cls.from_document(read_toml(path, "the settings"), Path(path).name)

    def over(self, below: TrainSettings) -> TrainSettings:
        """These settings, with those below where nothing was said."""
        return over(self, below)

    def said(self) -> list[str]:
        """The options that were given, as the command line has them."""
        return [_option(name) for name in said(self)]

    def check(self) -> None:
        """Refuse settings that contradict each other, before anything is read."""
        sources = [_option(name) for name in _OF_SOURCE if getattr(self, name) is not None]
        if len(sources) != 1:
            found = f", not {' and '.join(sources)}" if sources else ""
            raise SartorError(f"give the data as one of --dataset, --table or --arrays{found}.")
        strays = [(name, source) for source, names in _OF_SOURCE.items() for name in names if name in said(self)]
        for name, source in strays:
            if getattr(self, source) is None:
                raise SartorError(f"{_option(name)} goes with --{source}.")
        if self.dataset is not None and self.of_records:
            raise SartorError(f"{_option(next(iter(self.of_records)))} goes with --table or --arrays.")
        if self.records_per_holder is not None and self.records_per_holder < 1:
            raise SartorError(f"--records-per-holder must be 1 or more, not {self.records_per_holder}.")
        if self.combine not in (None, *COMBINED):
            raise SartorError(f'--combine is mean or sum, not "{self.combine}".')
        if self.form == "published":
            check_published(said(self))
        self.filter.check(self.accountant)
        self.allowed()
        if self.max_physical_batch is not None and self.max_physical_batch < 1:
            raise SartorError(f"the largest physical batch (--max-physical-batch) must be 1 or more, not {self.max_physical_batch}.")

    def allowed(self) -> Allowed:
        """What people allow, said once."""
        return Allowed(
            self.epsilon,
            self.share,
            self.delta,
            file=self.budgets,
            column=self.budget_column,
            policy=self.policy,
            reserve=self.reserve or 0.0,
            seed=self.seed,
        )

    @property
    def of_scheme(self) -> dict[str, Any]:
        """The options that are the scheme's own."""
        found = {name: value for name, value in said(self).items() if name in _OF_SCHEME}
        if self.threshold is not None:
            found["threshold"] = threshold_of(self.scheme or "scale", self.threshold)
        return found

    @property
    def of_records(self) -> dict[str, Any]:
        """What was said of holders with several records."""
        return {name: value for name, value in said(self).items() if name in _OF_RECORDS}

    @property
    def of_plan(self) -> dict[str, Any]:
        """What a plan is told of holders with several records."""
        return {name: value for name, value in self.of_records.items() if name in _OF_PLAN}

    @property
    def filter(self) -> FilterOptions:
        """What was said of individual accounts."""
        return FilterOptions(
            option="--individual",
            kind=self.individual,
            refresh=self.refresh,
            full_steps=self.full_steps,
            ladder=self.ladder,
            others=READINGS,
        )

    def of_filter(self, recipe: usual.Recipe, holders: int) -> dict[str, Any]:
        """What a plan is told of a filter; nothing, where there is none."""
        return self.filter.of_plan(steps=recipe.steps, batch=recipe.batch, holders=holders)

    def every(self, recipe: usual.Recipe, holders: int) -> int:
        """Steps between looks at everybody's norms."""
        return self.filter.every(steps=recipe.steps, batch=recipe.batch, holders=holders)

    def check_records(self, several: bool) -> None:
        """Refuse what is for holders with several records, where there are none."""
        if self.of_records and not several:
            raise SartorError(
                f"{_option(next(iter(self.of_records)))} goes with holders who have several rows, and here each has one: leave it out, or "
                "say whose the rows are (--id-column for a table, holders.npy for arrays)."
            )

    def recipe(self, holders: int) -> usual.Recipe:
        """How the model is trained on so many holders: as was said, and otherwise as is usual for the data."""
        known = usual.recipe_for(holders) if self.dataset is None else usual.recipe(self.dataset)
        names = {field.name for field in fields(known)}
        return known.but({**self.filter.accountant, **{name: value for name, value in said(self).items() if name in names}})

    def anchored(self) -> TrainSettings:
        """The same with files and folders that are found from any other folder."""
        return replace(self, **{name: os.path.abspath(path) for name, path in said(self).items() if name in _PATHS})

    def to_document(self, recipe: usual.Recipe) -> dict[str, Any]:
        """What a run's folder keeps of them: the recipe in full, and what else was said."""
        return {**asdict(recipe), **said(self)}


def _option(name: str) -> str:
    return "--" + name.replace("_", "-")
