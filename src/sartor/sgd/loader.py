"""Poisson batches of a data set: exactly the plan's steps, empty ones included, with each holder's clip beside it.

A batch is drawn here, fetched and collated wherever the user's workers are, and its clips come back with it. In some batches records are
compared with themselves alone (`alone`), so that nothing on the way mixes them. An empty draw is handed out as
one stand-in record with clip 0: it contributes nothing, and models and losses that cannot take an empty batch need not know.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from sartor.budgets import Budgets
from sartor.errors import Exhausted, SartorError
from sartor.individual.readings import Reading
from sartor.ownership import Ownership
from sartor.sgd.alone import SEEDS, Alone, Pair, places
from sartor.sgd.changes import Path, changed, follow, state
from sartor.sgd.check import Unchecked
from sartor.sgd.generators import own, repeatable, reseed
from sartor.sgd.pieces import Draws, Piece
from sartor.sgd.pristine import Pristine
from sartor.sgd.reach import Reach
from sartor.sgd.rows import Likeness
from sartor.sgd.run import Run
from sartor.sgd.stores import stores

Collate = Callable[[list[Any]], Any]


class PrivateLoader:
    """Iterates over the run's remaining batches. Made by `sartor.make_private`."""

    def __init__(
        self,
        run: Run,
        draws: Draws,
        dataset: Dataset[Any],
        *,
        collate: Collate | None,
        workers: int,
        pristine: Pristine | None,
    ) -> None:
        self.run, self.draws, self.dataset = run, draws, dataset
        self.collate, self.workers = collate, workers
        self.checked: list[Pair] = []
        """Examples of the batch at hand beside themselves alone, if it is checked. Secret."""
        self.loss_is_seen = False
        """Whether whoever iterates goes on to compare losses and gradients, as `fit` does."""
        self._said: set[str] = set()
        self._holders = 0
        self.pristine = pristine
        """Data set, collate function, model and loss from before the first batch, or None where nothing is compared."""
        self._alone = Alone(run.stream, run.plan.steps)
        self._is_plain = _Fetched(dataset, collate).is_plain
        self._before: dict[Path, Any] | None = None
        run.when_stepped(self._stepped)

    def __len__(self) -> int:
        """Steps that are left."""
        return self.run.left

    def __iter__(self) -> Iterator[Any]:
        self.run.refuse_broken()
        if not len(self):
            raise Exhausted(f"the plan's {self.run.plan.steps} steps are done: no further batch can be drawn from it.")
        return self._batches()

    def _batches(self) -> Iterator[Any]:
        self.run.abandon()
        while self.run.left:
            until = self.run.plan.steps if self.draws.stretches is None else self.draws.stretches.begin(self.run.steps)
            for piece, batch in self._fetched(until):
                self.run.begin(piece)
                self._compare(piece, batch)
                yield batch
                self._follow_loop()
            if self.run.steps < until:
                return  # the last batch was not stepped: it is handed out again to whoever iterates anew

    def _fetched(self, until: int) -> DataLoader[Any]:
        """The batches up to a step, with none of the next stretch drawn ahead."""
        return DataLoader(
            _Fetched(self.dataset, self.collate),
            batch_sampler=_Pieces(self, until),  # type: ignore[arg-type]
            collate_fn=_as_is,
            num_workers=self.workers,
            generator=torch.Generator().manual_seed(0),  # keeps the loader from touching the model's own random numbers
        )

    def _compare(self, piece: Piece, batch: Any) -> None:
        """Refuse a batch in which a record is not what it is alone; say what could not be seen."""
        self.checked = []
        if self.pristine is None or not bool(piece.clips.any()) or not self._alone.is_due(piece):
            return
        if self._is_plain and not self.loss_is_seen:
            return  # rows of tensors, taken by their numbers here
        self.pristine.refuse_moved()
        self.checked = list(self._alone.pairs(self._way, piece, batch))
        self._holders = len(piece.clips)
        if not self._is_plain:
            self._refuse_reach(piece)
        if self.loss_is_seen:
            return
        worst = max(pair.likeness for pair in self.checked)
        if worst is Likeness.COMMON:
            raise SartorError(
                "the collate function returns something that has no row for each record, or rows that go on beyond it, and depends on who "
                "else is in the batch (packed sequences, statistics of the batch), and what a loop of your own makes of it cannot be seen; "
                "return a row for each record, or train with sartor.fit, which sees the loss."
            )
        if worst is Likeness.PADDED:
            self._say(
                "records are padded to the longest of their batch, and the loss of a loop of your own cannot be seen: it must not depend "
                "on how far they are padded (a mean over positions does)."
            )
        self.passed()

    @contextmanager
    def public_changes(self, **beside: Any) -> Iterator[None]:
        """What is changed inside, in the data set, the collate function and what is `beside` them, is public: the copies that examples are
        compared by follow it, and it alone."""
        before = state(self._watched(beside))
        yield
        self._follow(before, beside)

    def _watched(self, beside: Mapping[str, Any]) -> dict[str, Any]:
        # workers have a data set and a collate function of their own, which nobody changes from here
        return {**beside, **({} if self.workers else {"dataset": self.dataset, "collate": self.collate})}

    def _follow(self, before: Mapping[Path, Any], beside: Mapping[str, Any]) -> None:
        live = self._watched(beside)
        paths = changed(before, state(live))
        kept = None if self.pristine is None else self.pristine.kept
        if self.pristine is not None and kept is not None and paths:
            shared = (*self.run.engine.model.parameters(), *self.run.engine.model.buffers())
            follow(paths, live, {name: getattr(kept, name) for name in live}, shared)
            self.pristine.moved_in_public()

    def _stepped(self) -> None:
        """After the step of a loop of one's own: what the loop changes from here to the next batch is public."""
        self._before = None if self.loss_is_seen or self._is_plain or self.pristine is None else state(self._watched({}))

    def _follow_loop(self) -> None:
        before, self._before = self._before, None
        if before is not None:
            self._follow(before, {})

    def passed(self) -> None:
        """The comparison of the batch at hand went well to its end: until one has, every batch of two or more is compared."""
        self._alone.passed(self._holders)

    def _refuse_reach(self, piece: Piece) -> None:
        """Refuse a batch with a record that is made of others' too, wherever the data set keeps them."""
        kept = None if self.pristine is None else self.pristine.kept
        if kept is None:
            return  # nothing can be copied, which was said
        held = stores(kept.dataset, kept.collate)
        generator = self.run.stream.generator("others", piece.step)
        records = [piece.indices[place] for place in places(piece, generator)]
        seeds = range(piece.seed, piece.seed + (1 if self._alone.has_passed else SEEDS))
        reach = Reach(held, lambda instead, record, seed: self._way(instead).batch([record], seed), generator)
        if not reach.refuse(records, seeds):
            held.unseen.add("records that fail beside others'")
        if held.unseen:
            what = ", ".join(sorted(held.unseen))
            self._say(f"whether a record is made of other people's too cannot be seen: they cannot be replaced in the data set ({what}).")

    def _say(self, sentence: str) -> None:
        """What cannot be seen is said once."""
        if sentence not in self._said:
            self._said.add(sentence)
            warnings.warn(sentence, Unchecked, stacklevel=4)

    def batch(self, indices: Sequence[int], seed: int) -> Any:
        """Records as a batch of them would be, for whoever looks at everybody; random changes to each follow the seed and it alone."""
        return _Fetched(self.dataset, self.collate).batch(indices, seed, apart=True)

    def reading(self) -> Reading:
        """What each holder's gradients have cost so far, where norms are tracked. Sensitive: it is of private data, without noise."""
        if self.draws.stretches is None:
            raise SartorError('this run tracks no norms: give tracking=sartor.Tracking("strict", refresh=100), or plan with a filter.')
        return self.draws.stretches.reading()

    def _way(self, instead: Mapping[int, Any] | None = None) -> _Fetched:
        assert self.pristine is not None
        fresh = self.pristine.records(instead)
        return _Fetched(fresh.dataset, fresh.collate)

    def __repr__(self) -> str:
        return f"PrivateLoader({len(self)} of {self.run.plan.steps} steps left)"


class _Pieces:
    """The pieces of the draws from the run's step on, up to another."""

    def __init__(self, loader: PrivateLoader, until: int) -> None:
        self.loader, self.until = loader, until

    def __len__(self) -> int:
        return self.until - self.loader.run.steps

    def __iter__(self) -> Iterator[Piece]:
        run = self.loader.run
        for step in range(run.steps, self.until):
            yield from self.loader.draws.pieces(step)


class _Fetched(Dataset[Any]):
    """The data set as the workers see it: given a piece it returns that piece's records, collated, and the piece."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None) -> None:
        self.dataset, self._collate = dataset, collate

    def __getitems__(self, piece: Piece) -> tuple[Piece, Any]:
        return piece, self.batch(piece.indices, piece.seed)

    @property
    def is_plain(self) -> bool:
        """Whether records are rows of tensors, collated by nobody."""
        return type(self.dataset) is TensorDataset and self._collate is None

    def batch(self, indices: Sequence[int], seed: int, *, apart: bool = False) -> Any:
        """Records as one batch. Random changes to them follow the seed, so that they are the same in any number of workers and when a run
        resumes; `apart`, those to each record are the same whoever else is in the batch."""
        if self.is_plain:
            rows = torch.tensor(indices)
            return [tensor[rows] for tensor in self.dataset.tensors]  # type: ignore[attr-defined]
        if apart:
            return self.collate(self._under(seed, lambda: [item for i in indices for item in self._by_itself(i, seed + i)]), seed)
        return self._under(seed, lambda: (self._collate or default_collate)(self._records(indices)))

    def fetch(self, indices: Sequence[int], seed: int) -> list[Any]:
        """Some records under the random numbers of a seed."""
        found: list[Any] = self._under(seed, lambda: self._records(indices))
        return found

    def collate(self, items: list[Any], seed: int) -> Any:
        """Records as one batch, likewise."""
        return self._under(seed, lambda: (self._collate or default_collate)(items))

    def _by_itself(self, index: int, seed: int) -> list[Any]:
        reseed(seed, own(self.dataset, self._collate))
        return self._records([index])

    def _under(self, seed: int, make: Callable[[], Any]) -> Any:
        return repeatable(seed, make, self.dataset, self._collate)

    def _records(self, indices: Sequence[int]) -> list[Any]:
        together = getattr(self.dataset, "__getitems__", None)
        items: list[Any] = together(list(indices)) if together else [self.dataset[i] for i in indices]
        return items


def _as_is(fetched: Any) -> Any:
    return fetched


def check_dataset(dataset: Any, budgets: Budgets, ownership: Ownership | None = None) -> Dataset[Any]:
    """A map-style data set with one record per holder, or with the records of an ownership, or the reason why not."""
    if ownership is not None and not isinstance(ownership, Ownership):
        raise SartorError("ownership is a sartor.Ownership: sartor.Ownership.of(names, budgets), with one name for each record.")
    if isinstance(dataset, DataLoader):
        how = type(dataset.sampler).__name__
        raise SartorError(
            f"a loader draws its own batches ({how}), and only Poisson batches have the guarantee that the plan states; "
            "pass its data set (loader.dataset), and its collate_fn and num_workers as collate and workers."
        )
    if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__") or not hasattr(dataset, "__len__"):
        raise SartorError("the data set must have a length and give a record for an index: every holder is drawn by a coin of their own.")
    records, holders = len(dataset), len(budgets)
    if isinstance(dataset, tuple) and not isinstance(dataset, Dataset) and records == 2 != holders:
        raise SartorError("a pair of tensors is no data set: give torch.utils.data.TensorDataset(x, y).")
    if ownership is not None:
        ownership.check(budgets)
        if len(ownership) != records:
            raise SartorError(f"the ownership is of {len(ownership)} records, but the data set has {records}: every record has one holder.")
    elif records != holders:
        several = " If holders have several, say whose each record is (ownership=)." if records > holders else ""
        raise SartorError(
            f"the data set has {records} records, but there are {holders} budgets: one record for each holder, in their order.{several}"
        )
    return dataset  # type: ignore[no-any-return]
