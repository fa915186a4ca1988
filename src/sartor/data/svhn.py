"""SVHN, house numbers in the cropped format: `train_32x32.mat` and `test_32x32.mat`, in which the label 10 stands for the digit 0."""

from __future__ import annotations

import importlib
from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from sartor.data.dataset import Data, dataset
from sartor.data.files import Folder, Layout, find, reading
from sartor.data.images import normalised

MEAN, STD = (0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)

_LAYOUTS = (Layout("matlab", ("svhn", "SVHN", "."), (("train_32x32.mat",), ("test_32x32.mat",))),)


def read(folder: Folder = None) -> Data:
    """Photographs of digits on houses: 73,257 and 26,032 images of 3x32x32."""
    train, test = (_part(path) for path in find("svhn", folder, _LAYOUTS).files)
    return Data("svhn", train, test, 10, (3, 32, 32))


def _part(path: Path) -> TensorDataset:
    with reading(path, "a MATLAB file"):
        content = importlib.import_module("scipy.io").loadmat(path, variable_names=("X", "y"))
        pixels = np.asarray(content["X"], np.uint8).transpose(3, 2, 0, 1)
        return dataset(normalised(pixels, MEAN, STD), content["y"].reshape(-1).astype(np.int64) % 10)
