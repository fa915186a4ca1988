"""Shadow models in other processes, and what comes back of them: every signal of every target and of every record of the population.

joblib spreads tasks over processes; within `joblib.parallel_config("ray")`, after `ray.util.joblib.register_ray()`, over those of a
cluster.

Sensitive: records and signals go between processes through pipes, and, on a cluster, through its store of objects, which is the memory and
the disks of its machines.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import joblib  # type: ignore[import-untyped,unused-ignore]
import numpy as np
import torch
from joblib.parallel import ThreadingBackend, get_active_backend  # type: ignore[import-untyped,unused-ignore]
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import Dataset

from sartor.audit.shadow_folder import Arrays
from sartor.audit.shadow_training import Mask, Material, train_alone, train_stacked
from sartor.audit.signals import NAMES, all_of_outputs, batches, by_holder, evaluated
from sartor.errors import SartorError
from sartor.sgd.loss import Loss


@dataclass(frozen=True, eq=False, repr=False)
class Task:
    """Some models to be trained in one go: their numbers and seeds, who is out of each, and whose signals are asked for."""

    material: Material
    numbers: list[int]
    seeds: list[int]
    absent: list[Mask]
    targets: NDArray[np.intp]
    population: Dataset[Any] | None
    stacked: bool


def of_population(signal: str) -> str:
    """Under which name the signals of the population come back."""
    return f"{signal} of the population"


def parallel(tasks: Iterator[Task], workers: int | None) -> Iterator[tuple[list[int], list[Arrays]]]:
    """Runs tasks by joblib, and gives each result as soon as it is there (all at the end where a backend cannot).

    Records go to the workers through pipes: joblib's files for large arrays (`max_nbytes`) would outlive a kill, in a folder for all.
    """
    backend = get_active_backend()[0]
    if isinstance(backend, ThreadingBackend):
        raise SartorError("shadow models cannot train in threads, which share one random generator: choose a joblib backend of processes.")
    waiting = list(tasks)
    jobs = -1 if workers is None else min(workers, max(1, len(waiting)))
    try:
        pool = joblib.Parallel(n_jobs=jobs, batch_size=1, max_nbytes=None, return_as="generator_unordered")
    except ValueError:
        pool = joblib.Parallel(n_jobs=jobs, batch_size=1, max_nbytes=None)
    yield from pool(joblib.delayed(carried_out)(task, jobs != 1) for task in waiting)


def carried_out(task: Task, beside_others: bool) -> tuple[list[int], list[Arrays]]:
    """Trains the models of a task, and gives what they show; beside other processes on one thread."""
    threads = torch.get_num_threads()
    try:
        if beside_others:
            torch.set_num_threads(1)
        if task.stacked:
            stack = train_stacked(task.material, task.seeds, task.absent)
            return task.numbers, _shown(stack.outputs, task, len(stack))
        found = []
        for seed, absent in zip(task.seeds, task.absent, strict=True):
            with evaluated(train_alone(task.material, seed, absent)) as model:
                found += _shown(lambda inputs, model=model: model(inputs)[None], task, 1)  # type: ignore[misc]
        return task.numbers, found
    finally:
        torch.set_num_threads(threads)


def _shown(outputs: Callable[[Any], Tensor], task: Task, models: int) -> list[Arrays]:
    """All signals of each model, of targets and of the population."""
    found: list[Arrays] = [{} for _ in range(models)]
    for model, signals in enumerate(_signals(outputs, task.material.dataset, task)):
        for name, values in signals.items():
            found[model][name] = by_holder(values, task.material.ownership)[task.targets]
            found[model][of_population(name)] = np.empty(0)
    for model, signals in enumerate([] if task.population is None else _signals(outputs, task.population, task)):
        found[model] |= {of_population(name): values for name, values in signals.items()}
    return found


@torch.no_grad()
def _signals(outputs: Callable[[Any], Tensor], data: Dataset[Any], task: Task) -> list[dict[str, NDArray[np.float64]]]:
    """By model and name, the signals of all records of a data set."""
    learning, parts = task.material.learning, []
    measure = Loss(learning.loss)
    for inputs, targets in batches(data, learning.collate):
        parts.append([all_of_outputs(own, targets, measure) for own in outputs(inputs)])
    return [
        {name: torch.cat([part[model][name] for part in parts]).numpy() for name in NAMES if name in parts[0][model]}
        for model in range(len(parts[0]) if parts else 0)
    ]
