"""Data sets of images, and pixels to inputs: bytes to [0, 1], then published constants per channel. Nothing is measured on the data.

MNIST and Fashion-MNIST are the original IDX files, plain or gzipped, in torchvision's layout or directly in the folder; QMNIST found who
wrote each digit. SVHN is house numbers in the cropped format, in which the label 10 stands for the digit 0. The digits are the 1,797 that
come with scikit-learn, as 1x8x8 images; 360 of them, always the same, are the test set.
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.data.dataset import Data, Folder, Layout, dataset, find, held_out, opened, reading
from sartor.errors import SartorError

_QMNIST = "qmnist-train-labels-idx2-int"
_HEADER, _COLUMNS, _CLASS, _WRITER = 12, 8, 0, 2
_UNSIGNED_BYTES = 0x08
_SVHN = Layout("matlab", ("svhn", "SVHN", "."), (("train_32x32.mat",), ("test_32x32.mat",)))
_SVHN_MEAN, _SVHN_STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)
_BRIGHTEST, _TEST_DIGITS = 16, 360


def normalised(pixels: NDArray[np.uint8], mean: Sequence[float], std: Sequence[float]) -> torch.Tensor:
    """Images (rows, channels, height, width) of bytes as float32: (pixel / 255 - mean) / std per channel.

    Example:
        >>> normalised(np.full((1, 1, 2, 2), 255, np.uint8), [0.5], [0.5]).unique().tolist()
        [1.0]
    """
    images = torch.from_numpy(np.array(pixels, np.float32, order="C"))
    per_channel = (1, len(mean), 1, 1)
    return images.div_(255).sub_(torch.tensor(mean).reshape(per_channel)).div_(torch.tensor(std).reshape(per_channel))


def read_writers(folder: Folder = None, labels: NDArray[np.integer] | None = None) -> NDArray[np.int64]:
    """The writer of each of MNIST's 60,000 training images; with `labels`, refuses a file that describes other images."""
    layout = Layout("qmnist", ("qmnist_writers", "QMNIST/raw", "MNIST/raw", "."), ((_QMNIST, f"{_QMNIST}.gz"),))
    path = find("the writers of MNIST", folder, [layout]).files[0]
    with reading(path, "QMNIST's labels"), opened(path) as file:
        rows = np.frombuffer(file.read(), ">i4", offset=_HEADER).reshape(-1, _COLUMNS)
    if labels is not None and not np.array_equal(rows[: len(labels), _CLASS], labels):
        raise SartorError(f"{path} does not belong to these images: its classes differ from theirs.")
    count = len(rows) if labels is None else len(labels)
    return rows[:count, _WRITER].astype(np.int64)


def read_mnist(folder: Folder = None) -> Data:
    """Handwritten digits: 60,000 and 10,000 images of 1x28x28."""
    return _read_mnist("mnist", folder, ("MNIST/raw", "MNIST", "mnist", "."), mean=0.1307, std=0.3081)


def read_fashion(folder: Folder = None) -> Data:
    """Photographs of clothes: 60,000 and 10,000 images of 1x28x28."""
    return _read_mnist("fashion-mnist", folder, ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "."), mean=0.2860, std=0.3530)


def _read_mnist(name: str, folder: Folder, places: tuple[str, ...], *, mean: float, std: float) -> Data:
    stems = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
    found = find(name, folder, [Layout("idx", places, tuple((stem, f"{stem}.gz") for stem in stems))])
    x_train, y_train, x_test, y_test = (read_idx(path) for path in found.files)
    parts = [dataset(normalised(x[:, None], [mean], [std]), y) for x, y in ((x_train, y_train), (x_test, y_test))]
    return Data(name, parts[0], parts[1], 10, (1, *x_train.shape[1:]))


def read_idx(path: Path) -> NDArray[np.uint8]:
    """The bytes of an IDX file in their own shape."""
    with reading(path, "an IDX file"), opened(path) as file:
        content = file.read()
        if len(content) < 4 or content[:3] != bytes([0, 0, _UNSIGNED_BYTES]):
            raise SartorError(f"{path} is not an IDX file of bytes.")
        start = 4 + 4 * content[3]
        shape = np.frombuffer(content[4:start], ">u4").astype(int)
        return np.frombuffer(content, np.uint8, offset=start).reshape(shape)


def read_svhn(folder: Folder = None) -> Data:
    """Photographs of digits on houses: 73,257 and 26,032 images of 3x32x32."""
    train, test = (_svhn_part(path) for path in find("svhn", folder, [_SVHN]).files)
    return Data("svhn", train, test, 10, (3, 32, 32))


def _svhn_part(path: Path) -> TensorDataset:
    with reading(path, "a MATLAB file"):
        content = importlib.import_module("scipy.io").loadmat(path, variable_names=("X", "y"))
        pixels = np.asarray(content["X"], np.uint8).transpose(3, 2, 0, 1)
        return dataset(normalised(pixels, _SVHN_MEAN, _SVHN_STD), content["y"].reshape(-1).astype(np.int64) % 10)


def read_digits(folder: Folder = None) -> Data:
    """The digits; they need no folder.

    Example:
        >>> read_digits()
        Data(digits: 1437 training and 360 test rows of shape (1, 8, 8), 10 classes)
    """
    try:
        source = importlib.import_module("sklearn.datasets")
    except ImportError:
        raise SartorError("the digits come with scikit-learn, which is not installed: pip install scikit-learn.") from None
    pixels, labels = source.load_digits(return_X_y=True)
    images = (pixels / _BRIGHTEST).astype(np.float32).reshape(-1, 1, 8, 8)
    train, test = held_out(len(images), _TEST_DIGITS)
    notes = ("The split into training and test rows is ours: the source has none.",)
    return Data("digits", dataset(images[train], labels[train]), dataset(images[test], labels[test]), 10, (1, 8, 8), notes=notes)
