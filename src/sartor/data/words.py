"""Words to tokens by a fixed hash, so that no vocabulary is learned from anybody's text; token 0 is padding."""

from __future__ import annotations

import re
import zlib

import numpy as np
from numpy.typing import NDArray

VOCABULARY = 10_000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def token(word: str) -> int:
    """The token of a word, from 1 to VOCABULARY - 1; different words may share one."""
    return 1 + zlib.crc32(word.lower().encode()) % (VOCABULARY - 1)


def tokens(text: str, length: int) -> NDArray[np.int64]:
    """The first `length` words of a text as tokens, padded at the end.

    Example:
        >>> tokens("It's good.", 4).tolist() == [token("it's"), token("good"), 0, 0]
        True
    """
    row = np.zeros(length, np.int64)
    for position, match in zip(range(length), _WORD.finditer(text), strict=False):
        row[position] = token(match.group())
    return row
