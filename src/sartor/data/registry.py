"""Data sets by name."""

from __future__ import annotations

from collections.abc import Callable

from sartor.data import adult, cifar, digits, imdb, mnist, names, snli, svhn
from sartor.data.dataset import Data
from sartor.data.files import Folder
from sartor.errors import SartorError

_READERS: dict[str, Callable[[Folder], Data]] = {
    "adult": adult.read,
    "cifar10": cifar.read,
    "digits": digits.read,
    "fashion-mnist": mnist.read_fashion,
    "imdb": imdb.read,
    "mnist": mnist.read_mnist,
    "names": names.read,
    "snli": snli.read,
    "svhn": svhn.read,
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
