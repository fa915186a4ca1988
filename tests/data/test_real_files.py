"""Public data sets from their real files, where they are at hand: in the folder that SARTOR_DATA names, or beside the repository."""

import os
from pathlib import Path

import pytest

from sartor import SartorError
from sartor.data import HeldOut, load, read_table

FOLDER = Path(os.environ.get("SARTOR_DATA") or Path(__file__).parents[3] / "shared" / "data")

EXPECTED = {
    "adult": (32_561, 16_281, 2, (105,), [0, 0, 0, 0, 0, 0, 0, 1]),
    "cifar10": (50_000, 10_000, 10, (3, 32, 32), [6, 9, 9, 4, 1, 1, 2, 7]),
    "fashion-mnist": (60_000, 10_000, 10, (1, 28, 28), [9, 0, 0, 3, 0, 2, 7, 2]),
    "imdb": (12_500, 5_000, 2, (256,), [0, 1, 0, 1, 0, 1]),
    "mnist": (60_000, 10_000, 10, (1, 28, 28), [5, 0, 4, 1, 9, 2, 1, 3]),
    "names": (16_040, 4_010, 18, (20,), []),
    "snli": (9_842, 9_824, 3, (2, 32), [1, 0, 2]),
}


def loaded(name):
    try:
        return load(name, FOLDER)
    except SartorError as error:
        if "no folder" in str(error) or "was not found" in str(error):
            pytest.skip(f"the files of {name} are not in {FOLDER}")
        raise


@pytest.mark.parametrize("name", [pytest.param(name, marks=pytest.mark.long) if name == "cifar10" else name for name in EXPECTED])
def test_counts_and_first_labels_are_the_published_ones(name):
    data = loaded(name)
    train, test, classes, shape, first = EXPECTED[name]
    assert (len(data.train), len(data.test), data.classes, data.shape) == (train, test, classes, shape)
    labels = data.train.tensors[1]
    assert labels[: len(first)].tolist() == first
    counts = labels.bincount(minlength=classes).tolist()
    if name in ("cifar10", "fashion-mnist"):
        assert counts == [train // 10] * 10
    if name == "adult":
        assert counts == [24_720, 7_841]
    if name == "names":
        assert (labels == 14).sum() + (data.test.tensors[1] == 14).sum() == 9_384
    if name == "imdb":
        assert counts == [6_250, 6_250]
    if data.vocabulary is not None:
        assert 0 <= data.train.tensors[0].min() <= data.train.tensors[0].max() < data.vocabulary
    elif name != "adult":  # published constants of MNIST, Fashion-MNIST and CIFAR-10 centre the training images
        assert abs(data.train.tensors[0].mean().item()) < 0.01
        assert abs(data.train.tensors[0].std().item() - 1) < 0.05


def test_every_category_of_the_adult_data_is_in_its_documentation():
    inputs = loaded("adult").train.tensors[0]
    begin = 0
    for width, missing in ((1, 0), (8, 1_836), (1, 0), (16, 0), (1, 0), (7, 0), (14, 1_843), (6, 0), (5, 0), (2, 0), (3, 0), (41, 583)):
        part = inputs[:, begin : begin + width]
        if width not in (1, 3):
            assert int((part.sum(1) == 0).sum()) == missing
        begin += width
    assert begin == 105


def test_a_real_table_with_keys():
    path = FOLDER / "pums" / "PUMS_pid.csv"
    if not path.is_file():
        pytest.skip(f"{path} is not there")
    bounds = {"age": (18, 100), "educ": (1, 16), "income": (0, 500_000)}
    categories = {"sex": ["0", "1"], "race": [str(i) for i in range(1, 7)]}
    with pytest.warns(HeldOut):
        data = read_table(path, "married", id_column="pid", bounds=bounds, categories=categories, classes=["0", "1"], test_share=0.2)
    assert (len(data.train), len(data.held_out), data.shape) == (800, 200, (11,))
    assert len(set(data.holders)) == 800
