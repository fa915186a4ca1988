"""Who is taught to which teacher: by a keyed hash of the holder, so that nobody's place depends on anybody else.

Guarantee: under one plan and key, zeroing, adding or removing a holder with any number of records, or giving them more or fewer, changes
    the records of that holder's teachers alone, at most `duplicates` of them, and no teacher has one of them twice.
Proof: the teachers of a holder follow from the key, their name and their group; a record goes where its holder goes, so all records of a
    holder are with each of the holder's teachers and with no other. Nothing looks at how many records anybody has.
Breaks if: the ownership gives records of one person to two holders; where places are the names, others move up when a holder leaves.
"""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

from sartor.budgets import Budgets
from sartor.errors import SartorError
from sartor.mixing import STEP, mixed
from sartor.ownership import Ownership
from sartor.pate.plan import PatePlan, records_of

_PERSON = b"sartor.teachers"


@dataclass(frozen=True, eq=False)
class Partition:
    """The records that each teacher learns from: `rows[i]` goes to teacher `of_row[i]`. Sensitive: it says who is in which group."""

    teachers: int
    rows: NDArray[np.int64] = field(repr=False)
    of_row: NDArray[np.int64] = field(repr=False)

    def slices(self) -> list[NDArray[np.int64]]:
        """For each teacher the numbers of the records that it learns from, in their order."""
        order = np.lexsort((self.rows, self.of_row))
        edges = np.searchsorted(self.of_row[order], np.arange(1, self.teachers))
        return np.split(self.rows[order], edges)


def partition(
    plan: PatePlan,
    budgets: Budgets,
    key: bytes | None = None,
    *,
    ownership: Ownership | None = None,
    holders: Sequence[str] | None = None,
) -> Partition:
    """Place everyone with all of their records. Holders are known by name: the given ones, those of the budgets, or else their place there.

    `ownership` says whose each record is; without it record i is the only one of holder i. Without a key one is drawn; keep it to place
    newcomers later. Where places are the names, a holder who leaves must leave an empty place.

    Guarantee: zeroing, adding or removing a holder with any number of records changes only that holder's teachers, at most `duplicates` of
        them. A teacher may learn from one holder's records for the most part: that is their vote, whose weight everybody's account covers.

    >>> import sartor
    >>> from sartor.pate.build import plan
    >>> people = sartor.Budgets.from_groups([(1.0, 600), (2.0, 400)], delta=1e-5)
    >>> placed = partition(plan(people, "upsample", teachers=20), people, b"key")
    >>> len(placed.slices()), sum(len(rows) for rows in placed.slices())
    (28, 1400)
    >>> owners = sartor.Ownership([*range(1_000), 999, 999], 1_000)  # the last holder has three records
    >>> sum(999 in rows for rows in partition(plan(people, "upsample", teachers=20), people, b"key", ownership=owners).slices())
    2
    """
    check_owners(plan, budgets, ownership)
    names = holders if holders is not None else budgets.names
    if names is not None and len(names) != len(budgets):
        raise SartorError(f"there are {len(names):,} names for {len(budgets):,} budgets.")
    if names is not None and len(set(names)) != len(names):
        raise SartorError("two holders have the same name: one of them would be taught twice; join their records or tell them apart.")
    group = plan.groups_of(budgets)
    state = _hashes(names if names is not None else range(len(budgets)), secrets.token_bytes(32) if key is None else key)
    begin, size, wanted = plan.begin[group], (plan.end - plan.begin)[group].astype(np.uint64), plan.duplicates[group]
    placed = np.full((len(budgets), int(wanted.max())), -1, np.int64)
    for column in range(placed.shape[1]):
        open_rows = np.flatnonzero(wanted > column)
        while len(open_rows):
            state[open_rows] += STEP
            drawn = begin[open_rows] + (mixed(state[open_rows]) % size[open_rows]).astype(np.int64)
            again = np.any(placed[open_rows, :column] == drawn[:, None], axis=1)
            placed[open_rows[~again], column] = drawn[~again]
            open_rows = open_rows[again]
    of_record = placed if ownership is None else placed[ownership.of_record]
    rows, columns = np.nonzero(of_record >= 0)
    return Partition(plan.teachers, rows.astype(np.int64), of_record[rows, columns])


def check_owners(plan: PatePlan, budgets: Budgets, ownership: Ownership | None) -> None:
    """Refuse an ownership of other holders, and a plan over several records of each without one: records would be taken for holders."""
    if records_of(budgets, ownership) is None and plan.records is not None:
        raise SartorError(f"this plan is for holders with {plan.records:,} records: say whose each of them is (ownership=).")


def _hashes(names: Sequence[str] | range, key: bytes) -> NDArray[np.uint64]:
    """64 bits of each holder, from which their places follow."""
    keyed = blake2b(key, digest_size=32, person=_PERSON).digest()
    digests = b"".join(
        blake2b(str(name).encode(errors="surrogatepass"), digest_size=8, key=keyed, person=_PERSON).digest() for name in names
    )
    return np.frombuffer(digests, np.uint64).copy()
