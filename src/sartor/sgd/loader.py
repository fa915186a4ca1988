"""Poisson batches of a data set: exactly the plan's steps, empty ones included, with each example's clip beside it.

A batch is drawn here, fetched and collated wherever the user's workers are, and its clips come back with it. An empty draw is handed out as
one stand-in record with clip 0: it contributes nothing, and models and losses that cannot take an empty batch need not know.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch.utils._pytree import tree_flatten
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from sartor.errors import SartorError
from sartor.sgd.run import Exhausted, Piece, Run
from sartor.sgd.sampling import PoissonSampler

Collate = Callable[[list[Any]], Any]
_COLLATED = 16


class PrivateLoader:
    """Iterates over the run's remaining batches. Made by `sartor.make_private`."""

    def __init__(
        self,
        run: Run,
        sampler: PoissonSampler,
        dataset: Dataset[Any],
        *,
        collate: Collate | None,
        workers: int,
        max_physical_batch: int | None,
    ) -> None:
        self.run, self.sampler, self.dataset = run, sampler, dataset
        self.collate, self.workers, self.max_physical_batch = collate, workers, max_physical_batch

    def __len__(self) -> int:
        """Steps that are left."""
        return self.run.left

    def __iter__(self) -> Iterator[Any]:
        if not len(self):
            raise Exhausted(f"the plan's {self.run.plan.steps} steps are done: no further batch can be drawn from it.")
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        self.run.abandon()
        pieces = DataLoader(
            _Fetched(self.dataset, self.collate),
            batch_sampler=_Pieces(self),  # type: ignore[arg-type]
            collate_fn=_as_is,
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(0),  # keeps the loader from touching the model's own random numbers
        )
        for piece, batch in pieces:
            self.run.begin(piece)
            yield batch

    def __repr__(self) -> str:
        return f"PrivateLoader({len(self)} of {self.run.plan.steps} steps left)"


class _Pieces:
    """The draws from the run's step on, cut to what fits into memory."""

    def __init__(self, loader: PrivateLoader) -> None:
        self.loader = loader

    def __len__(self) -> int:
        return len(self.loader)

    def __iter__(self) -> Iterator[Piece]:
        run = self.loader.run
        for step in range(run.steps, run.plan.steps):
            draw = self.loader.sampler.draw(step)
            indices, clips = draw.indices, torch.tensor(draw.clips, dtype=torch.float32)
            if not len(indices):
                indices, clips = np.zeros(1, np.int64), torch.zeros(1)
            size = self.loader.max_physical_batch or len(indices)
            seed = int(run.stream.generator("augmentation", step).integers(2**62))
            for number, begin in enumerate(range(0, len(indices), size)):
                end = begin + size
                yield Piece(step, number, indices[begin:end].tolist(), clips[begin:end], end >= len(indices), seed + number)


class _Fetched(Dataset[Any]):
    """The data set as the workers see it: given a piece it returns that piece's records, collated, and the piece."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None) -> None:
        self.dataset, self.collate = dataset, collate

    def __getitems__(self, piece: Piece) -> tuple[Piece, Any]:
        if self._is_plain:
            rows = torch.tensor(piece.indices)
            return piece, [tensor[rows] for tensor in self.dataset.tensors]  # type: ignore[attr-defined]
        # random changes to records follow the step, so that they are the same in any number of workers and after a resume
        with seeded(piece.seed):
            return piece, self._fetch(piece.indices)

    @property
    def _is_plain(self) -> bool:
        return type(self.dataset) is TensorDataset and self.collate is None

    def _fetch(self, indices: Any) -> Any:
        together = getattr(self.dataset, "__getitems__", None)
        items = together(list(indices)) if together else [self.dataset[i] for i in indices]
        return (self.collate or default_collate)(items)


@contextmanager
def seeded(seed: int) -> Iterator[None]:
    """Torch's, NumPy's and Python's common random numbers from a seed; afterwards they go on as if nothing had been."""
    numpy_state, python_state = np.random.get_state(), random.getstate()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        np.random.seed(seed % 2**32)  # noqa: NPY002
        random.seed(seed)
        try:
            yield
        finally:
            np.random.set_state(numpy_state)  # noqa: NPY002
            random.setstate(python_state)


def check_collate(dataset: Any, collate: Collate | None) -> None:
    """Whether a collate function keeps the records in their order, so that each keeps its own clip."""
    if collate is None or len(dataset) < 2:
        return
    places = np.unique(np.linspace(0, len(dataset) - 1, _COLLATED).astype(int))
    with seeded(0):
        items = [dataset[int(i)] for i in places]
        forward = _rows(collate(items), len(items))
    with seeded(0):
        items = [dataset[int(i)] for i in places]
        backward = _rows(collate(items[::-1]), len(items))
    same = len(forward) == len(backward) and all(
        a.shape == b.shape and torch.equal(a, b.flip(0)) for a, b in zip(forward, backward, strict=True)
    )
    if not same:
        raise SartorError(
            "the collate function reorders or mixes records (as sorting by length and mixup do): each record would get another one's clip; "
            "keep their order."
        )


def _rows(batch: Any, count: int) -> list[torch.Tensor]:
    leaves, _ = tree_flatten(batch)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and leaf.dim() and len(leaf) == count]


def _as_is(fetched: Any) -> Any:
    return fetched


def check_dataset(dataset: Any, holders: int) -> Dataset[Any]:
    """A map-style data set with one record per holder, or the reason why not."""
    if isinstance(dataset, DataLoader):
        how = type(dataset.sampler).__name__
        raise SartorError(
            f"a loader draws its own batches ({how}), and only Poisson batches have the guarantee that the plan states; "
            "pass its data set (loader.dataset), and its collate_fn and num_workers as collate and workers."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise SartorError("the data set must have a length and give a record for an index: every holder is drawn by a coin of their own.")
    records = len(dataset)
    if records != holders:
        several = " Several records per holder are not supported yet." if records > holders else ""
        raise SartorError(
            f"the data set has {records} records, but there are {holders} budgets: one record for each holder, in their order.{several}"
        )
    return dataset  # type: ignore[no-any-return]
