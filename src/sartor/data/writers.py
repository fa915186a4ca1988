"""Who wrote each MNIST digit: the writers' numbers that QMNIST found, one for each training image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sartor.data.files import Folder, Layout, find, opened, reading
from sartor.errors import SartorError

_FILE = "qmnist-train-labels-idx2-int"
_HEADER, _COLUMNS, _CLASS, _WRITER = 12, 8, 0, 2


def read_writers(folder: Folder = None, labels: NDArray[np.integer] | None = None) -> NDArray[np.int64]:
    """The writer of each of MNIST's 60,000 training images; with `labels`, refuses a file that describes other images."""
    layout = Layout("qmnist", ("qmnist_writers", "QMNIST/raw", "MNIST/raw", "."), ((_FILE, f"{_FILE}.gz"),))
    path = find("the writers of MNIST", folder, [layout]).files[0]
    with reading(path, "QMNIST's labels"), opened(path) as file:
        rows = np.frombuffer(file.read(), ">i4", offset=_HEADER).reshape(-1, _COLUMNS)
    if labels is not None and not np.array_equal(rows[: len(labels), _CLASS], labels):
        raise SartorError(f"{path} does not belong to these images: its classes differ from theirs.")
    count = len(rows) if labels is None else len(labels)
    return rows[:count, _WRITER].astype(np.int64)
