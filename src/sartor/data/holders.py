"""Who is who: no holder under two names, and no holder's row where rows are taken to be public. No message names a key or shows a row.

A holder under two names would have two budgets, and be protected less than they asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.names import alike
from sartor.overlap import shared


def refuse_two_spellings(names: Sequence[str], where: str) -> None:
    """Refuse different names that may be one person."""
    again = len(names) - len({alike(name) for name in names})
    if again:
        raise SartorError(
            f"{again} of {len(names)} holders in {where} differ from another only in spaces, case or the way a number is written, so both "
            "may be one person: write every holder in one way, on all of their rows."
        )


def refuse_shared(names: Sequence[str], others: Sequence[str]) -> None:
    """Refuse test rows of holders whose data are trained on."""
    known = {alike(name) for name in names}
    shared = sum(alike(name) in known for name in others)
    if shared:
        raise SartorError(
            f"{shared} of {len(others)} test rows are of holders who are in the table that is trained on: accuracy on them would be a "
            "figure about people who are protected; give test rows of others, who agreed to that."
        )


def refuse_trained(private: Sequence[TensorDataset], test: TensorDataset, owners: NDArray[np.int64] | None = None) -> None:
    """Refuse test rows that are the private rows: all of them in any order, or more of them than chance explains (`overlap`).

    Rows are compared as a model sees them, so neither their order nor formats, nor columns that are no features, make a difference.
    `owners` says whose each private row is, part after part. Equal rows of one holder tell nothing of how often strangers agree, so rows
    are then also compared with each holder's counted once.
    """
    if not len(test):
        return
    public, rows = Counter(_digests(test)), [digest for part in private for digest in _digests(part)]
    ways = [Counter(rows)]
    if owners is not None:
        ways.append(Counter(digest for _, digest in set(zip(owners.tolist(), rows, strict=True))))
    tested = max(shared(way, public) for way in ways)
    if tested:
        raise SartorError(
            f"{tested} of {len(test)} test rows are rows of the private data: accuracy on them would be a figure about people who are "
            "protected; give test rows of others, who agreed to that."
        )


def _digests(rows: TensorDataset) -> Iterable[bytes]:
    inputs, labels = rows.tensors
    flat = (inputs.flatten(1) + 0).numpy()  # adding 0 makes one of both zeros
    return (blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest() for x, y in zip(flat, labels.numpy(), strict=True))
