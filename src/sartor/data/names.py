"""Surnames of 18 nationalities, one file each, as characters of a fixed alphabet; a fifth, always the same, is the test set."""

from __future__ import annotations

import string
import unicodedata

import numpy as np
from numpy.typing import NDArray

from sartor.data.dataset import Data, Folder, Layout, dataset, find, held_out, lines

ALPHABET = string.ascii_letters + " .,;'-"
LENGTH = 20
VOCABULARY = len(ALPHABET) + 2

_UNKNOWN = VOCABULARY - 1
_POSITION = {letter: i for i, letter in enumerate(ALPHABET, start=1)}
_NATIONS = (
    "Arabic",
    "Chinese",
    "Czech",
    "Dutch",
    "English",
    "French",
    "German",
    "Greek",
    "Irish",
    "Italian",
    "Japanese",
    "Korean",
    "Polish",
    "Portuguese",
    "Russian",
    "Scottish",
    "Spanish",
    "Vietnamese",
)
_LAYOUTS = (Layout("files", ("names", "data/names", "."), tuple((f"{nation}.txt",) for nation in _NATIONS)),)


def read(folder: Folder = None) -> Data:
    """Whose name it may be: 16,040 and 4,010 names of at most 20 characters, in 18 classes."""
    found = find("names", folder, _LAYOUTS)
    pairs = [(line.strip(), label) for label, path in enumerate(found.files) for line in lines(path)]
    inputs = np.stack([tokens(name) for name, _ in pairs])
    labels = np.array([label for _, label in pairs])
    train, test = held_out(len(pairs), round(len(pairs) / 5))
    parts = [dataset(inputs[rows], labels[rows]) for rows in (train, test)]
    notes = ("The split into training and test rows is ours: the source has none, and some names stand in it more than once.",)
    return Data("names", parts[0], parts[1], len(_NATIONS), (LENGTH,), vocabulary=VOCABULARY, notes=notes)


def tokens(name: str) -> NDArray[np.int64]:
    """The characters of a name without accents: 0 is padding, the last token stands for letters that the alphabet lacks.

    Example:
        >>> tokens("Éa")[:3].tolist() == [ALPHABET.index("E") + 1, ALPHABET.index("a") + 1, 0]
        True
    """
    letters = [letter for letter in unicodedata.normalize("NFD", name) if not unicodedata.combining(letter)]
    row = np.zeros(LENGTH, np.int64)
    known = [_POSITION.get(letter, _UNKNOWN) for letter in letters[:LENGTH]]
    row[: len(known)] = known
    return row
