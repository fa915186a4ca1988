"""The 1,797 handwritten digits that come with scikit-learn, as 1x8x8 images in [0, 1]; 360 of them, always the same, are the test set."""

from __future__ import annotations

import importlib

import numpy as np

from sartor.data.dataset import Data, dataset
from sartor.data.files import Folder
from sartor.data.split import held_out
from sartor.errors import SartorError

_BRIGHTEST = 16
_TEST_ROWS = 360


def read(folder: Folder = None) -> Data:
    """The digits; they need no folder.

    Example:
        >>> read()
        Data(digits: 1437 training and 360 test rows of shape (1, 8, 8), 10 classes)
    """
    try:
        source = importlib.import_module("sklearn.datasets")
    except ImportError:
        raise SartorError("the digits come with scikit-learn, which is not installed: pip install scikit-learn.") from None
    pixels, labels = source.load_digits(return_X_y=True)
    images = (pixels / _BRIGHTEST).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test = held_out(len(images), _TEST_ROWS)
    notes = ("The split into training and test rows is ours: the source has none.",)
    return Data("digits", dataset(images[train], labels[train]), dataset(images[test], labels[test]), 10, (1, 8, 8), notes=notes)
