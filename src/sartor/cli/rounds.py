"""What the command line says of rounds: thresholds as texts, and the published form, which nothing but a comparison runs."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from sartor.cli.output import print_json, show, working
from sartor.errors import SartorError

if TYPE_CHECKING:
    from torch import nn

    from sartor import usual
    from sartor.budgets import Budgets
    from sartor.data import Data

FORMS = ("sound", "published")
OF_PUBLISHED = ("rounds", "threshold")
"""The options of rounds that the published form has too."""
_NOT_OF_PUBLISHED = (
    *("mix", "max_excess", "order", "spread"),
    *("individual", "refresh", "full_steps", "ladder", "reserve"),
    *("sensitive", "strictest", "records_per_holder", "combine", "max_physical_batch"),
)


def threshold_of(scheme: str, text: str) -> Any:
    """A threshold as its scheme takes it: a number for `exclude`; for rounds a rule, or numbers separated by commas."""
    alone = scheme == "exclude"
    if not alone and (text == "adaptive" or text.startswith("fixed:")):
        return text
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        values = []
    if alone and len(values) != 1:
        raise SartorError(f'--threshold of scheme "exclude" is one number, the smallest epsilon that takes part, not "{text}".')
    if not values:
        raise SartorError(f'--threshold is a number, numbers separated by commas, fixed:W or adaptive, not "{text}".')
    return values[0] if alone else values


def check_form(form: str | None, unsound: bool, out: object) -> None:
    """Refuse the published form where it was not said that it is unsound, or where it would be kept as a run."""
    if form not in (None, *FORMS):
        raise SartorError(f'--form is sound or published, not "{form}".')
    if unsound and form != "published":
        raise SartorError("--unsound goes with --form published.")
    if form == "published" and not unsound:
        raise SartorError("the guarantee of the published form does not hold: say --unsound to compare with it, or leave --form out.")
    if form == "published" and out is not None:
        raise SartorError("the published form is for comparison and is not kept as a run: leave --out out.")


def check_published(said: Collection[str]) -> None:
    """Refuse options that the published form does not know: none is left out in silence."""
    stray = next((name for name in _NOT_OF_PUBLISHED if name in said), None)
    if stray is not None:
        takes = " and ".join(f"--{name}" for name in OF_PUBLISHED)
        raise SartorError(f"the published form has no option --{stray.replace('_', '-')}; of those of rounds it takes {takes}.")


def train_published(
    data: Data, people: Budgets, recipe: usual.Recipe, model: nn.Module, options: dict[str, Any], seed: int | None, *, json: bool
) -> None:
    """Train by the published form, and say what it promises and what it really spends."""
    from sartor.baselines import fit_published
    from sartor.plans.published import published

    if data.ownership is not None:
        raise SartorError("the published form knows no holders with several records.")
    with working("planning"):
        form = published(
            people,
            recipe.scheme,
            **recipe.of_plan,
            seed=seed,
            **options,
        )
    if not json:
        show(form)
    test = data.test if len(data.test) else None
    how = {"lr": recipe.lr, "optimizer": recipe.optimizer, "momentum": recipe.momentum}
    result = fit_published(model, data.train, people, form, unsound=True, public=test, seed=seed, **how)
    if json:
        print_json({"accuracy": result.accuracy, "seconds": result.seconds, "steps": result.steps, **form.to_json()})
    elif result.accuracy is not None:
        show(f"Accuracy on the public test rows: {result.accuracy:.1%}. The guarantee of this form does not hold; nothing was written.")
