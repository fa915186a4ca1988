"""Whose row it is: one row for each holder, and no holder's row where rows are taken to be public. No message names a key or shows a row.

Rows are what a plan protects, so a holder with several of them would be protected less than they asked for, and counted more than once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from hashlib import blake2b

from torch.utils.data import TensorDataset

from sartor.errors import SartorError
from sartor.names import alike
from sartor.overlap import shared


def refuse_repeated(keys: Sequence[str], where: str) -> None:
    """Refuse holders that appear more than once, also under another spelling."""
    again = len(keys) - len(set(keys))
    if again:
        raise SartorError(
            f"{again} of {len(keys)} rows in {where} name a holder who has a row already, and several rows of one person are not supported "
            "yet: bring it to one row for each holder first (aggregate them, or keep one row each)."
        )
    again = len(keys) - len({alike(key) for key in keys})
    if again:
        raise SartorError(
            f"{again} of {len(keys)} rows in {where} name a holder who differs from another only in spaces, case or the way a number is "
            "written, so both may be one person: write every holder in one way, with one row each."
        )


def refuse_shared(keys: Sequence[str], others: Sequence[str]) -> None:
    """Refuse test rows of holders whose data are trained on."""
    known = {alike(key) for key in keys}
    shared = sum(alike(key) in known for key in others)
    if shared:
        raise SartorError(
            f"{shared} of {len(others)} test rows are of holders who are in the table that is trained on: accuracy on them would be a "
            "figure about people who are protected; give test rows of others, who agreed to that."
        )


def refuse_trained(private: Sequence[TensorDataset], test: TensorDataset) -> None:
    """Refuse test rows that are the private rows: all of them in any order, or more of them than chance explains (`overlap`).

    Rows are compared as a model sees them, so neither their order nor formats, nor columns that are no features, make a difference.
    """
    tested = shared(sum(map(_counted, private), Counter()), _counted(test))
    if tested:
        raise SartorError(
            f"{tested} of {len(test)} test rows are rows of the private data: accuracy on them would be a figure about people who are "
            "protected; give test rows of others, who agreed to that."
        )


def _counted(rows: TensorDataset) -> Counter[bytes]:
    inputs, labels = rows.tensors
    flat = (inputs.flatten(1) + 0).numpy()  # adding 0 makes one of both zeros
    return Counter(blake2b(x.tobytes() + y.tobytes(), digest_size=16).digest() for x, y in zip(flat, labels.numpy(), strict=True))
