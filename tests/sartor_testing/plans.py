"""Plans that a scheme would not make."""

import dataclasses

import sartor

_OF_A_STAGE = {field.name for field in dataclasses.fields(sartor.plans.Stage)}


def changed(plan: sartor.Plan, **fields) -> sartor.Plan:
    """A plan with other values in it, and in each of its stages."""
    of_stage = {name: value for name, value in fields.items() if name in _OF_A_STAGE}
    others = {name: value for name, value in fields.items() if name not in _OF_A_STAGE}
    return dataclasses.replace(plan, stages=[dataclasses.replace(stage, **of_stage) for stage in plan.stages], **others)
