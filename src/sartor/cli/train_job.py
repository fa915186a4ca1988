"""What training takes, read and planned: the settings, the data, the budgets, the plan and a new model. `train` and `audit` share it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import zip_longest
from operator import ne
from typing import TYPE_CHECKING, Any, NamedTuple

import sartor
from sartor import usual
from sartor.budgets import Budgets
from sartor.cli.output import initial_weights, say, working
from sartor.cli.train_settings import READINGS, TrainSettings
from sartor.confidential import FEWEST, are_few
from sartor.errors import SartorError

if TYPE_CHECKING:
    from sartor.data import Data

_HELD_OUT = 0.2  # of the holders


def read_data(asked: TrainSettings, *, resumed: bool, attributes: Sequence[str] = ()) -> Data:
    """The data of a run; where one is continued, or was, its budgets are those that it began with. `attributes` are columns of a table."""
    from sartor.data import load, read_arrays, read_schema, read_table

    if asked.dataset is not None:
        return load(asked.dataset, asked.data)
    allowed = asked.allowed()
    if asked.arrays is not None:
        data = read_arrays(asked.arrays, delta=allowed.delta_for_all(), strictest=asked.strictest)
        if asked.strictest and data.budgets is None:
            raise SartorError("--strictest chooses among what a holder's rows allow, and these arrays have no epsilon for each row.")
        return data
    assert asked.table is not None
    known: dict[str, Any] = {} if asked.schema is None else dict(read_schema(asked.schema))
    own = {"target": asked.target, "test": asked.test, "id_column": asked.id_column, "budget_column": asked.budget_column}
    known.update({name: value for name, value in own.items() if value is not None})
    if asked.sensitive:
        known.setdefault("test_share", _HELD_OUT)
    if "target" not in known:
        raise SartorError("--table needs --target, the column to predict.")
    if asked.strictest:
        if "budget_column" not in known:
            raise SartorError("--strictest chooses among what a holder's rows allow: name the column that says it with --budget-column.")
        known["strictest"] = True
    if "budget_column" in known:
        if allowed.policy is not None:
            known["policy"] = allowed.levels()
        elif allowed.delta is not None:
            known["delta"] = allowed.delta_for_all()
    if allowed.file is not None and not resumed:
        known["budgets"] = allowed.budgets()
    data = read_table(asked.table, **known, attributes=attributes)
    if asked.sensitive and data.held_out is None:
        raise SartorError("--sensitive tells of rows that are held out, and the schema holds none out: take its test_share away.")
    return data


if TYPE_CHECKING:
    from torch import nn

    from sartor.data import Data
    from sartor.report.folder import RunFolder
    from sartor.sgd import Result, Tracking


class Job(NamedTuple):
    """All that training needs: what was asked for, how it is done, and what with."""

    asked: TrainSettings
    recipe: usual.Recipe
    data: Data
    budgets: Budgets
    plan: sartor.Plan
    model: nn.Module

    @property
    def tracking(self) -> Tracking | None:
        """The readings that were asked for; filters are the plan's."""
        from sartor.sgd import Tracking

        kind = self.asked.individual
        return Tracking(kind, self.asked.every(self.recipe, self.data.people)) if kind in READINGS else None

    def seconds(self, result: Result) -> float | None:
        """How long a run took; nothing, where that would tell who rests."""
        return None if self.plan.filter is not None else result.seconds

    def individual(self) -> dict[str, Any]:
        """What was asked of individual accounts, as JSON; nothing, where they were not."""
        if self.plan.filter is not None:
            return {"individual": self.plan.filter.to_json()}
        tracking = self.tracking
        if tracking is None:
            return {}
        return {"individual": {"kind": tracking.kind, "refresh": tracking.refresh, "full_steps": self.plan.steps}}


def material(asked: TrainSettings) -> tuple[Data, Budgets, usual.Recipe, nn.Module]:
    """The data, the budgets, how it is trained, and a new model."""
    data, recipe, model = _read(asked, resumed=False)
    return data, _budgets(asked, recipe, data), recipe, model


def _read(asked: TrainSettings, *, resumed: bool) -> tuple[Data, usual.Recipe, nn.Module]:
    from sartor.models import registry

    asked.check()
    with working("reading the data"):
        data = read_data(asked, resumed=resumed)
    recipe = asked.recipe(data.people)
    with initial_weights(asked.seed):
        return data, recipe, registry.build(recipe.model, shape=data.shape, classes=data.classes, vocabulary=data.vocabulary)


def prepared(asked: TrainSettings, resumed: RunFolder | None, *, audited: bool = False) -> Job:
    """Read the data, the budgets and the model, and make the plan; of one that goes on or is `audited`, budgets and plan as they were."""
    data, recipe, model = _read(asked, resumed=resumed is not None)
    asked.check_records(several=data.ownership is not None)
    if resumed is not None:
        job = Job(asked, recipe, data, resumed.budgets(), resumed.plan(), model)
        _refuse_other_people(job)
        if changed := _other_consent(job):
            what = f"what people allow has changed since this run began, for {_some(changed, len(job.budgets))}"
            if not audited:
                raise SartorError(
                    f"{what}: a run continues with the budgets that it began with; bring them back as they were, or begin another run in "
                    "another folder, which spends budgets anew."
                )
            say(f"note: {what}; the audit is of what it was promised to be then.")
        return job
    people = _budgets(asked, recipe, data)
    with working("planning"):
        plan = sartor.plan(
            people,
            recipe.scheme,
            **recipe.of_plan,
            ownership=data.ownership,
            **asked.of_plan,
            **asked.of_scheme,
            **asked.of_filter(recipe, data.people),
        )
    return Job(asked.anchored(), recipe, data, people, plan, model)


def _budgets(asked: TrainSettings, recipe: usual.Recipe, data: Data) -> Budgets:
    """What the holders of the training rows allow, each once; in the order of the rows, where each holder has one."""
    from sartor.data.people import People, refuse_budget_features

    allowed = asked.allowed()
    if allowed.epsilon is None and data.budgets is not None and (asked.table is not None or allowed.file is None):
        return data.budgets.with_reserve(recipe.reserve)
    if not allowed.is_said and asked.dataset is None:
        raise SartorError("the budgets are missing: give --budget-column, --budgets with a file, or --epsilon with --share.")
    by_name = data.holders is not None and allowed.file is not None
    people = allowed.or_else(usual.ALLOWED).budgets(data.holders if by_name else data.people)
    if asked.arrays is not None and allowed.file is not None:
        rows = people if data.ownership is None else People(None, data.ownership).by_row(people)
        refuse_budget_features(data.train.tensors[0].numpy(), rows)
    return people


def _refuse_other_people(job: Job) -> None:
    """Refuse to continue on rows that are other people's than when the run began, as far as that is seen here; `fit` compares each row."""
    if not job.plan.by_holder and job.data.ownership is None:
        return
    then, now = job.budgets.names, job.data.holders
    other_names = then is not None and now is not None and then != now
    if len(job.budgets) != job.data.people or job.plan.records != len(job.data.train) or other_names:
        raise SartorError(
            "the rows name other holders than when this run began: a run continues with the same people; bring the column that names them "
            "back as it was."
        )


def _other_consent(job: Job) -> int:
    """How many people say otherwise what they allow than when the run began: in the file, the column or the policy.

    Shares are nobody's word, and are not compared.
    """
    allowed = job.asked.allowed()
    if allowed.epsilon is not None:
        return 0
    now = job.data.budgets if allowed.file is None else allowed.budgets()
    return 0 if now is None else _changed(job.budgets, now, by_order=job.data.holders is None)


def _changed(then: Budgets, now: Budgets, *, by_order: bool) -> int:
    """How many holders no longer allow what they did; who is gone does not. Without names, holders are known by their order."""
    before, after = (list(zip(said.epsilon.tolist(), said.delta.tolist(), strict=True)) for said in (then, now))
    if then.names is None or now.names is None:
        return sum(map(ne, before, after)) if len(before) == len(after) else 0  # other rows are other data, which `fit` refuses
    found = dict(zip(now.names, after, strict=True))
    if by_order:  # names are the file's alone: rows take what stands at their place
        known = set(then.names)
        order = [name for name in now.names if name in known]
        return sum(name != other or found[name] != said for name, other, said in zip_longest(then.names, order, before))
    return sum(found.get(name) != said for name, said in zip(then.names, before, strict=True))


def _some(holders: int, everybody: int) -> str:
    """A number of holders, unless it or the number of the others is too small to be shown."""
    if are_few(holders):
        return f"fewer than {FEWEST} of {everybody} holders"
    if holders < everybody and are_few(everybody - holders):
        return f"all but fewer than {FEWEST} of {everybody} holders"
    return f"{holders} of {everybody} holders"
