"""How holders are named: when two names may be one person, when one name is nobody's or several people's, by one rule for all.

Breaks if: one person is written in ways that no rule sees (a nickname, another number).
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?")
_GROUPED = re.compile(r"[+-]?[0-9]{1,3}([,_][0-9]{3})+")
_DROPPED = ("Cc", "Cf")  # what nobody sees
_WRITTEN = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4\u0060", "'") | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))
_SEVERAL = re.compile(r"[;|,/&+]")
_NOBODY = frozenset(
    ("?", "-", "--", ".", "nan", "nat", "none", "null", "(null)", "nil", "na", "n/a", "n.a.", "#n/a", "<na>", "\\n", "unknown", "missing")
)


def alike(key: str) -> object:
    """What two ways to write one key have in common: spaces, case, the format of numbers and kinds of dashes do not count.

    Example:
        >>> alike(" 7") == alike("7.0"), alike("Ann  Lee") == alike("ann lee"), alike("7") == alike("71")
        (True, True, False)
    """
    if not (key.isascii() and key.isprintable()):
        key = "".join(
            " " if c.isspace() else str(unicodedata.decimal(c, c))
            for c in unicodedata.normalize("NFKC", key)
            if c.isspace() or not (unicodedata.category(c) in _DROPPED or 0xFE00 <= ord(c) <= 0xFE0F)
        )
    text = " ".join(key.translate(_WRITTEN).split()).casefold()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "").replace("_", "")
    return Decimal(text) if _NUMBER.fullmatch(text) else text


def of_nobody(names: Iterable[str]) -> int:
    """How many records stand under a word for a name that is not known, of which there are several: they may be of many people.

    >>> of_nobody(["ann", "unknown", "NaN", "unknown"])
    2
    """
    return sum(often for name, often in Counter(names).items() if often > 1 and name.strip().casefold() in _NOBODY)


def of_several(names: Iterable[str]) -> int:
    """How many names are those of two others or more, one behind the other, as in "ann;bob" beside "ann" and "bob".

    >>> of_several(["ann", "bob", "ann; bob", "Doe, John"])
    1
    """
    distinct = set(names)
    known = {alike(name) for name in distinct}
    return sum(sum(alike(part) in known for part in _SEVERAL.split(name) if part.strip()) > 1 for name in distinct if _SEVERAL.search(name))
