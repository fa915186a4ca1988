"""Plans as JSON documents: what is stored, what is shown, and back.

A plan in which nothing differs from stage to stage but whose turn it is has one row for each group, with its rate, its clip and, where that
is not the whole run, the steps of its turn. Every other plan has its stages in a list beside the groups.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sartor import confidential
from sartor.documents import read_json
from sartor.errors import SartorError
from sartor.numbers import from_json_number, to_json_number
from sartor.plans.filters import Filter
from sartor.plans.stage import Stage
from sartor.relation import ZERO_OUT

if TYPE_CHECKING:
    from sartor.plans.plan import Plan

Array = NDArray[np.float64]

_BUDGET = ("epsilon", "delta", "holders")
_TREATMENT = ("rate", "clip")
_FOLLOWS = ("noise_multiplier", "expected_uses", "spent", "excess")
_OF_FILTER = ("units", "rests_at")


def record(plan: Plan) -> dict[str, Any]:
    """What is stored: every group, and nothing that follows from the rest."""
    names = (*_BUDGET, *_TREATMENT) if is_plain(plan) else _BUDGET
    return _document(plan, _every(plan, names), [_stage(stage, len(plan)) for stage in plan.stages], merged=False)


def shown(plan: Plan, *, sensitive: bool) -> dict[str, Any]:
    """What a plan means: all groups, or those of fewer than ten holders merged."""
    if sensitive:
        groups = _every(plan, (*_BUDGET, *_TREATMENT, *_FOLLOWS))
        return _document(plan, groups, [_stage(stage, len(plan)) for stage in plan.stages], merged=False)
    view = plan.view
    rows = view.rows()
    names = (*_BUDGET, *_TREATMENT, *_FOLLOWS, *(() if plan.filter is None else _OF_FILTER))
    groups = [{name: _shown(plan, name, row) for name in names} for row in rows]
    if plan.filter is not None:
        own = plan.filter.rows()
        for group, row in zip(groups, rows, strict=True):
            if not view.hides(row):
                group.update(own[row.start])
    if is_plain(plan):
        for group, row in zip(groups, rows, strict=True):
            if not view.hides(row):
                group.update(_turn(plan, row.start))
    return _document(plan, groups, [_shown_stage(plan, stage, rows) for stage in plan.stages], merged=view.merged)


def is_plain(plan: Plan) -> bool:
    """Whether each group is treated alike in all steps of its one turn, and all noise is the same."""
    parts = plan.parts
    one_turn = len(np.unique(parts.group)) == len(parts.group)
    return one_turn and bool(np.all(parts.inclusion == 1)) and len({stage.noise_multiplier for stage in plan.stages}) == 1


def _document(plan: Plan, groups: list[dict[str, Any]], stages: list[dict[str, Any]], *, merged: bool) -> dict[str, Any]:
    plain = is_plain(plan)
    return {
        "scheme": plan.scheme,
        "accountant": plan.accountant,
        "relation": plan.relation.name,
        "steps": plan.steps,
        "batch": _number(plan.batch),
        "clip": plan.clip,
        "holders": int(plan.holders.sum()),
        **_of_records(plan),
        **({"noise_multiplier": plan.noise_multiplier} if plain else {}),
        "reserve": plan.reserve,
        "options": {
            key: _number(value) if isinstance(value, float) else value for key, value in shown_options(plan, merged=merged).items()
        },
        "merged": merged,
        **({} if plan.filter is None else {"filter": plan.filter.to_json()}),
        "groups": groups,
        **({} if plain else {"stages": stages}),
    }


def shown_options(plan: Plan, *, merged: bool) -> dict[str, Any]:
    """The scheme's options; where small groups are merged, without what was made from budgets: a threshold may be one person's."""
    return {name: value for name, value in plan.options.items() if not (merged and name == "thresholds")}


def _of_records(plan: Plan) -> dict[str, Any]:
    """What a plan says of holders with several records, as far as it does."""
    most = "all" if plan.records_per_holder is None else int(plan.records_per_holder)
    known: dict[str, Any] = {} if plan.records is None else {"records": int(plan.records)}
    if plan.by_holder:
        known["records_per_holder"] = most
    if plan.by_holder or plan.combine != "mean":
        known["combine"] = plan.combine
    return known


def is_by_holder(document: Mapping[str, Any]) -> bool:
    """Whether the plan in a document was made for holders with several records."""
    return document.get("records_per_holder") is not None


def _every(plan: Plan, names: tuple[str, ...]) -> list[dict[str, Any]]:
    columns = {name: _column(plan, name) for name in names}
    turns = is_plain(plan)
    own: list[dict[str, Any]] = [{} for _ in range(len(plan))] if plan.filter is None else plan.filter.rows()
    turn = [_turn(plan, i) if turns else {} for i in range(len(plan))]
    return [{name: _number(values[i]) for name, values in columns.items()} | turn[i] | own[i] for i in range(len(plan))]


def _turn(plan: Plan, group: int) -> dict[str, Any]:
    """The steps that a group takes part in, if not in all."""
    first, last = int(plan.first[group]), int(plan.last[group])
    return {"first": first, "last": last} if first > 0 or last < plan.steps else {}


def _stage(stage: Stage, count: int) -> dict[str, Any]:
    columns = {"rate": stage.rate, "clip": stage.clips, "inclusion": stage.inclusion}
    return {
        "steps": stage.steps,
        "noise_multiplier": stage.noise_multiplier,
        **({} if len(stage.groups) == count else {"groups": stage.groups.tolist()}),
        **{name: values.tolist() for name, values in columns.items()},
    }


def _shown_stage(plan: Plan, stage: Stage, rows: Sequence[slice]) -> dict[str, Any]:
    out: dict[str, Any] = {"steps": stage.steps, "noise_multiplier": stage.noise_multiplier}
    for name, values in {"rate": stage.rate, "clip": stage.clips, "inclusion": stage.inclusion}.items():
        column = np.zeros(len(plan))
        column[stage.groups] = values
        out[name] = [confidential.to_json(plan.view.value(column, row)) for row in rows]
    return out


def _column(plan: Plan, name: str) -> Array:
    if name == "units":
        assert plan.filter is not None
        return plan.filter.units.astype(float)
    found: Array = getattr(plan, {"clip": "clips", "noise_multiplier": "noise_multipliers"}.get(name, name))
    return found.astype(float)


def _shown(plan: Plan, name: str, row: slice) -> Any:
    view, values = plan.view, _column(plan, name)
    if name == "holders":
        return view.people(row)
    if name in _OF_FILTER:
        shown = view.value(values, row)
        return [int(end) for end in shown] if isinstance(shown, tuple) else int(shown)
    return confidential.to_json(view.spent(values, row) if name == "spent" else view.value(values, row))


def fields(document: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of the plan in a document."""
    if not isinstance(document, Mapping) or "groups" not in document:
        raise SartorError("this is not a plan: it has no groups.")
    if document.get("merged"):
        raise SartorError(
            "this document shows groups of fewer than 10 holders merged, so no plan can be read from it; write it with every group "
            "(sensitive=True, or --all-groups on the command line)."
        )
    try:
        if document.get("relation", ZERO_OUT.name) != ZERO_OUT.name:
            raise SartorError(f'this is not a plan: plans hold under "{ZERO_OUT.name}", not under "{document["relation"]}".')
        groups, most = document["groups"], document.get("records_per_holder")
        stages = [_read_stage(stage, len(groups)) for stage in document["stages"]] if "stages" in document else _turns(document, groups)
        if sum(stage.steps for stage in stages) != _whole(document["steps"], "steps"):
            raise SartorError("this is not a plan: its stages have another number of steps than it says.")
        return {
            "scheme": str(document["scheme"]),
            "accountant": document["accountant"],
            "batch": from_json_number(document["batch"]),
            "clip": from_json_number(document["clip"]),
            "epsilon": _read(groups, "epsilon"),
            "delta": _read(groups, "delta"),
            "holders": np.array([_whole(group["holders"], "holders") for group in groups], np.int64),
            "stages": stages,
            "reserve": from_json_number(document.get("reserve", 0.0)),
            "options": _options(document.get("options", {})),
            "records": None if document.get("records") is None else _whole(document["records"], "records"),
            "records_per_holder": None if most in (None, "all") else _whole(most, "records_per_holder"),
            "combine": document.get("combine", "mean"),
            "filter": None if document.get("filter") is None else Filter.from_json(document["filter"], groups),
        }
    except KeyError as error:
        raise SartorError(f"this is not a plan: {error} is missing.") from None
    except (TypeError, AttributeError, OverflowError):
        raise SartorError("this is not a plan: a number is missing or of the wrong type.") from None


def _options(given: Any) -> dict[str, Any]:
    if not isinstance(given, Mapping):
        raise SartorError("this is not a plan: its options must be an object of names and values.")
    return dict(given)


def _read(groups: Any, name: str, number: Callable[[Any], float] = from_json_number) -> Array:
    return np.array([number(group[name]) for group in groups], float)


def _read_stage(stage: Mapping[str, Any], count: int) -> Stage:
    groups = [_whole(group, "a group") for group in stage.get("groups", range(count))]
    columns = [[from_json_number(value) for value in stage[name]] for name in ("rate", "clip", "inclusion")]
    if any(len(column) != len(groups) for column in columns):
        raise SartorError("this is not a plan: a stage has a rate, a clip and a probability for each of its groups.")
    # where a document shows all groups, zeros stand for those that have no part in the stage
    there = [place for place in range(len(groups)) if "groups" in stage or any(column[place] for column in columns)]
    rate, clips, inclusion = ([column[place] for place in there] for column in columns)
    steps, noise = _whole(stage["steps"], "steps"), from_json_number(stage["noise_multiplier"])
    return Stage(steps, noise, rate, clips, [groups[place] for place in there], inclusion)


def _turns(document: Mapping[str, Any], groups: Any) -> list[Stage]:
    """The stages of a plain document: one for each turn, and one for each gap between them, in which nobody takes part."""
    steps, noise = _whole(document["steps"], "steps"), from_json_number(document["noise_multiplier"])
    first = np.array([_whole(group.get("first", 0), "first") for group in groups], np.int64)
    last = np.array([_whole(group.get("last", steps), "last") for group in groups], np.int64)
    if not (steps >= 1 and np.all((first >= 0) & (last >= first) & (last <= steps))):
        raise SartorError("this is not a plan: a group takes part from a step of the run up to a later one.")
    return stages_of_turns(steps, noise, _read(groups, "rate"), _read(groups, "clip"), first, last)


def stages_of_turns(
    steps: int, noise_multiplier: float, rate: Array, clips: Array, first: NDArray[np.int64], last: NDArray[np.int64]
) -> list[Stage]:
    """Stages in which groups take turns: each from its `first` step up to its `last`; groups without a step have no stage."""
    there = np.flatnonzero(last > first)
    ends = np.unique(np.stack([first[there], last[there]]), axis=1).T.tolist()
    by_turn = there[np.lexsort((there, first[there]))]
    stages, done, begin = [], 0, 0

    def add(until: int, groups: NDArray[np.intp]) -> None:
        if until > done:
            stages.append(Stage(until - done, noise_multiplier, rate[groups], clips[groups], groups))

    for start, end in ends:
        if start < done:
            raise SartorError("this is not a plan: turns of groups overlap; such a plan is written in stages.")
        add(start, by_turn[:0])
        done = start
        size = int(np.searchsorted(first[by_turn[begin:]], start, side="right"))
        add(end, by_turn[begin : begin + size])
        begin, done = begin + size, end
    add(steps, by_turn[:0])
    return stages


def read(path: str | os.PathLike[str]) -> dict[str, Any]:
    """A JSON document from a file, or one clear error."""
    found = read_json(path, "the plan")
    if not isinstance(found, dict):
        raise SartorError(f"{os.fspath(path)} is not a plan.")
    return found


def _whole(value: Any, name: str) -> int:
    number = from_json_number(value)
    if not number.is_integer() or abs(number) > 2**53:
        raise SartorError(f"this is not a plan: {name} must be a whole number.")
    return int(number)


def _number(value: float) -> Any:
    number = float(value)
    return int(number) if number.is_integer() and abs(number) < 2**53 else to_json_number(number)
