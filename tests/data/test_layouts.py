"""Public data sets from small files made by hand, in every layout in which they are handed around."""

import gzip
import io
import json
import lzma
import pickle
import string

import numpy as np
import pytest
import scipy.io
import torch

from sartor import SartorError
from sartor.data import available, load, words
from sartor.data.dataset import held_out
from sartor.data.names import ALPHABET


def random_bytes(*shape):
    return np.random.default_rng(5).integers(0, 256, shape, dtype=np.uint8)


def as_idx(array):
    return bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes() + array.tobytes()


def write_idx(folder, *, zipped):
    folder.mkdir(parents=True, exist_ok=True)
    images = {"train": random_bytes(4, 28, 28), "t10k": random_bytes(2, 28, 28)}
    for part, pixels in images.items():
        for name, array in ((f"{part}-images-idx3-ubyte", pixels), (f"{part}-labels-idx1-ubyte", np.arange(len(pixels), dtype=np.uint8))):
            content = as_idx(array)
            (folder / (f"{name}.gz" if zipped else name)).write_bytes(gzip.compress(content) if zipped else content)
    return images


@pytest.mark.parametrize("zipped", [False, True])
@pytest.mark.parametrize(
    ("name", "place", "mean", "std"),
    [("mnist", "MNIST/raw", 0.1307, 0.3081), ("mnist", ".", 0.1307, 0.3081), ("fashion-mnist", "FashionMNIST/raw", 0.2860, 0.3530)],
)
def test_idx_files(tmp_path, zipped, name, place, mean, std):
    images = write_idx(tmp_path / place, zipped=zipped)
    data = load(name, tmp_path)
    assert data.train.tensors[1].tolist() == [0, 1, 2, 3]
    expected = (images["t10k"][1].astype(float) / 255 - mean) / std
    np.testing.assert_allclose(data.test[1][0][0].numpy(), expected, atol=1e-5)


def test_the_folder_may_come_from_the_environment(tmp_path, monkeypatch):
    write_idx(tmp_path, zipped=False)
    monkeypatch.setenv("SARTOR_DATA", str(tmp_path))
    assert len(load("mnist").train) == 4


@pytest.mark.parametrize("content", [b"", b"\x00\x00\x0d\x01", as_idx(random_bytes(4, 28, 28))[:-1]])
def test_broken_idx_files_are_refused_by_name(tmp_path, content):
    write_idx(tmp_path, zipped=False)
    (tmp_path / "train-images-idx3-ubyte").write_bytes(content)
    with pytest.raises(SartorError, match="train-images-idx3-ubyte"):
        load("mnist", tmp_path)


def test_a_broken_gzip_is_refused_by_name(tmp_path):
    write_idx(tmp_path, zipped=True)
    (tmp_path / "train-images-idx3-ubyte.gz").write_bytes(b"not gzip")
    with pytest.raises(SartorError, match=r"train-images-idx3-ubyte\.gz"):
        load("mnist", tmp_path)


CIFAR_PARTS = [*(f"data_batch_{i}" for i in range(1, 6)), "test_batch"]


def cifar_rows():
    return random_bytes(12, 3072), np.arange(12) % 10


def check_cifar(data, pixels, labels):
    """Two rows in each of the six files: ten to train on, two to test on."""
    mean, std = np.array([0.4914, 0.4822, 0.4465]), np.array([0.2470, 0.2435, 0.2616])
    expected = (pixels.reshape(12, 3, 32, 32) / 255 - mean[:, None, None]) / std[:, None, None]
    np.testing.assert_allclose(data.train.tensors[0].numpy(), expected[:10], atol=1e-5)
    np.testing.assert_allclose(data.test.tensors[0].numpy(), expected[10:], atol=1e-5)
    assert data.train.tensors[1].tolist() == labels[:10].tolist()
    assert data.test.tensors[1].tolist() == labels[10:].tolist()


def test_cifar_as_binary_files(tmp_path):
    pixels, labels = cifar_rows()
    (tmp_path / "cifar-10-batches-bin").mkdir()
    rows = np.column_stack([labels.astype(np.uint8), pixels])
    for i, part in enumerate(CIFAR_PARTS):
        (tmp_path / "cifar-10-batches-bin" / f"{part}.bin").write_bytes(rows[2 * i : 2 * i + 2].tobytes())
    check_cifar(load("cifar10", tmp_path), pixels, labels)


def write_pickles(folder, pixels, labels, keys=str):
    folder.mkdir(exist_ok=True)
    for i, part in enumerate(CIFAR_PARTS):
        rows = slice(2 * i, 2 * i + 2)
        batch = {keys("data"): pixels[rows], keys("labels"): labels[rows].tolist()}
        (folder / part).write_bytes(pickle.dumps(batch, protocol=2))


@pytest.mark.parametrize("keys", [str, str.encode])
def test_cifar_as_pickles(tmp_path, keys):
    pixels, labels = cifar_rows()
    write_pickles(tmp_path / "cifar-10-batches-py", pixels, labels, keys)
    check_cifar(load("cifar10", tmp_path), pixels, labels)


def old_pickle(pixels, labels):
    """A batch as Python 2 wrote it: texts are bytes, and the array's parts go by their old names."""

    def text(content):
        return b"T" + len(content).to_bytes(4, "little") + content

    kind = b"cnumpy\ndtype\n" + text(b"u1") + b"K\x00K\x01\x87R(K\x03" + text(b"|") + b"NNNJ\xff\xff\xff\xffJ\xff\xff\xff\xffK\x00tb"
    shape = b"K" + bytes([pixels.shape[0]]) + b"M" + (3072).to_bytes(2, "little") + b"\x86"
    array = b"cnumpy.core.multiarray\n_reconstruct\ncnumpy\nndarray\nK\x00\x85" + text(b"b") + b"\x87R"
    array += b"(K\x01" + shape + kind + b"\x89" + text(pixels.tobytes()) + b"tb"
    numbers = b"](" + b"".join(b"K" + bytes([label]) for label in labels) + b"e"
    return b"\x80\x02}(" + text(b"data") + array + text(b"labels") + numbers + b"u."


def test_cifar_as_pickles_of_python_2(tmp_path):
    pixels, labels = cifar_rows()
    for i, part in enumerate(CIFAR_PARTS):
        (tmp_path / part).write_bytes(old_pickle(pixels[2 * i : 2 * i + 2], labels[2 * i : 2 * i + 2].tolist()))
    check_cifar(load("cifar10", tmp_path), pixels, labels)


class Malicious:
    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return open, (str(self.path), "w")


class Decompressing:
    def __reduce__(self):
        import codecs

        return codecs.encode, ("61", "rot13")


@pytest.mark.parametrize("planted", ["file", "codec", "object-array", "no-array", "not-a-dictionary"])
def test_a_pickle_that_is_not_images_is_refused_and_not_run(tmp_path, planted):
    pixels, labels = cifar_rows()
    write_pickles(tmp_path, pixels, labels)
    written = tmp_path / "written"
    data = {
        "file": Malicious(written),
        "codec": Decompressing(),
        "object-array": np.array([1, "a"], object),
        "no-array": [1, 2, 3],
        "not-a-dictionary": pixels,
    }[planted]
    (tmp_path / "data_batch_3").write_bytes(
        pickle.dumps(data if planted == "not-a-dictionary" else {"data": data, "labels": [1]}, protocol=2)
    )
    with pytest.raises(SartorError, match=r"pickle"):
        load("cifar10", tmp_path)
    assert not written.exists()


def test_a_pickle_whose_bytes_are_written_otherwise_is_refused(tmp_path):
    write_pickles(tmp_path, *cifar_rows())
    content = (tmp_path / "data_batch_3").read_bytes()
    assert b"latin1" in content
    (tmp_path / "data_batch_3").write_bytes(content.replace(b"latin1", b"utf-16"))
    with pytest.raises(SartorError, match="data_batch_3"):
        load("cifar10", tmp_path)


def test_cifar_as_differences(tmp_path):
    pixels, labels = cifar_rows()
    red, green, blue = pixels.reshape(12, 3, 32, 32).transpose(1, 0, 2, 3)
    planes = np.stack([green, red - green, blue - green])
    for axis in (2, 3):
        planes = np.diff(planes, axis=axis, prepend=np.zeros_like(planes.take([0], axis)))
    for part, rows in (("train", slice(10)), ("test", slice(10, 12))):
        buffer = io.BytesIO()
        np.save(buffer, planes[:, rows])
        (tmp_path / f"{part}_images.npy.xz").write_bytes(lzma.compress(buffer.getvalue()))
    np.savez(tmp_path / "labels.npz", train=labels[:10], test=labels[10:])
    check_cifar(load("cifar10", tmp_path), pixels, labels)


def test_svhn_calls_the_digit_0_by_its_name(tmp_path):
    pixels = random_bytes(32, 32, 3, 3)
    for part in ("train", "test"):
        scipy.io.savemat(tmp_path / f"{part}_32x32.mat", {"X": pixels, "y": np.array([[1], [10], [9]], np.uint8)})
    data = load("svhn", tmp_path)
    assert data.train.tensors[1].tolist() == [1, 0, 9]
    expected = (pixels[3, 4, 2, 1] / 255 - 0.4728) / 0.1970
    assert data.test[1][0][2, 3, 4].item() == pytest.approx(expected, abs=1e-5)


ADULT = "39, State-gov, 77516, Bachelors, 13, Never-married, Adm-clerical, Not-in-family, White, Male, 2174, 0, 40, United-States, <=50K"


def test_adult_uses_public_bounds_and_leaves_unknown_categories_at_zero(tmp_path):
    unknown = ADULT.replace("State-gov", "?").replace("United-States", "?").replace("<=50K", ">50K")
    (tmp_path / "adult.data").write_text(f"{ADULT}\n{unknown}\n\n")
    (tmp_path / "adult.test").write_text(f"|1x3 Cross validator\n{unknown}.\n{ADULT}.\n\n")
    data = load("adult", tmp_path)
    assert data.shape == (105,)
    assert data.train.tensors[1].tolist() == [0, 1]
    assert data.test.tensors[1].tolist() == [1, 0]
    known, missing = data.train.tensors[0]
    assert known[0].item() == pytest.approx((39 - 16) / 84)
    assert int((known[1:9] == 1).sum()) == 1
    assert int(missing[1:9].sum()) == 0
    assert torch.equal(data.test.tensors[0][0], missing)


def test_adult_rows_of_another_length_are_refused(tmp_path):
    for part in ("data", "test"):
        (tmp_path / f"adult.{part}").write_text(f"{ADULT}, more\n")
    with pytest.raises(SartorError, match="15 fields"):
        load("adult", tmp_path)


NATIONS = (
    "Arabic Chinese Czech Dutch English French German Greek Irish Italian Japanese Korean Polish Portuguese "
    "Russian Scottish Spanish Vietnamese"
)


def test_names_by_a_fixed_alphabet(tmp_path):
    for nation in NATIONS.split():
        (tmp_path / f"{nation}.txt").write_text("Zoë\nß\n" + "a" * 30 + "\nAbc\nDe Fo\n", encoding="utf-8")
    data = load("names", tmp_path)
    assert (len(data.train), len(data.test), data.classes) == (72, 18, 18)
    rows = torch.cat([data.train.tensors[0], data.test.tensors[0]]).tolist()
    place = {letter: i + 1 for i, letter in enumerate(ALPHABET)}
    assert [place["Z"], place["o"], place["e"], *([0] * 17)] in rows
    assert [len(ALPHABET) + 1, *([0] * 19)] in rows
    assert [place["a"]] * 20 in rows
    assert set(string.ascii_letters) < set(ALPHABET)


def test_imdb_as_the_published_folder_and_as_a_table_are_the_same(tmp_path):
    reviews = {
        ("train", "neg"): ["Bad.<br />Very bad", "dull"],
        ("train", "pos"): ["It's good"],
        ("test", "neg"): ["no"],
        ("test", "pos"): ["yes"],
    }
    tables = {"train": [], "test": []}
    for (part, side), texts in reviews.items():
        folder = tmp_path / "a" / "aclImdb" / part / side
        folder.mkdir(parents=True)
        for i, text in enumerate(texts):
            (folder / f"{i}_7.txt").write_text(text, encoding="utf-8")
            tables[part].append(f"{int(side == 'pos')}\t7\t{i}\t{text}\n")
    (tmp_path / "b").mkdir()
    for part, rows in tables.items():
        (tmp_path / "b" / f"{part}.tsv.xz").write_bytes(lzma.compress("".join(rows).encode()))
    folder, table = load("imdb", tmp_path / "a"), load("imdb", tmp_path / "b")
    assert folder.train.tensors[1].tolist() == [0, 0, 1]
    for one, other in ((folder.train, table.train), (folder.test, table.test)):
        assert all(torch.equal(a, b) for a, b in zip(one.tensors, other.tensors, strict=True))
    assert folder.train[0][0][:4].tolist() == [words.token("bad"), words.token("very"), words.token("bad"), 0]


def test_an_empty_imdb_folder_is_refused(tmp_path):
    for place in ("train/pos", "train/neg", "test/pos", "test/neg"):
        (tmp_path / place).mkdir(parents=True)
    with pytest.raises(SartorError, match="no reviews"):
        load("imdb", tmp_path)


def write_jsonl(path, *labels):
    rows = [{"gold_label": label, "sentence1": "A man sleeps", "sentence2": "He sleeps", "other": 1} for label in labels]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def test_snli_as_published_drops_pairs_without_a_label(tmp_path):
    write_jsonl(tmp_path / "snli_1.0_train.jsonl", "contradiction", "-", "entailment", "neutral")
    write_jsonl(tmp_path / "snli_1.0_dev.jsonl", "neutral")
    write_jsonl(tmp_path / "snli_1.0_test.jsonl", "neutral")
    data = load("snli", tmp_path)
    assert data.train.tensors[1].tolist() == [2, 0, 1]
    assert data.notes == ()
    assert data.train[0][0][:, :3].tolist() == [
        [words.token(word) for word in ("a", "man", "sleeps")],
        [words.token("he"), words.token("sleeps"), 0],
    ]


def test_snli_without_a_training_part_says_so(tmp_path):
    for part in ("dev", "test"):
        (tmp_path / f"{part}.tsv.xz").write_bytes(lzma.compress(b"1\tA man sleeps\tHe sleeps\n"))
    data = load("snli", tmp_path)
    assert data.train.tensors[1].tolist() == [1]
    assert "development part" in data.notes[0]


def test_snli_with_an_unknown_label_is_refused_without_showing_it(tmp_path):
    for part in ("train", "test"):
        write_jsonl(tmp_path / f"snli_1.0_{part}.jsonl", "planted")
    with pytest.raises(SartorError, match=r"snli_1\.0_train\.jsonl") as caught:
        load("snli", tmp_path)
    assert "planted" not in str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__  # what went wrong inside may quote the text


@pytest.mark.parametrize("name", [name for name in available() if name != "digits"])
def test_what_is_missing_is_named_with_the_place(tmp_path, name):
    with pytest.raises(SartorError, match="was not found under") as caught:
        load(name, tmp_path)
    assert str(tmp_path) in str(caught.value)
    with pytest.raises(SartorError, match=r"there is no folder .*nowhere"):
        load(name, tmp_path / "nowhere")


def test_an_unknown_name_is_answered_with_those_there_are():
    with pytest.raises(SartorError, match=r'no data set "minst".*mnist'):
        load("minst")


def test_digits_are_images_between_0_and_1_with_a_fixed_split():
    data = load("digits")
    images = torch.cat([data.train.tensors[0], data.test.tensors[0]])
    assert (images.min(), images.max(), data.shape) == (0, 1, (1, 8, 8))
    assert data.test.tensors[1][:8].tolist() == load("digits").test.tensors[1][:8].tolist()
    assert held_out(1797, 360)[1][:5].tolist() == [7, 15, 18, 20, 25]


def test_the_split_follows_the_seed_and_nothing_else():
    assert not np.array_equal(held_out(100, 20)[1], held_out(100, 20, seed=1)[1])
    train, test = held_out(100, 20)
    assert sorted([*train, *test]) == list(range(100))
