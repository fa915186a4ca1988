"""Which of several ways to form the same gradients is used for a layer: decided once per layer, by measuring or by a rule.

Measuring finds the fastest on this machine, but two runs may then round differently; a run that must be repeated bit for bit, as a seeded
one, takes the choices of the rule.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from torch import Tensor

from sartor.sgd.gradients.parts import Part
from sartor.sgd.gradients.workspace import Workspace

REPEATS = 6


class Kernels:
    """The choice made for each layer, by name, and the memory that the ways share."""

    def __init__(self, chosen: Mapping[str, str] | None = None, *, measure: bool = True) -> None:
        self.chosen: dict[str, str] = dict(chosen or {})
        self.measure = measure
        self.workspace = Workspace()

    def choose(self, layer: str, ways: Mapping[str, Callable[[], Part]], otherwise: str, like: Tensor) -> Part:
        """The part made in the way chosen for a layer; the first time, the fastest of all (or `otherwise`, where nothing is
        measured); `like` has a row per example, or per holder of several."""
        way = self.chosen.get(layer)
        if way is not None:  # a way that there is not in every batch is not looked for again in those
            return ways[way if way in ways else otherwise]()
        if not self.measure or len(ways) == 1:
            self.chosen[layer] = otherwise
            return ways[otherwise]()
        factors = like.new_ones(len(like))
        seconds = dict.fromkeys(ways, float("inf"))
        for _ in range(REPEATS):
            for name, make in ways.items():
                start = time.perf_counter()
                part = make()
                part.squared_norms.sum()
                part.weighted(factors)
                seconds[name] = min(seconds[name], time.perf_counter() - start)
        self.chosen[layer] = min(seconds, key=lambda name: seconds[name])
        return ways[self.chosen[layer]]()
