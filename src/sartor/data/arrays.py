"""Arrays of one's own as data: x_train, y_train, x_test and y_test as .npy, .npy.xz or in one .npz, and budgets beside them.

`holders`, one name or number for each training row, says whose the rows are; without it each row is a holder's only one.

Floats are taken as they are, bytes are pixels and divided by 255, other integers are tokens. The number of classes and of tokens comes
from the test rows, which are public, unless it is given; test rows that are training rows are refused. No file is ever unpickled.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.data.dataset import ONE_ROW, Data, Folder, dataset, opened, reading, root
from sartor.data.people import People, refuse_budget_features, refuse_name_features, refuse_trained
from sartor.errors import SartorError

Arrays = dict[str, NDArray[np.generic]]

_NEEDED = ("x_train", "y_train", "x_test", "y_test")
_OPTIONAL = ("epsilon", "delta", "holders")


def read_arrays(
    folder: Folder, *, classes: int | None = None, vocabulary: int | None = None, delta: float | None = None, strictest: bool = False
) -> Data:
    """Read the arrays in a folder, or in one .npz file.

    `epsilon` (one number for each training row) with `delta` (one number, one for each row, or the argument) gives the budgets; where rows
    of one holder differ in them they are refused, unless the `strictest` is to hold.
    """
    path = root(folder)
    arrays = _found(path)
    train, test = arrays["x_train"], arrays["x_test"]
    if train.shape[1:] != test.shape[1:] or train.ndim < 2 or not len(train):
        raise SartorError(f"x_train and x_test in {path} must hold rows of the same shape, and x_train at least one.")
    tokens = _are_tokens(train)
    if tokens != _are_tokens(test):
        raise SartorError(f"x_train and x_test in {path} must both hold tokens (integers) or both hold numbers.")
    labels = {part: _labels(arrays[f"y_{part}"], f"y_{part}") for part in ("train", "test")}
    if tokens:
        vocabulary = _count("tokens", "vocabulary", vocabulary, train, test)
    elif vocabulary is not None:
        raise SartorError(f"x_train in {path} does not hold tokens (integers), so it has no vocabulary.")
    people, budgets = _people(arrays, len(train)), _said(arrays, delta)
    if budgets is not None and len(budgets) == len(train):
        refuse_budget_features(train, budgets)
    if budgets is not None and people.names is not None:
        budgets = _one_each(budgets, people, strictest)
        refuse_budget_features(train, people.by_row(budgets))
    if people.names is not None:
        refuse_name_features(train, arrays["holders"])
    training, testing = dataset(_inputs(train, "x_train"), labels["train"]), dataset(_inputs(test, "x_test"), labels["test"])
    refuse_trained((training,), testing, None if people.ownership is None else people.owners.of_record)
    return Data(
        path.stem,
        training,
        testing,
        classes=_count("classes", "classes", classes, labels["train"], labels["test"]),
        shape=train.shape[1:],
        vocabulary=vocabulary,
        holders=people.names,
        budgets=budgets,
        ownership=people.ownership,
        one_holder=ONE_ROW if people.ownership is None else 'all rows that name them in "holders"',
    )


def _found(path: Path) -> Arrays:
    if path.is_file():
        return _complete(_from_npz(path), path)
    if not path.is_dir():
        raise SartorError(f"there is no folder {path} to read arrays from.")
    arrays = {}
    for name in (*_NEEDED, *_OPTIONAL):
        file = next((path / f"{name}{ending}" for ending in (".npy", ".npy.xz") if (path / f"{name}{ending}").is_file()), None)
        if file is not None:
            with reading(file, "an array without pickled objects"), opened(file) as content:
                arrays[name] = np.load(content, allow_pickle=False)
    bundles = sorted(path.glob("*.npz"))
    if not set(_NEEDED) & set(arrays) and len(bundles) == 1:
        arrays = {**_from_npz(bundles[0]), **arrays}
    return _complete(arrays, path)


def _from_npz(path: Path) -> Arrays:
    with reading(path, "a bundle of arrays without pickled objects"), np.load(path, allow_pickle=False) as bundle:
        return {name: bundle[name] for name in (*_NEEDED, *_OPTIONAL) if name in bundle}


def _complete(arrays: Arrays, path: Path) -> Arrays:
    missing = [name for name in _NEEDED if name not in arrays]
    if missing:
        raise SartorError(f"{path} lacks {', '.join(missing)}: looked for .npy, .npy.xz and one .npz with these names.")
    return arrays


def _are_tokens(x: NDArray[np.generic]) -> bool:
    return x.dtype.kind in "iu" and x.dtype != np.uint8


def _inputs(x: NDArray[np.generic], name: str) -> NDArray[np.generic]:
    if _are_tokens(x):
        return x.astype(np.int64)
    if x.dtype == np.uint8:
        return x.astype(np.float32) / np.float32(255)
    if x.dtype.kind not in "fb":
        raise SartorError(f"{name} must hold numbers, not {x.dtype}.")
    numbers = x.astype(np.float32)
    broken = int((~np.isfinite(numbers)).reshape(len(numbers), -1).any(axis=1).sum())
    if broken:
        raise SartorError(f"{broken} of {len(numbers)} rows of {name} hold NaN or infinite numbers.")
    return numbers


def _labels(y: NDArray[np.generic], name: str) -> NDArray[np.int64]:
    if y.ndim != 1 or y.dtype.kind not in "iub":
        raise SartorError(f"{name} must hold one whole number for each row, counted from 0.")
    return y.astype(np.int64)


def _count(what: str, argument: str, given: int | None, train: NDArray[np.generic], test: NDArray[np.generic]) -> int:
    """How many classes or tokens there are: as given, otherwise as the public test rows show."""
    if given is None and not test.size:
        raise SartorError(f"there are no test rows to count {what} in: give {argument}=.")
    count = given if given is not None else int(test.astype(np.int64).max()) + 1
    values = train.astype(np.int64)
    if count < 1 or values.min() < 0 or values.max() >= count:
        raise SartorError(f"training rows hold {what} outside 0 to {count - 1}, which is what the test rows or {argument}= allow.")
    return count


def _people(arrays: Arrays, rows: int) -> People:
    """Whose the training rows are."""
    if "holders" not in arrays:
        return People.of_rows(rows)
    given = arrays["holders"]
    if given.shape != (rows,) or given.dtype.kind not in "iuU":
        raise SartorError(f'"holders" must hold a text or a whole number for each of the {rows} training rows.')
    return People.of_names([str(name).strip() for name in given.tolist()], '"holders"')


def _one_each(said: Budgets, people: People, strictest: bool) -> Budgets:
    """One budget for each holder, from those of the rows."""
    if len(said) != len(people.owners):
        raise SartorError(f"there are {len(said)} budgets for {len(people.owners)} training rows: give one for each row.")
    first, _ = people.said_once(list(zip(said.epsilon.tolist(), said.delta.tolist(), strict=True)))
    return people.one_each(first, Budgets(said.epsilon[first], delta=said.delta[first]), strictest=strictest)


def _said(arrays: Arrays, delta: float | None) -> Budgets | None:
    """What each row allows, if they say it."""
    if "epsilon" not in arrays:
        if "delta" in arrays:
            raise SartorError("there is a delta but no epsilon: give one epsilon for each training row.")
        return None
    own = arrays.get("delta", delta)
    if own is None:
        raise SartorError("the epsilons need a delta: add delta.npy or give delta=.")
    return Budgets(arrays["epsilon"], delta=own)
