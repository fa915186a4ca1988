"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable

from sartor.data import adult, cifar, images, names, words
from sartor.data.dataset import Data, Folder
from sartor.errors import SartorError

_READERS: dict[str, Callable[[Folder], Data]] = {
    "adult": adult.read,
    "cifar10": cifar.read,
    "digits": images.read_digits,
    "fashion-mnist": images.read_fashion,
    "imdb": words.read_imdb,
    "mnist": images.read_mnist,
    "names": names.read,
    "snli": words.read_snli,
    "svhn": images.read_svhn,
}


def available() -> tuple[str, ...]:
    """The names that `load` knows."""
    return tuple(_READERS)


def load(name: str, folder: Folder = None) -> Data:
    """A public data set from its files under `folder`, otherwise under $SARTOR_DATA, otherwise under `data`.

    Example:
        >>> load("digits").shape
        (1, 8, 8)
    """
    if name not in _READERS:
        raise SartorError(f'there is no data set "{name}"; there are {", ".join(_READERS)}.')
    return _READERS[name](folder)
