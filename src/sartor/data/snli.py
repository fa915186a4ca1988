"""SNLI, pairs of sentences: the published `snli_1.0_*.jsonl`, or tables `*.tsv.xz` of label, premise and hypothesis.

Without a training part, the development part is trained on and the notes say so. Pairs without an agreed label are left out.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from torch.utils.data import TensorDataset

from sartor.data import words
from sartor.data.dataset import Data, dataset
from sartor.data.files import Folder, Layout, find, lines, reading
from sartor.documents import parse_json
from sartor.errors import SartorError

LENGTH = 32
LABELS = ("entailment", "neutral", "contradiction")

Pair = tuple[int, str, str]

_PLACES = ("snli_1.0", "snli", ".")
_LAYOUTS = tuple(
    Layout(part, _PLACES, (names(part), names("test")))
    for names in (
        lambda part: (f"snli_1.0_{part}.jsonl",),
        lambda part: (f"{part}.tsv.xz", f"{part}.tsv"),
    )
    for part in ("train", "dev")
)


def read(folder: Folder = None) -> Data:
    """Whether the second sentence follows from the first, contradicts it or neither: two rows of 32 words, by a hashed vocabulary."""
    found = find("snli", folder, _LAYOUTS)
    train, test = (_encoded(path) for path in found.files)
    notes = ("There is no training part in the folder: the development part is trained on.",) if found.layout == "dev" else ()
    return Data("snli", train, test, len(LABELS), (2, LENGTH), vocabulary=words.VOCABULARY, notes=notes)


def _pairs(path: Path) -> list[Pair]:
    if path.suffix == ".jsonl":
        rows = [parse_json(line) for line in lines(path)]
        return [(LABELS.index(row["gold_label"]), row["sentence1"], row["sentence2"]) for row in rows if row["gold_label"] != "-"]
    fields = [line.split("\t") for line in lines(path)]
    return [(int(label), premise, hypothesis) for label, premise, hypothesis in fields]


def _encoded(path: Path) -> TensorDataset:
    with reading(path, "pairs of sentences"):
        pairs = _pairs(path)
    if not pairs:
        raise SartorError(f"{path} has no pairs of sentences with a label.")
    inputs = np.stack([[words.tokens(first, LENGTH), words.tokens(second, LENGTH)] for _, first, second in pairs])
    return dataset(inputs, np.array([label for label, _, _ in pairs]))
