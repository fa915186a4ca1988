"""MNIST and Fashion-MNIST: the original IDX files, plain or gzipped, in torchvision's layout or directly in the folder."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sartor.data.dataset import Data, dataset
from sartor.data.files import Folder, Layout, find, opened, reading
from sartor.data.images import normalised
from sartor.errors import SartorError

_UNSIGNED_BYTES = 0x08


def read_mnist(folder: Folder = None) -> Data:
    """Handwritten digits: 60,000 and 10,000 images of 1x28x28."""
    return _read("mnist", folder, ("MNIST/raw", "MNIST", "mnist", "."), mean=0.1307, std=0.3081)


def read_fashion(folder: Folder = None) -> Data:
    """Photographs of clothes: 60,000 and 10,000 images of 1x28x28."""
    return _read("fashion-mnist", folder, ("FashionMNIST/raw", "FashionMNIST", "fashion-mnist", "."), mean=0.2860, std=0.3530)


def _read(name: str, folder: Folder, places: tuple[str, ...], *, mean: float, std: float) -> Data:
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
