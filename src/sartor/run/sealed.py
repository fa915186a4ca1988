"""Files that belong at one place of one folder: each carries a proof of its folder, its place and its content.

Guarantee: a file that was damaged, cut short, copied over another or brought from another folder is noticed when it is read.
Proof: a hash of place and content under the folder's own secret, which two folders share only if one is a copy of the other.
Breaks if: somebody who can read the folder makes a proof on purpose: whoever can do that can read the votes as well.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError

SIZE = 32
_FORMAT = b"sartor ensemble 1\n"  # ensembles were the first to be kept so
_PERSON = b"sartor.sealed"


def proof(secret: bytes, place: str, parts: Iterable[Any]) -> bytes:
    """What shows that these bytes belong at this place of the folder with this secret."""
    hashed = blake2b(digest_size=SIZE, key=secret, person=_PERSON)
    for part in (place.encode(), *parts):
        hashed.update(digest([part]).encode())  # of one length each, so that nothing can move from one part to the next
    return hashed.digest()


def digest(chunks: Iterable[Any]) -> str:
    """A fingerprint of some bytes."""
    hashed = blake2b(digest_size=SIZE)
    for chunk in chunks:
        hashed.update(chunk)
    return hashed.hexdigest()


def sealed(secret: bytes, place: str, arrays: Mapping[str, NDArray[Any]]) -> bytes:
    """Arrays as the content of a file at this place."""
    content = io.BytesIO()
    np.savez_compressed(content, **arrays)  # type: ignore[arg-type]
    payload = content.getvalue()
    return _FORMAT + proof(secret, place, [payload]) + payload


def opened(secret: bytes, place: str, file: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a file at this place, or one clear error. Nothing in it is a pickle."""
    try:
        content = file.read_bytes()
    except OSError as error:
        raise SartorError(f"{file} cannot be read: {error.strerror}.") from None
    head, payload = content[: len(_FORMAT) + SIZE], content[len(_FORMAT) + SIZE :]
    if head != _FORMAT + proof(secret, place, [payload]):
        raise SartorError(f"{file} is damaged, or was written for another place or folder: put it back from where it was copied.")
    with np.load(io.BytesIO(payload), allow_pickle=False) as stored:
        return dict(stored)
