"""Data sets of texts, and words to tokens by a fixed hash, so that no vocabulary is learned from anybody's text; token 0 is padding.

IMDB is the Large Movie Review Dataset: its folder `aclImdb`, or tables `train.tsv.xz` of label, stars, id and text. SNLI is the published
`snli_1.0_*.jsonl`, or tables `*.tsv.xz` of label, premise and hypothesis: without a training part, the development part is trained on and
the notes say so, and pairs without an agreed label are left out.
"""

from __future__ import annotations

import re
import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from sartor.data.dataset import Data, Folder, Layout, dataset, find, lines, reading
from sartor.documents import parse_json
from sartor.errors import SartorError

VOCABULARY = 10_000

_WORD = re.compile(r"[^\W_]+(?:'[^\W_]+)*")


def token(word: str) -> int:
    """The token of a word, from 1 to VOCABULARY - 1; different words may share one."""
    return 1 + zlib.crc32(word.lower().encode()) % (VOCABULARY - 1)


def tokens(text: str, length: int) -> NDArray[np.int64]:
    """The first `length` words of a text as tokens, padded at the end.

    Example:
        >>> tokens("It's good.", 4).tolist() == [token("it's"), token("good"), 0, 0]
        True
    """
    row = np.zeros(length, np.int64)
    for position, match in zip(range(length), _WORD.finditer(text), strict=False):
        row[position] = token(match.group())
    return row


REVIEW_LENGTH = 256

_REVIEWS = (
    Layout("folder", ("aclImdb", "."), (("train/pos",), ("train/neg",), ("test/pos",), ("test/neg",))),
    Layout("table", ("imdb", "."), (("train.tsv.xz", "train.tsv"), ("test.tsv.xz", "test.tsv"))),
)


def read_imdb(folder: Folder = None) -> Data:
    """Whether a review is favourable: the first 256 words of each, by a hashed vocabulary."""
    found = find("imdb", folder, _REVIEWS)
    if found.layout == "folder":
        train, test = (_encoded_reviews(_reviews_in_folder(found.folder / part)) for part in ("train", "test"))
    else:
        train, test = (_encoded_reviews(_reviews_in_table(path)) for path in found.files)
    return Data("imdb", train, test, 2, (REVIEW_LENGTH,), vocabulary=VOCABULARY)


def _reviews_in_folder(folder: Path) -> list[tuple[str, int]]:
    rows = []
    for label, name in enumerate(("neg", "pos")):
        for path in sorted((folder / name).glob("*.txt"), key=lambda path: (len(path.stem), path.stem)):
            with reading(path, "UTF-8 text"):
                rows.append((path.read_text(encoding="utf-8"), label))
    if not rows:
        raise SartorError(f"{folder} has no reviews: looked for pos/*.txt and neg/*.txt.")
    return rows


def _reviews_in_table(path: Path) -> list[tuple[str, int]]:
    with reading(path, "reviews"):
        fields = [line.split("\t", 3) for line in lines(path)]
        return [(row[3], int(row[0])) for row in fields]


def _encoded_reviews(rows: list[tuple[str, int]]) -> TensorDataset:
    inputs = np.stack([tokens(text.replace("<br />", " "), REVIEW_LENGTH) for text, _ in rows])
    return dataset(inputs, np.array([label for _, label in rows]))


SENTENCE_LENGTH = 32
LABELS = ("entailment", "neutral", "contradiction")

Pair = tuple[int, str, str]

_SNLI_PLACES = ("snli_1.0", "snli", ".")
_SNLI = tuple(
    Layout(part, _SNLI_PLACES, (names(part), names("test")))
    for names in (
        lambda part: (f"snli_1.0_{part}.jsonl",),
        lambda part: (f"{part}.tsv.xz", f"{part}.tsv"),
    )
    for part in ("train", "dev")
)


def read_snli(folder: Folder = None) -> Data:
    """Whether the second sentence follows from the first, contradicts it or neither: two rows of 32 words, by a hashed vocabulary."""
    found = find("snli", folder, _SNLI)
    train, test = (_encoded_pairs(path) for path in found.files)
    notes = ("There is no training part in the folder: the development part is trained on.",) if found.layout == "dev" else ()
    return Data("snli", train, test, len(LABELS), (2, SENTENCE_LENGTH), vocabulary=VOCABULARY, notes=notes)


def _pairs(path: Path) -> list[Pair]:
    if path.suffix == ".jsonl":
        rows = [parse_json(line) for line in lines(path)]
        return [(LABELS.index(row["gold_label"]), row["sentence1"], row["sentence2"]) for row in rows if row["gold_label"] != "-"]
    fields = [line.split("\t") for line in lines(path)]
    return [(int(label), premise, hypothesis) for label, premise, hypothesis in fields]


def _encoded_pairs(path: Path) -> TensorDataset:
    with reading(path, "pairs of sentences"):
        pairs = _pairs(path)
    if not pairs:
        raise SartorError(f"{path} has no pairs of sentences with a label.")
    inputs = np.stack([[tokens(first, SENTENCE_LENGTH), tokens(second, SENTENCE_LENGTH)] for _, first, second in pairs])
    return dataset(inputs, np.array([label for label, _, _ in pairs]))
