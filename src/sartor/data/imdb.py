"""Film reviews of the Large Movie Review Dataset: its folder `aclImdb`, or tables `train.tsv.xz` of label, stars, id and text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from sartor.data import words
from sartor.data.dataset import Data, dataset
from sartor.data.files import Folder, Layout, find, lines, reading
from sartor.errors import SartorError

LENGTH = 256

_LAYOUTS = (
    Layout("folder", ("aclImdb", "."), (("train/pos",), ("train/neg",), ("test/pos",), ("test/neg",))),
    Layout("table", ("imdb", "."), (("train.tsv.xz", "train.tsv"), ("test.tsv.xz", "test.tsv"))),
)


def read(folder: Folder = None) -> Data:
    """Whether a review is favourable: the first 256 words of each, by a hashed vocabulary."""
    found = find("imdb", folder, _LAYOUTS)
    if found.layout == "folder":
        train, test = (_encoded(_from_folder(found.folder / part)) for part in ("train", "test"))
    else:
        train, test = (_encoded(_from_table(path)) for path in found.files)
    return Data("imdb", train, test, 2, (LENGTH,), vocabulary=words.VOCABULARY)


def _from_folder(folder: Path) -> list[tuple[str, int]]:
    rows = []
    for label, name in enumerate(("neg", "pos")):
        for path in sorted((folder / name).glob("*.txt"), key=lambda path: (len(path.stem), path.stem)):
            with reading(path, "UTF-8 text"):
                rows.append((path.read_text(encoding="utf-8"), label))
    if not rows:
        raise SartorError(f"{folder} has no reviews: looked for pos/*.txt and neg/*.txt.")
    return rows


def _from_table(path: Path) -> list[tuple[str, int]]:
    with reading(path, "reviews"):
        fields = [line.split("\t", 3) for line in lines(path)]
        return [(row[3], int(row[0])) for row in fields]


def _encoded(rows: list[tuple[str, int]]) -> TensorDataset:
    inputs = np.stack([words.tokens(text.replace("<br />", " "), LENGTH) for text, _ in rows])
    return dataset(inputs, np.array([label for _, label in rows]))
