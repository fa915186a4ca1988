"""Arrays of one's own: every way to store them, and what is refused."""

import io
import lzma

import numpy as np
import pytest
import torch

from sartor import InvalidBudget, SartorError
from sartor.data import read_arrays

ARRAYS = {
    "x_train": np.linspace(-1, 1, 24).reshape(4, 2, 3),
    "y_train": np.array([0, 2, 1, 0]),
    "x_test": np.zeros((2, 2, 3)),
    "y_test": np.array([2, 0]),
}


def write(folder, arrays, how="npy"):
    if how == "npz":
        np.savez(folder / "mine.npz", **arrays)
        return folder
    for name, array in arrays.items():
        buffer = io.BytesIO()
        np.save(buffer, array, allow_pickle=True)
        content = buffer.getvalue()
        (folder / f"{name}.{how}").write_bytes(lzma.compress(content) if how == "npy.xz" else content)
    return folder


@pytest.mark.parametrize("how", ["npy", "npy.xz", "npz"])
def test_every_way_to_store_arrays_gives_the_same_data(tmp_path, how):
    budgets = {"epsilon": np.array([1.0, 3.0, 2.0, 1.0]), "delta": np.array(1e-5)}
    data = read_arrays(write(tmp_path, {**ARRAYS, **budgets}, how))
    assert (data.classes, data.shape, data.vocabulary) == (3, (2, 3), None)
    np.testing.assert_allclose(data.train.tensors[0].numpy(), ARRAYS["x_train"], atol=1e-7)
    assert data.train.tensors[0].dtype == torch.float32
    assert data.train.tensors[1].tolist() == [0, 2, 1, 0]
    assert data.budgets.epsilon.tolist() == [1, 3, 2, 1]
    assert data.budgets.delta.tolist() == [1e-5] * 4


def test_one_bundle_may_be_named_itself(tmp_path):
    write(tmp_path, ARRAYS, "npz")
    assert read_arrays(tmp_path / "mine.npz").budgets is None


def test_bytes_are_pixels_and_integers_are_tokens(tmp_path):
    pixels = {**ARRAYS, "x_train": np.full((4, 1, 2, 2), 255, np.uint8), "x_test": np.zeros((2, 1, 2, 2), np.uint8)}
    assert read_arrays(write(tmp_path, pixels)).train.tensors[0].unique().tolist() == [1.0]
    tokens = {**ARRAYS, "x_train": np.array([[1, 0], [2, 3], [1, 1], [4, 0]]), "x_test": np.array([[4, 0], [1, 1]])}
    data = read_arrays(write(tmp_path, tokens))
    assert (data.vocabulary, data.train.tensors[0].dtype) == (5, torch.int64)
    assert read_arrays(tmp_path, vocabulary=9).vocabulary == 9


def changed(name, value):
    return {**ARRAYS, name: value}


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({name: array for name, array in ARRAYS.items() if name != "y_test"}, "lacks y_test"),
        (changed("x_train", np.array([[object()]] * 4, object)), "without pickled objects"),
        (changed("x_train", np.full((4, 2, 3), np.nan)), "4 of 4 rows of x_train hold NaN"),
        (changed("x_train", np.zeros((4, 2, 3), complex)), "must hold numbers"),
        (changed("x_train", np.zeros((4, 5))), "same shape"),
        (changed("x_train", np.zeros((4, 2, 3), np.int64)), "both hold tokens"),
        (changed("x_train", np.zeros((3, 2, 3))), "3 inputs but 4 labels"),
        (changed("y_train", np.array([0, 1, 2, 7])), "classes outside 0 to 2"),
        (changed("y_train", np.array([0, 1, 2, -1])), "classes outside 0 to 2"),
        (changed("y_train", np.array([0.0, 1, 2, 1])), "whole number"),
        (changed("epsilon", np.ones(4)), "need a delta"),
        (changed("delta", np.array(1e-5)), "no epsilon"),
        ({**changed("epsilon", np.ones(3)), "delta": np.array(1e-5)}, "3 budgets"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason(tmp_path, arrays, words):
    write(tmp_path, arrays)
    with pytest.raises(SartorError, match=words):
        read_arrays(tmp_path)


def test_more_refusals(tmp_path):
    with pytest.raises(SartorError, match="no folder"):
        read_arrays(tmp_path / "nowhere")
    write(tmp_path, {**ARRAYS, "epsilon": np.array([1, 0, 1, 1.0])})
    with pytest.raises(InvalidBudget, match="zero"):
        read_arrays(tmp_path, delta=1e-5)
    (tmp_path / "epsilon.npy").unlink()
    with pytest.raises(SartorError, match="no vocabulary"):
        read_arrays(tmp_path, vocabulary=5)
    (tmp_path / "x_train.npy").write_bytes(b"broken")
    with pytest.raises(SartorError, match=r"x_train\.npy cannot be read"):
        read_arrays(tmp_path)


def test_nothing_shows_records_or_budgets(tmp_path):
    planted = {**ARRAYS, "x_train": np.full((4, 2, 3), 31.415), "epsilon": np.array([1, 1, 1, 2.718]), "delta": np.array(1e-5)}
    shown = repr(read_arrays(write(tmp_path, planted)))
    assert "31.4" not in shown
    assert "2.718" not in shown
