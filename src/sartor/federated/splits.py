"""Which rows are whose: training rows dealt out to clients, all of them and each once.

>>> labels = np.arange(100) % 10
>>> [len(rows) for rows in iid(labels, 8, seed=0)]
[13, 13, 13, 13, 12, 12, 12, 12]
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.names import alike

Rows = NDArray[np.int64]
Labels = NDArray[np.integer]


def iid(labels: Labels, clients: int, *, seed: int = 0) -> list[Rows]:
    """Rows in random order, as many for each client as for any other (but for one)."""
    _check(labels, clients)
    return [np.sort(part) for part in np.array_split(np.random.default_rng(seed).permutation(len(labels)), clients)]


def dirichlet(labels: Labels, clients: int, alpha: float, *, seed: int = 0) -> list[Rows]:
    """Each class is dealt out in shares drawn from a Dirichlet distribution: the smaller `alpha`, the fewer clients hold a class.

    Every client gets a row at least; sizes differ.
    """
    _check(labels, clients)
    _positive(alpha)
    rng = np.random.default_rng(seed)
    owner = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        rows = rng.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(rng.dirichlet(np.full(clients, alpha))) * len(rows)).astype(int)
        owner[rows] = np.searchsorted(ends, np.arange(len(rows)), side="right").clip(max=clients - 1)
    sizes = np.bincount(owner, minlength=clients)
    for client in np.flatnonzero(sizes == 0):  # one row of the largest for each who would have none
        largest = int(sizes.argmax())
        owner[rng.choice(np.flatnonzero(owner == largest))] = client
        sizes[largest] -= 1
        sizes[client] = 1
    return by_owner(owner)


def pachinko(labels: Labels, clients: int, alpha: float, beta: float, groups: Sequence[int] | None = None, *, seed: int = 0) -> list[Rows]:
    """Pachinko allocation (Li and McCallum 2006; for clients Reddi et al. 2021): equal sizes, unequal classes.

    A client draws shares of groups of classes (`alpha`) and, within each group, of classes (`beta`), then row by row a group, a class in it
    and a row of that class, without replacement; a class with no rows left is left out from then on. `groups` gives the group of each
    class, one for all by default.
    """
    _check(labels, clients)
    _positive(alpha)
    _positive(beta)
    rng = np.random.default_rng(seed)
    classes = int(labels.max()) + 1
    group = np.zeros(classes, np.int64) if groups is None else np.asarray(groups)
    if group.shape != (classes,):
        raise SartorError(f"pachinko allocation needs the group of each of the {classes} classes.")
    left = [rng.permutation(np.flatnonzero(labels == label)).tolist() for label in range(classes)]
    sizes = [len(part) for part in np.array_split(np.arange(len(labels)), clients)]
    found = []
    for size in sizes:
        shares = np.zeros(classes)
        upper = rng.dirichlet(np.full(int(group.max()) + 1, alpha))
        for number, share in enumerate(upper):
            inside = np.flatnonzero(group == number)
            if inside.size:
                shares[inside] = share * rng.dirichlet(np.full(inside.size, beta))
        found.append(np.sort(np.array(_taken(rng, shares, left, size), np.int64)))
    return found


def _taken(rng: np.random.Generator, shares: NDArray[np.float64], left: list[list[int]], size: int) -> list[int]:
    """So many rows, by shares of classes; those that run out are left out."""
    rows: list[int] = []
    while len(rows) < size:
        there = np.array([len(part) for part in left])
        open_ = np.where(there > 0, shares, 0.0)
        open_ = open_ if open_.sum() > 0 else there.astype(float)  # only classes of no share are left
        wanted = rng.multinomial(size - len(rows), open_ / open_.sum())
        for label, count in enumerate(np.minimum(wanted, there).tolist()):
            rows += [left[label].pop() for _ in range(count)]
    return rows


def by_owner(owner: NDArray[Any]) -> list[Rows]:
    """The rows of each owner (a writer, a patient), in the order of the owners' names.

    Owners who differ only in spaces, case or the way a number is written are refused: one person would be two clients, with two budgets.
    """
    found, places = np.unique(owner, return_inverse=True)
    names = ["" if name != name else str(name).strip() for name in found.tolist()]
    if not all(names):
        raise SartorError("some rows have no owner: leave them out, or say whose they are.")
    twice = len(names) - len(set(map(alike, names)))
    if twice:
        raise SartorError(
            f"{twice} of {len(names)} owners differ from another only in spaces, case or the way a number is written, so both may be one "
            "client: write every owner in one way."
        )
    order = np.argsort(places, kind="stable").astype(np.int64)
    return np.split(order, np.cumsum(np.bincount(places))[:-1])


def _check(labels: Labels, clients: int) -> None:
    if clients < 1 or clients > len(labels):
        raise SartorError(f"{len(labels)} rows cannot be dealt out to {clients} clients, a row at least to each.")


def _positive(value: float) -> None:
    if not 0 < value < np.inf:
        raise SartorError(f"the concentration of a Dirichlet distribution must be positive and finite, not {value}.")
