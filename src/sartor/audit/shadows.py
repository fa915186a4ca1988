"""Shadow models: many models trained under one plan, in each of which every target is in or out by a fair coin, and what each says of them.

Models come in pairs: a target who is in for one is out for the other, by a fair coin of the pair; so everyone is in for half of the models,
and within a model everyone's coins are independent. Who is out is zeroed: tossed a coin at every step like everybody, never drawn, and
everything else stays as it is. The plan is fixed and public, and is not made anew for those who are in.

The first model is trained by the library's own steps, and bounds are of its coins; the others several at once where they can be
(`stacked`), otherwise as the first. joblib spreads them over processes. Only signals come back; no model is ever written
to a disk.

Sensitive: signals are of private records, without noise, and a shadow model trained on people's records is a release that no budget covers.
They are for the auditor, who may see the data.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray
from torch import nn
from torch.utils.data import Dataset

from sartor import __version__
from sartor.audit.scores import Scores
from sartor.audit.shadow_folder import Arrays, ShadowFolder
from sartor.audit.shadow_training import Array, Learning, Mask, Material, Task, batches, check_name, of_population, parallel
from sartor.audit.shown import digest, seeded
from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.immutable import immutable
from sartor.numbers import check_seed
from sartor.ownership import Ownership
from sartor.plans import Plan
from sartor.progress import bar

STACKED = 8
"""Models that are trained side by side; more do not fit into the processor's caches."""


@dataclass(frozen=True, eq=False, repr=False)
class Shadows:
    """Who was in which model, and what each model shows of every target. Sensitive.

    `inside` and `signals` have a row for each model and a column for each target, `population` a column for each record that no model was
    trained on. `groups` is each target's group in the plan. The models 2i and 2i + 1 are a pair.
    """

    inside: Mask = field(repr=False)
    signals: Array = field(repr=False)
    groups: NDArray[np.intp] = field(repr=False)
    population: Array = field(repr=False)

    def __post_init__(self) -> None:
        for name, kind in (("inside", np.bool_), ("signals", np.float64), ("groups", np.intp), ("population", np.float64)):
            object.__setattr__(self, name, immutable(getattr(self, name), kind))
        if self.inside.ndim != 2 or self.inside.shape != self.signals.shape or self.groups.shape != self.inside.shape[1:]:
            raise SartorError("shadow models have a signal and a coin for each of their targets, and each target has a group.")
        if len(self) < 2 or len(self) % 2 or bool(np.any(self.inside[::2] == self.inside[1::2])):
            raise SartorError("shadow models come in pairs, and a target who is in for one of a pair is out for the other.")
        if self.population.ndim != 2 or len(self.population) != len(self):
            raise SartorError("the population has a row of signals for each shadow model.")
        if not np.isfinite(self.signals).all() or not np.isfinite(self.population).all():
            raise SartorError("a shadow model gives no finite signal for some record: attack a run with a smaller learning rate.")

    def __len__(self) -> int:
        return len(self.inside)

    def others(self, model: int) -> NDArray[np.intp]:
        """The models that say nothing of who was in this one: all but its pair, whose coins are the opposite of its own."""
        pair = np.arange(len(self)) // 2
        return np.flatnonzero(pair != pair[model])

    def by_group(self, scores: Array, inside: Mask) -> dict[int, Scores]:
        """Scores of all targets, in the last dimension, as those of each group.

        A group whose coins fell alike has a side without anybody: if it were left out, the coins of the others would not be their own.
        """
        found = {}
        for group in np.unique(self.groups).tolist():
            own = self.groups == group
            values, said = scores[..., own], inside[..., own]
            found[group] = Scores(values[said], values[~said])
        return found

    def __repr__(self) -> str:
        return f"Shadows({len(self)} models, {self.inside.shape[1]} targets)"


def coins(models: int, targets: int, seed: int) -> Mask:
    """Who is in which model: for each pair of models a fair coin for each target says in which of both.

    >>> inside = coins(6, 4, seed=1)
    >>> inside.sum(axis=0).tolist()
    [3, 3, 3, 3]
    """
    check_seed(seed)
    if models < 2 or models % 2:
        raise SartorError(f"shadow models come in pairs: their number is even and 2 or more, not {models}.")
    inside = np.empty((models, targets), bool)
    for pair in range(models // 2):
        inside[2 * pair] = np.random.default_rng([seed, pair, 1]).random(targets) < 0.5
        inside[2 * pair + 1] = ~inside[2 * pair]
    return inside


def seed_of(seed: int, model: int) -> int:
    """The seed of one shadow model, from which its first weights, its coins of sampling and its noise follow."""
    return int(np.random.SeedSequence([seed, model]).generate_state(1, np.uint64)[0] >> np.uint64(1))


def train_shadows(
    make_model: Callable[[], nn.Module],
    dataset: Dataset[Any],
    budgets: Budgets,
    plan: Plan,
    *,
    models: int = 64,
    targets: ArrayLike | None = None,
    population: Dataset[Any] | None = None,
    learning: Learning | None = None,
    ownership: Ownership | None = None,
    signal: str = "log-odds",
    seed: int = 0,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = 1,
    progress: bool = True,
) -> Shadows:
    """Train shadow models under a plan, and give what each shows of the targets.

    `make_model` makes an untrained network, whose weights come from the model's own seed; one that returns copies of one network lets the
    attack know where training began. `targets` are places of holders in the budgets, everybody by default; holders who are no targets are
    in all models. `population` are records that nobody trains on, which RMIA needs. `learning` and `ownership` are as in the run that is
    attacked. `signal` is "log-odds", "logit" or "loss" (`signals_of`).

    With a `folder` all signals of every model are kept there when it is finished, and those that are found there are not trained again,
    whichever is asked for; it also takes more models than it has. `workers` are processes, None means one for each core; within
    `joblib.parallel_config("ray")` they are those of a cluster.

    >>> import sartor, torch
    >>> from torch.utils.data import TensorDataset
    >>> data = TensorDataset(torch.randn(40, 4), torch.randint(0, 2, (40,)))
    >>> budgets = sartor.Budgets.from_groups([(2.0, 20), (8.0, 20)], delta=1e-2)
    >>> plan = sartor.plan(budgets, steps=5, batch=10)
    >>> train_shadows(lambda: nn.Linear(4, 2), data, budgets, plan, models=4, progress=False)
    Shadows(4 models, 40 targets)
    """
    check_seed(seed)
    material = Material(make_model, dataset, budgets, plan, learning or Learning(), ownership)
    check_name(signal)
    chosen = _targets(targets, len(budgets))
    inside = coins(models, len(chosen), seed)
    if workers is not None and workers < 1:
        raise SartorError(f"workers must be 1 or more, not {workers}; None takes all cores.")
    kept = nullcontext() if folder is None else ShadowFolder(folder, _digests(material, chosen, population, seed))
    with kept as place, bar("shadow models", models, wanted=progress) as advance:
        done: dict[int, Arrays] = {}
        for number in range(models) if isinstance(place, ShadowFolder) else ():
            arrays = None if place is None else place.found(number)
            if arrays is not None:
                done[number] = arrays
        advance(len(done))
        stacked = len(done) < models and material.can_be_stacked()
        for numbers, found in parallel(_tasks(material, chosen, inside, population, seed, stacked, done), workers):
            for number, arrays in zip(numbers, found, strict=True):
                done[number] = arrays
                if place is not None:
                    place.put(number, arrays)
            advance(len(done))
    if signal not in done[0]:
        raise SartorError(f'the signal "{signal}" is of a true class, which these targets are not: take signal="loss".')
    shown = [np.stack([done[number][name] for number in range(models)]) for name in (signal, of_population(signal))]
    return Shadows(inside, shown[0], plan.groups_of(budgets)[chosen], shown[1])


def _tasks(
    material: Material,
    targets: NDArray[np.intp],
    inside: Mask,
    population: Dataset[Any] | None,
    seed: int,
    stacked: bool,
    done: dict[int, Arrays],
) -> Iterator[Task]:
    """Models in tasks of fixed size, without the tasks that were finished before: a task that goes on is the same again.

    Model 0, of which alone bounds are, is trained by the library's own steps whatever becomes of the others.
    """
    cuts = {0, 1, *range(0, len(inside), STACKED if stacked else 1), len(inside)}
    for begin, end in pairwise(sorted(cuts)):
        numbers = list(range(begin, end))
        if all(number in done for number in numbers):
            continue
        absent = np.zeros((len(numbers), len(material.budgets)), bool)
        absent[:, targets] = ~inside[numbers]
        seeds = [seed_of(seed, number) for number in numbers]
        yield Task(material, numbers, seeds, list(absent), targets, population, stacked and begin > 0)


def _targets(given: ArrayLike | None, holders: int) -> NDArray[np.intp]:
    if given is None:
        return np.arange(holders)
    places = np.asarray(given)
    if places.ndim != 1 or not places.size or places.dtype.kind not in "iu" or len(np.unique(places)) < len(places):
        raise SartorError("targets are different whole numbers: the places of holders in the budgets.")
    if places.min() < 0 or places.max() >= holders:
        raise SartorError(f"targets are places of holders from 0 to {holders - 1}.")
    return places.astype(np.intp)


def _digests(material: Material, targets: NDArray[np.intp], population: Dataset[Any] | None, seed: int) -> dict[str, str]:
    """All that signals follow from, by name, but for code. How many models there are is no part of it."""
    learning, model = material.learning, material.fresh(seed_of(seed, 0))
    with seeded(seed):
        records, others = ([] if data is None else list(batches(data, learning.collate)) for data in (material.dataset, population))
    parts: dict[str, object] = {
        "plan": json.dumps(material.plan.record(), sort_keys=True),
        "budgets": material.plan.groups_of(material.budgets),
        "data": records,
        "ownership": None if material.ownership is None else material.ownership.of_record,
        "network": [repr(model), model],
        "learning": learning,
        "targets": targets,
        "population": others,
        "seed": seed,
        "version of sartor": __version__,
    }
    return {name: digest(part) for name, part in parts.items()}
