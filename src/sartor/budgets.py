"""Budgets and policies: who allows what.

A `Budgets` holds one (epsilon, delta) per holder, as arrays. Holders with equal budgets form a group; groups are found by the value of the
budget, and whatever is computed for a group comes back to its members by that key, never by sorted position. This room knows nothing
of mechanisms. What it shows of itself are groups; groups of fewer than ten holders are merged into ranges.

Example:
    >>> import sartor
    >>> budgets = sartor.Budgets.from_shares([1, 2, 3], [0.34, 0.43, 0.23], holders=60_000, delta=1e-5, seed=7)
    >>> budgets.groups.holders.tolist()
    [20400, 25800, 13800]
"""

from __future__ import annotations

import csv
import math
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor import confidential
from sartor.documents import read_toml
from sartor.errors import InvalidBudget
from sartor.immutable import immutable
from sartor.names import alike
from sartor.numbers import number

Array = NDArray[np.float64]
Indices = NDArray[np.intp]

_MOST_HOLDERS = 10**9
_SKEWS = {-0.2: (2.098, -1.715), 0.0: (1.0, 0.0), 0.2: (1.554, -1.715)}  # by the skew of budgets, the constants of PDP-SGD's appendix C.1


@dataclass(frozen=True, repr=False)
class Groups:
    """Distinct budgets, strictest epsilon first, how many holders have each, and which one each holder has."""

    epsilon: Array
    delta: Array
    holders: NDArray[np.int64]
    of_holder: Indices

    def __len__(self) -> int:
        return len(self.epsilon)

    @property
    def view(self) -> confidential.View:
        """These groups as they may be shown."""
        return confidential.View(self.epsilon, self.delta, self.holders)

    def __repr__(self) -> str:
        return f"Groups({self.view!r})"


class Policy:
    """Named levels that a responsible body maps to numbers, so that holders pick a level and not a number.

    Example:
        >>> policy = Policy({"strict": 1, "balanced": 2, "open": 3, "public": float("inf")}, delta=1e-5)
        >>> policy.levels["balanced"]
        (2.0, 1e-05)
    """

    def __init__(self, levels: Mapping[str, float | Mapping[str, float]], *, delta: float | None = None) -> None:
        if not levels:
            raise InvalidBudget("a policy needs at least one level.")
        self.levels: dict[str, tuple[float, float]] = {}
        for name, value in levels.items():
            epsilon, own = (value.get("epsilon"), value.get("delta", delta)) if isinstance(value, Mapping) else (value, delta)
            if epsilon is None or own is None:
                missing = "epsilon" if epsilon is None else "delta"
                raise InvalidBudget(f'the policy\'s level "{name}" has no {missing}; give it there or for the whole policy.')
            try:
                if isinstance(epsilon, bool) or isinstance(own, bool):
                    raise TypeError
                values = np.array([float(epsilon)]), np.array([float(own)])
            except (TypeError, ValueError):
                raise InvalidBudget(f'the policy\'s level "{name}" needs numbers for epsilon and delta.') from None
            if not (values[0] > 0 and 0 < values[1] < 1):
                raise InvalidBudget(f'the policy\'s level "{name}" needs an epsilon above 0 and a delta strictly between 0 and 1.')
            self.levels[name] = (float(values[0][0]), float(values[1][0]))

    @classmethod
    def from_toml(cls, path: str | os.PathLike[str]) -> Policy:
        """Read a policy from a TOML file: `delta = 1e-5` and a table `[levels]` of numbers or `{epsilon, delta}`."""
        document = read_toml(path, "the policy", InvalidBudget)
        levels = document.get("levels")
        if not isinstance(levels, dict):
            raise InvalidBudget(f"the policy {Path(path).name} has no table [levels].")
        return cls(levels, delta=document.get("delta"))

    def __repr__(self) -> str:
        inside = ", ".join(f"{name}: epsilon {epsilon:g}, delta {delta:g}" for name, (epsilon, delta) in self.levels.items())
        return f"Policy({inside})"


def _checked(epsilon: Array, delta: Array) -> tuple[Array, Array]:
    if epsilon.ndim != 1 or delta.ndim != 1:
        raise InvalidBudget("epsilon and delta must be one number per holder, in one dimension.")
    if len(epsilon) == 0:
        raise InvalidBudget("there are no holders: budgets need at least one.")
    if len(epsilon) != len(delta):
        raise InvalidBudget(f"there are {len(epsilon)} epsilons but {len(delta)} deltas; give one delta for all or one for each.")
    for bad, what in (
        (np.isnan(epsilon), "epsilon is not a number (NaN)"),
        (epsilon == 0, "epsilon is zero, which allows no use at all: leave such holders out"),
        (epsilon < 0, "epsilon is negative"),
        (~((delta > 0) & (delta < 1)), "delta must lie strictly between 0 and 1"),
    ):
        if bad.any():
            raise InvalidBudget(f"the budgets of {int(bad.sum())} of {len(epsilon)} holders cannot be used: {what}.")
    return epsilon, delta


class Budgets:
    """One (epsilon, delta) per holder, in the order of the data; infinite epsilon marks a public record.

    `reserve` is a share of every budget that plans leave unspent, for later releases. `holders` are names, if there are any.
    """

    def __init__(
        self,
        epsilon: ArrayLike,
        *,
        delta: ArrayLike,
        holders: Sequence[str] | None = None,
        reserve: float = 0.0,
    ) -> None:
        try:
            eps = np.array(epsilon, dtype=np.float64)
            own = np.array(delta, dtype=np.float64)
        except (TypeError, ValueError):
            raise InvalidBudget("epsilon and delta must be numbers, one per holder.") from None
        eps, own = _checked(np.atleast_1d(eps), np.full(eps.size, own) if own.ndim == 0 else own)
        if not 0 <= reserve < 1:
            raise InvalidBudget(f"reserve is a share of every budget and must lie in [0, 1), not {reserve}.")
        if holders is not None:
            _check_names(holders, len(eps))
        self.epsilon, self.delta = immutable(eps), immutable(own)
        self.reserve = float(reserve)
        self._names = None if holders is None else tuple(holders)

    @classmethod
    def from_groups(cls, groups: Iterable[tuple[float, int]], *, delta: ArrayLike, reserve: float = 0.0) -> Budgets:
        """From (epsilon, size) of each group, in that order; delta is one number or one per group."""
        pairs = list(groups)
        try:
            epsilon, sizes = (np.array([float(pair[i]) for pair in pairs]) for i in (0, 1))
        except (TypeError, ValueError):
            raise InvalidBudget("a group is an epsilon and a size, both of them numbers.") from None
        if not np.all((sizes >= 0) & (sizes <= _MOST_HOLDERS) & (sizes == np.round(sizes))):
            raise InvalidBudget(f"a group's size must be a whole number from 0 to {_MOST_HOLDERS:g}.")
        counts = sizes.astype(int)
        return cls(np.repeat(epsilon, counts), delta=np.repeat(_per_group(delta, len(pairs)), counts), reserve=reserve)

    @classmethod
    def from_shares(
        cls,
        epsilon: Sequence[float],
        share: Sequence[float],
        *,
        holders: int,
        delta: ArrayLike,
        seed: int | None = None,
        reserve: float = 0.0,
    ) -> Budgets:
        """From the share of holders at each epsilon: exact counts by largest remainder, assigned in an order drawn from `seed`."""
        counts = exact_counts(share, holders)
        if len(epsilon) != len(counts):
            raise InvalidBudget(f"there are {len(epsilon)} epsilons but {len(counts)} shares.")
        own = _per_group(delta, len(counts))
        order = _generator(seed).permutation(int(holders))
        eps = np.repeat(np.asarray(epsilon, float), counts)[order]
        return cls(eps, delta=np.repeat(own, counts)[order], reserve=reserve)

    @classmethod
    def from_skew(
        cls, skew: float, *, holders: int, delta: ArrayLike, groups: int = 20, seed: int | None = None, reserve: float = 0.0
    ) -> Budgets:
        """The privacy requirements of the PDP-SGD paper: groups from 0.5 to 1 at equal distances, of a skew of -0.2, 0 or 0.2.

        A group's share is c1 e^(skew epsilon) + c2 (appendix C.1); the paper's constants add up to 1.83 for its 20 groups (and to 1.01
        for 11), so shares are divided by their sum.

        >>> Budgets.from_skew(-0.2, holders=60_000, delta=1e-5, seed=1).groups.holders[[0, -1]].tolist()
        [6005, 88]
        """
        if skew not in _SKEWS:
            raise InvalidBudget(f"the paper has skews of {', '.join(f'{known:g}' for known in _SKEWS)}, not {skew}.")
        if not 2 <= groups <= holders or groups != int(groups):
            raise InvalidBudget(f"groups are a whole number from 2 to the {holders} holders, not {groups}.")
        scale, shift = _SKEWS[skew]
        epsilon = np.linspace(0.5, 1.0, int(groups))
        share = scale * np.exp(skew * epsilon) + shift
        return cls.from_shares(epsilon.tolist(), (share / share.sum()).tolist(), holders=holders, delta=delta, seed=seed, reserve=reserve)

    @classmethod
    def from_policy(cls, policy: Policy, choices: Sequence[str], *, holders: Sequence[str] | None = None, reserve: float = 0.0) -> Budgets:
        """From each holder's choice among the levels of a policy."""
        unknown = [choice for choice in choices if choice not in policy.levels]
        if unknown:
            raise InvalidBudget(
                f"{len(unknown)} of {len(choices)} holders chose a level that the policy does not have; it has {', '.join(policy.levels)}."
            )
        values = [policy.levels[choice] for choice in choices]
        return cls([e for e, _ in values], delta=[d for _, d in values], holders=holders, reserve=reserve)

    @classmethod
    def from_csv(
        cls,
        path: str | os.PathLike[str],
        *,
        delta: float | None = None,
        policy: Policy | None = None,
        holders: Sequence[str] | None = None,
        reserve: float = 0.0,
    ) -> Budgets:
        """From a file with the columns `holder,epsilon[,delta]` or `holder,level`.

        `delta` is for rows without their own; `policy` gives the levels. With `holders`, rows are looked up by name and come back
        in that order.
        """
        lines, rows = _read_rows(path)
        names = [row["holder"] for row in rows]
        _check_names(names, len(names))
        if "level" in rows[0]:
            if policy is None:
                raise InvalidBudget(f"{Path(path).name} holds levels: give the policy that maps them to numbers.")
            whole = cls.from_policy(policy, [row["level"] for row in rows], holders=names, reserve=reserve)
        else:
            eps = [_number(row["epsilon"], "epsilon", line) for line, row in zip(lines, rows, strict=True)]
            own = [_number(row["delta"], "delta", line) if row.get("delta") else delta for line, row in zip(lines, rows, strict=True)]
            if any(value is None for value in own):
                raise InvalidBudget(f"{Path(path).name} has rows without a delta: add the column or give one delta for all.")
            whole = cls(eps, delta=np.array(own, float), holders=names, reserve=reserve)
        return whole if holders is None else whole.ordered_as(holders)

    def ordered_as(self, holders: Sequence[str]) -> Budgets:
        """The same budgets in the order of these names; every holder must be there exactly once."""
        if self._names is None:
            raise InvalidBudget("these budgets carry no names, so they cannot be put into another order.")
        _check_names(holders, len(holders))
        position = {name: i for i, name in enumerate(self._names)}
        missing = sum(name not in position for name in holders)
        if missing:
            raise InvalidBudget(f"{missing} of {len(holders)} holders have no budget: every holder needs one.")
        surplus = len(self._names) - len(holders)
        if surplus:
            raise InvalidBudget(f"{surplus} budgets are for holders who are not among the {len(holders)} given.")
        rows = [position[name] for name in holders]
        return Budgets(self.epsilon[rows], delta=self.delta[rows], holders=holders, reserve=self.reserve)

    @cached_property
    def groups(self) -> Groups:
        """The distinct budgets, strictest epsilon first."""
        order = np.lexsort((self.delta, self.epsilon))
        eps, own = self.epsilon[order], self.delta[order]
        new = np.append(True, (eps[1:] != eps[:-1]) | (own[1:] != own[:-1]))
        of_holder = np.empty(len(order), np.intp)
        of_holder[order] = np.cumsum(new) - 1
        counts = np.bincount(of_holder).astype(np.int64)
        return Groups(immutable(eps[new]), immutable(own[new]), immutable(counts, np.int64), immutable(of_holder, np.intp))

    @property
    def names(self) -> tuple[str, ...] | None:
        """The holders' names, if they were given."""
        return self._names

    def with_reserve(self, reserve: float) -> Budgets:
        """The same budgets with this share of each kept for later releases."""
        return Budgets(self.epsilon, delta=self.delta, holders=self._names, reserve=reserve)

    def deniable(self, *, seed: int | None = None) -> Budgets:
        """Budgets in which each holder's epsilon is drawn at random from the levels at or below their own.

        A holder seen in a strict group may have chosen any level from there up, so a group does not give away a choice (after Alaggan
        et al.; IDP-SGD, appendix A.2, where a draw may land above the choice).

        Guarantee: nobody's epsilon rises and deltas stay, so every plan for the result honours the original budgets.
        Breaks if: the draw is repeated and the results are compared. Without a seed the coins come from the operating system.
        """
        levels, rank = np.unique(self.epsilon, return_inverse=True)
        if seed is None:
            uniform = np.frombuffer(os.urandom(8 * len(rank)), np.uint64) / 2.0**64
        else:
            uniform = _generator(seed).random(len(rank))
        drawn = np.minimum((uniform * (rank + 1)).astype(int), rank)
        return Budgets(levels[drawn], delta=self.delta, holders=self._names, reserve=self.reserve)

    def __len__(self) -> int:
        return len(self.epsilon)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Budgets):
            return NotImplemented
        return (
            np.array_equal(self.epsilon, other.epsilon)
            and np.array_equal(self.delta, other.delta)
            and (self.reserve, self._names) == (other.reserve, other._names)
        )

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        kept = f"; {self.reserve:.0%} of each kept in reserve" if self.reserve else ""
        return f"Budgets({len(self)} holders: {self.groups.view!r}{kept})"


def exact_counts(share: Sequence[float], holders: int) -> NDArray[np.int64]:
    """How many of `holders` each share is, adding up exactly: by largest remainder, ties to the earlier share.

    Shares add up to 1, or to 100, but for rounding (three shares of 0.333 are three thirds).
    """
    weights = np.asarray(share, float)
    if not 1 <= holders <= _MOST_HOLDERS or holders != int(holders):
        raise InvalidBudget(f"the number of holders must be a whole number from 1 to {_MOST_HOLDERS:g}, not {holders}.")
    if weights.ndim != 1 or not len(weights) or not np.all(np.isfinite(weights)) or np.any(weights < 0) or weights.sum() <= 0:
        raise InvalidBudget("shares must be numbers of 0 or more, not all of them 0.")
    total = float(weights.sum())
    if min(abs(total - 1), abs(total / 100 - 1)) > 0.005:
        raise InvalidBudget(f"the shares add up to {total:g}, not to 1 (or 100).")
    exact = weights / weights.sum() * holders
    counts = np.floor(exact + 1e-9).astype(np.int64)
    rest = int(holders) - int(counts.sum())
    counts[np.argsort(-(exact - counts), kind="stable")[:rest]] += 1
    return np.asarray(counts, np.int64)


def _per_group(delta: ArrayLike, count: int) -> Array:
    try:
        own = np.asarray(delta, float)
    except (TypeError, ValueError):
        raise InvalidBudget("delta must be a number, or one number per group.") from None
    if own.shape not in ((), (count,)):
        raise InvalidBudget(f"there are {count} groups but {own.size} deltas; give one delta for all or one for each.")
    return np.broadcast_to(own, (count,))


def _generator(seed: int | None) -> np.random.Generator:
    if seed is not None and seed < 0:
        raise InvalidBudget(f"a seed must be 0 or more, not {seed}.")
    return np.random.default_rng(seed)


def _check_names(names: Sequence[str], count: int) -> None:
    if len(names) != count:
        raise InvalidBudget(f"there are {len(names)} names for {count} holders.")
    empty = sum(not str(name).strip() for name in names)
    if empty:
        raise InvalidBudget(f"{empty} rows have no holder: every budget needs a name.")
    repeated = len(names) - len(set(names))
    if repeated:
        raise InvalidBudget(f"{repeated} holders appear more than once: give each of them one budget.")
    repeated = len(names) - len({alike(str(name)) for name in names})
    if repeated:
        raise InvalidBudget(
            f"{repeated} of {len(names)} holders differ from another only in spaces, case or the way a number is written, so both may be "
            "one person: write every holder in one way, with one budget each."
        )


def _number(text: Any, column: str, line: int) -> float:
    try:
        return number(text)
    except (TypeError, ValueError):
        raise InvalidBudget(f"line {line} has no number in the column {column}.") from None


def _read_rows(path: str | os.PathLike[str]) -> tuple[list[int], list[dict[str, str]]]:
    """Line numbers and rows of a CSV of budgets."""
    name = Path(path).name
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            columns = [column.strip() for column in reader.fieldnames or []]
            reader.fieldnames = columns
            lines, rows = [], []
            for row in reader:
                if None in row:
                    raise InvalidBudget(f"line {reader.line_num} of {name} has more fields than the first line names.")
                lines.append(reader.line_num)
                rows.append({key: (value or "").strip() for key, value in row.items()})
    except OSError as error:
        raise InvalidBudget(f"{name} cannot be read: {error.strerror}.") from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InvalidBudget(f"{name} is not a CSV file: {error}.") from error
    if "holder" not in columns or not ({"epsilon", "level"} & set(columns)):
        raise InvalidBudget(f"{name} needs the columns holder,epsilon[,delta] or holder,level in its first line.")
    if {"epsilon", "level"} <= set(columns):
        raise InvalidBudget(f"{name} has both an epsilon and a level column: keep only one of them.")
    if not rows:
        raise InvalidBudget(f"{name} has no rows: there are no holders.")
    return lines, rows


def spendable(value: ArrayLike, reserve: float) -> Array:
    """What a plan may spend of budgets when a share is kept in reserve."""
    return np.asarray(np.asarray(value, float) * (1 - reserve) if reserve else value, float)


def is_public(epsilon: float) -> bool:
    """Whether a budget marks a public record."""
    return math.isinf(epsilon)
