"""One shape for all data: training rows that belong to holders, test rows that are public, and what a model must know of both.

Rows that were held out of a private table are neither: they are not trained on, no budget covers them, and figures about them are
sensitive.

Inputs are float32, or int64 where they are tokens; labels are int64. `budgets` and `holders`, where there are any, have one entry for each
holder. Row i of `train` belongs to holder i, or to the one that `ownership` says where holders have several rows. Nothing here prints a
record, a key or a budget, nor how many rows somebody has.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.ownership import Ownership
from sartor.run import sealed

ONE_ROW = "one training row"


@dataclass(frozen=True, eq=False, repr=False)
class Data:
    """Training and test rows, the classes, the shape of one input, and who holds the rows.

    `vocabulary` is how many tokens there are, padding (token 0) included, where inputs are tokens. `holders` are the names of the holders,
    where the source has any, each once. `ownership` says whose the training rows are; it is None where each is a holder's only one.
    `held_out` are private rows that are not trained on, of holders who have no training row. `notes` say in words what a reader of results
    should know about the source, and `one_holder` what counts as one holder. `labels` name the classes, where the names are public.
    `attributes` are further columns that were asked for, with one text for each training row. `from_private` says what was taken from
    private rows before anything was trained, and so follows them outside of every budget; it is empty where nothing was.
    """

    name: str
    train: TensorDataset
    test: TensorDataset
    classes: int
    shape: tuple[int, ...]
    vocabulary: int | None = None
    holders: tuple[str, ...] | None = None
    budgets: Budgets | None = None
    notes: tuple[str, ...] = ()
    held_out: TensorDataset | None = None
    ownership: Ownership | None = None
    one_holder: str = ONE_ROW
    labels: tuple[str, ...] | None = None
    attributes: Mapping[str, Sequence[str]] = field(default_factory=dict)
    from_private: str = ""

    def __post_init__(self) -> None:
        if self.ownership is not None and len(self.ownership) != len(self.train):
            raise SartorError(f"{self.name} has {len(self.train)} training rows, but the ownership is of {len(self.ownership)} records.")
        unit, several = ("row", "training rows") if self.ownership is None else ("holder", "holders")
        for what, of in (("names of holders", self.holders), ("budgets", self.budgets)):
            if of is not None and len(of) != self.people:
                raise SartorError(f"{self.name} has {self.people} {several} but {len(of)} {what}; give one for each {unit}.")
        held = () if self.held_out is None else (("held-out", self.held_out),)
        for part, pairs in (("training", self.train), ("test", self.test), *held):
            inputs, labels = pairs.tensors
            if tuple(inputs.shape[1:]) != self.shape:
                raise SartorError(f"the {part} rows of {self.name} have shape {tuple(inputs.shape[1:])} instead of {self.shape}.")
            outside = int(((labels < 0) | (labels >= self.classes)).sum())
            if outside:
                raise SartorError(f"{outside} {part} rows of {self.name} have a label outside 0 to {self.classes - 1}.")

    @property
    def people(self) -> int:
        """How many holders there are."""
        return len(self.train) if self.ownership is None else self.ownership.holders

    @property
    def names_of_classes(self) -> tuple[str, ...]:
        """A public name for each class: its own, or its number among the outputs of the model, which everybody sees."""
        return tuple(str(place) for place in range(self.classes)) if self.labels is None else self.labels

    def fingerprint(self) -> str:
        """By which the same training rows of the same holders, in the same order, are known again. Sensitive: it follows from the rows."""
        return sealed.digest(self._content())

    def _content(self) -> Iterator[bytes]:
        owners = None if self.ownership is None else self.ownership.of_record.tolist()
        shapes = [list(tensor.shape) for tensor in self.train.tensors]
        yield json.dumps([shapes, self.holders, owners]).encode()
        for tensor in self.train.tensors:
            yield np.ascontiguousarray(tensor.numpy()).tobytes()

    def __repr__(self) -> str:
        rows = f"{len(self.train)} training and {len(self.test)} test rows"
        if self.ownership is not None:
            rows = f"{len(self.train)} training rows of {self.people} holders and {len(self.test)} test rows"
        tokens = f", {self.vocabulary} tokens" if self.vocabulary else ""
        return f"Data({self.name}: {rows} of shape {self.shape}, {self.classes} classes{tokens})"


def dataset(inputs: NDArray[np.generic] | torch.Tensor, labels: NDArray[np.generic]) -> TensorDataset:
    """Inputs and labels as tensors of one row each: integers become int64 tokens, everything else float32."""
    x = inputs if isinstance(inputs, torch.Tensor) else torch.from_numpy(np.ascontiguousarray(inputs))
    y = torch.from_numpy(np.array(labels, np.int64))
    if len(x) != len(y):
        raise SartorError(f"there are {len(x)} inputs but {len(y)} labels.")
    return TensorDataset(x.to(torch.float32 if x.is_floating_point() else torch.int64), y)
