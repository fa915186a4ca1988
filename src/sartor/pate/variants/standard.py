"""Standard: nothing differs between people, and the strictest budget is everybody's (Papernot et al. 2018)."""

from __future__ import annotations

from sartor.pate.variants.registry import Request, Treatment, register


@register("standard")
def standard(asked: Request) -> Treatment:
    """Everyone is taught to one of all teachers, and every vote weighs one."""
    return Treatment(asked.teachers, duplicates=1, begin=0, end=asked.teachers, weight=1.0, taking_part=asked.teachers)
