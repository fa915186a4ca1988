"""Poisson batches of a data set: exactly the plan's steps, empty ones included, with each holder's clip beside it.

A batch is drawn here, fetched and collated wherever the user's workers are, and its clips come back with it. Steps are drawn in blocks,
none of them before it is charged (`sartor.sgd.checkpoint`) and none across the end of a round or stretch. An empty draw is handed out as
one stand-in record with clip 0: it contributes nothing, and models and losses that cannot take an empty batch need not know.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from multiprocessing import get_start_method
from types import TracebackType
from typing import Any, Self

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, default_collate

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.individual.readings import Reading
from sartor.ownership import Ownership
from sartor.sgd.check import Kept, laid_aside
from sartor.sgd.checkpoint import Keeper, fingerprint
from sartor.sgd.forks import reseed
from sartor.sgd.gradients.engine import PerExample
from sartor.sgd.interrupt import as_ctrl_c
from sartor.sgd.loss import Loss
from sartor.sgd.optimizer import PrivateOptimizer
from sartor.sgd.options import Checkpoints
from sartor.sgd.pieces import Draws, Piece
from sartor.sgd.property import PropertyTest
from sartor.sgd.run import NotFinite, OutOfTurn, Run

Collate = Callable[[list[Any]], Any]


class PrivateLoader:
    """Iterates over the run's remaining batches. Made by `sartor.make_private`.

    In a `with` block it stops in order at the end of the block, on Ctrl-C and on SIGTERM: what was charged and never drawn is given back.
    """

    def __init__(
        self,
        run: Run,
        draws: Draws,
        dataset: Dataset[Any],
        *,
        budgets: Budgets,
        optimizer: PrivateOptimizer,
        collate: Collate | None,
        workers: int,
        loss: Loss | None,
        check: bool,
    ) -> None:
        self.run, self.draws, self.dataset = run, draws, dataset
        self.collate, self.workers = collate, workers
        self._budgets, self._optimizer, self._loss = budgets, optimizer, loss
        self._source = _Fetched(dataset, collate)
        self._keeper: Keeper | None = None
        self._begun = False
        self._elsewhere: Iterator[Any] | None = None
        seen = check and not (self._source.is_plain and loss is None)  # rows of tensors, taken by their numbers here
        self._test = (
            PropertyTest(run.engine, self._source.records, collate, loss, steps=run.plan.steps, stream=run.stream) if seen else None
        )
        self._signals = ExitStack()

    def __len__(self) -> int:
        """Steps that are left."""
        return self.run.left

    def __iter__(self) -> Iterator[Any]:
        if not len(self) and not (self._keeper is not None and self._keeper.is_taken_up):  # of what was kept there may be no rest
            raise self.run.exhausted()
        return self._batches()

    def __enter__(self) -> Self:
        self._signals.enter_context(as_ctrl_c())
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._signals.close()
        if kind is None or issubclass(kind, KeyboardInterrupt | NotFinite):
            self.close(over=kind is NotFinite)
        else:
            self.let_go()

    def checkpoint(
        self,
        folder: str | os.PathLike[str],
        *,
        scheduler: Any = None,
        seconds: float = 30.0,
        every: int | None = None,
        resume: bool = False,
        restarts: int = 20,
        public: Callable[[], Mapping[str, Any]] = dict,
    ) -> dict[str, Any]:
        """Charge this run ahead in a folder, and keep there what it goes on from; called before the first batch.

        Args:
            folder: For this run alone; it does not belong into backups.
            scheduler: Of learning rates, kept beside the optimizer.
            seconds: About how long a block of steps takes; a crash costs the rest of one.
            every: Steps of a block, instead of seconds.
            resume: Take up the run in the folder: put model, optimizer and scheduler where they were, and count on from the charge.
            restarts: How often a run may be taken up after it did not end in order.
            public: What else to keep with each checkpoint, made from public facts, as plain values.

        Returns:
            What `public` gave when the checkpoint was written; empty for a new run.

        Raises:
            SartorError: if the folder is another run's, or a run in it has another plan or other people.

        >>> import sartor, tempfile, torch
        >>> data = torch.utils.data.TensorDataset(torch.randn(200, 4), torch.randint(0, 2, (200,)))
        >>> budgets = sartor.Budgets.from_groups([(1.0, 100), (4.0, 100)], delta=1e-3)
        >>> plan = sartor.plan(budgets, steps=3, batch=20)
        >>> model = torch.nn.Linear(4, 2)
        >>> optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        >>> loss = torch.nn.functional.cross_entropy
        >>> model, optimizer, loader = sartor.make_private(model, optimizer, data, budgets, plan, loss=loss)
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     kept = loader.checkpoint(folder)
        ...     with loader:
        ...         for x, y in loader:
        ...             optimizer.zero_grad()
        ...             loss(model(x), y).backward()
        ...             optimizer.step()
        >>> optimizer.account().charged
        3
        """
        if self._keeper is not None or self._begun:
            raise OutOfTurn("say where a run is kept once, before its first batch.")
        asked = Checkpoints(folder, seconds, every, resume, restarts)
        of = fingerprint(self.run.plan, self._budgets, self.dataset, self.draws.ownership)
        self._keeper = Keeper(asked, self, self._optimizer, of, scheduler, public)
        return self._keeper.found

    def close(self, *, over: bool = False, **public: Any) -> None:
        """Stop in order: no further step is taken here, and steps that were never drawn are given back.

        While an error is handled nothing is given back, as by `let_go`: a crash may follow from what was drawn.

        Args:
            over: The run is over for good: nobody takes it up again.
            public: More to keep, as plain values.
        """
        error = sys.exc_info()[1]
        if isinstance(error, Exception) and not isinstance(error, NotFinite):
            self.let_go()
            return
        self.run.abandon()
        if self._keeper is not None:
            self._keeper.close(over=over, **public)
        self.run.stop()

    def let_go(self) -> None:
        """Stop after an error: everything that is charged stays charged."""
        self.run.stop()
        if self._keeper is not None:
            self._keeper.let_go()

    def _batches(self) -> Iterator[Any]:
        run, test, self._begun = self.run, self._test, True
        run.stream.check_process()
        run.abandon()
        if test is not None and run.steps == run.drawn:  # before anything is charged or drawn
            test.beforehand(len(self.dataset), self.draws.ownership, run.plan.clip)  # type: ignore[arg-type]
        while run.left:
            until = self._ahead()
            for piece, batch in self._taken(iter(self._fetched(until))):
                run.begin(piece)
                if test is not None and test.is_due(piece):
                    test.run(piece)
                yield batch
            if run.steps < until:
                return  # the last batch was not stepped: it is handed out again to whoever iterates anew
        if self._keeper is not None and run.steps == run.plan.steps:
            self._keeper.close(over=True)

    def _taken(self, fetched: Iterator[tuple[Piece, Any]]) -> Iterator[tuple[Piece, Any]]:
        """What was fetched, in the process that drew it alone: others must not touch its queues, buffers and workers."""
        while True:
            try:
                self.run.stream.check_process()
            except SartorError:
                self._elsewhere = fetched  # its end would be that of the other process's workers
                raise
            taken = next(fetched, None)
            if taken is None:
                return
            yield taken

    def _ahead(self) -> int:
        """Make sure that the steps to come are charged; the step up to which they may be drawn."""
        run, until = self.run, self.run.plan.steps
        if self.draws.stretches is not None:
            until = self.draws.stretches.begin(run.steps)
        if self._keeper is None:
            return until
        parts = run.plan.parts
        if np.any(parts.inclusion < 1):
            until = min(until, int(parts.last[parts.last > run.steps].min()))
        return self._keeper.charge(until)

    def _fetched(self, until: int) -> DataLoader[Any]:
        """The batches up to a step, with none of the next block drawn ahead."""
        seed = int(self.run.stream.generator("workers", self.run.steps).integers(2**62))
        return DataLoader(
            self._source,
            batch_sampler=_Pieces(self.run, self.draws, until),  # type: ignore[arg-type]
            collate_fn=_as_is,
            num_workers=self.workers,
            worker_init_fn=None if self._keeper is None or get_start_method() != "fork" else self._keeper.let_go,
            generator=torch.Generator().manual_seed(seed),  # of the workers; the common generator is the user's
        )

    def batch(self, indices: Sequence[int], seed: int) -> Any:
        """Records as a batch of them would be, for whoever looks at all; random changes to each follow the seed and it alone."""
        if self._source.is_plain:
            return self._source.batch(indices)
        items = []
        for i in indices:
            reseed(seed + int(i))
            items += self._source.records([i])
        reseed(seed)
        return self._source.collate(items)

    def reading(self) -> Reading:
        """What each holder's gradients have cost so far, where norms are tracked. Sensitive: it is of private data, without noise."""
        if self.draws.stretches is None:
            raise SartorError('this run tracks no norms: give tracking=sartor.Tracking("strict", refresh=100), or plan with a filter.')
        return self.draws.stretches.reading()

    def seconds_of_a_step(self) -> float | None:
        """Time a step on copies of the first record, as many as a batch is expected to have; None if that cannot be tried.

        Never on a batch that was drawn: when files are written would tell how large batches are.
        """
        engine, kept = self.run.engine, Kept(self.run.engine.model)
        rows = max(1, round(self.run.plan.batch))
        pieces = -(-rows // (self.draws.size or rows))
        rows = -(-rows // pieces)
        seconds = []
        try:
            with laid_aside(engine, kept, 0):
                for _ in range(2):  # the first one chooses kernels and warms caches
                    begin = time.perf_counter()
                    self._stand_in(engine, rows)
                    seconds.append(time.perf_counter() - begin)
        except SartorError:
            raise
        except Exception:  # a model or loss that takes no copies of one record: whatever it says may show the record
            return None
        return pieces * min(seconds)

    def _stand_in(self, engine: PerExample, rows: int) -> None:
        batch = self._source.batch([0] * rows)
        with engine.batch(torch.ones(rows)):
            if self._loss is None:
                outputs = engine.model(batch[0] if isinstance(batch, list | tuple) else batch)
                outputs.sum().backward()
            else:
                self._loss(engine.model(batch[0]), batch[1]).sum().backward()
            engine.clipped_sums()

    def __repr__(self) -> str:
        return f"PrivateLoader({len(self)} of {self.run.plan.steps} steps left)"


class _Pieces:
    """The pieces of the draws from the run's step on, up to another."""

    def __init__(self, run: Run, draws: Draws, until: int) -> None:
        self._run, self._draws, self._until = run, draws, until

    def __len__(self) -> int:
        return self._until - self._run.steps

    def __iter__(self) -> Iterator[Piece]:
        for step in range(self._run.steps, self._until):
            self._run.drawn = max(self._run.drawn, step + 1)
            yield from self._draws.pieces(step)


class _Fetched(Dataset[Any]):
    """The data set as the workers see it: given a piece it returns that piece's records, collated, and the piece."""

    def __init__(self, dataset: Dataset[Any], collate: Collate | None) -> None:
        self.dataset, self.collate = dataset, default_collate if collate is None else collate
        self.is_plain = type(dataset) is TensorDataset and collate is None
        """Whether records are rows of tensors, collated by nobody."""

    def __getitems__(self, piece: Piece) -> tuple[Piece, Any]:
        return piece, self.batch(piece.indices)

    def batch(self, indices: Sequence[int]) -> Any:
        """Records as one batch."""
        if self.is_plain:
            rows = torch.tensor(indices)
            return [tensor[rows] for tensor in self.dataset.tensors]  # type: ignore[attr-defined]
        return self.collate(self.records(indices))

    def records(self, indices: Sequence[int]) -> list[Any]:
        """Some records, as they are before they are collated."""
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
