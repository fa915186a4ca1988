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
_DROPPED = ("Cc", "Cf")  # what nobody sees, and by code point, as other categories hold some of it:
_UNSEEN = frozenset(  # Unicode's Default_Ignorable_Code_Point, and a Braille pattern without dots
    code
    for first, last in (
        (0x00AD, 0x00AD),
        (0x034F, 0x034F),
        (0x061C, 0x061C),
        (0x115F, 0x1160),
        (0x17B4, 0x17B5),
        (0x180B, 0x180F),
        (0x200B, 0x200F),
        (0x202A, 0x202E),
        (0x2060, 0x206F),
        (0x2800, 0x2800),
        (0x3164, 0x3164),
        (0xFE00, 0xFE0F),
        (0xFEFF, 0xFEFF),
        (0xFFA0, 0xFFA0),
        (0xFFF0, 0xFFF8),
        (0x1BCA0, 0x1BCA3),
        (0x1D173, 0x1D17A),
        (0xE0000, 0xE0FFF),
    )
    for code in range(first, last + 1)
)
_WRITTEN = str.maketrans(dict.fromkeys("\u2018\u2019\u02bc\u00b4\u0060", "'") | dict.fromkeys("\u2010\u2011\u2012\u2013\u2014\u2212", "-"))
_SEVERAL = re.compile(r"[;|,/&+]")


def alike(key: str) -> object:
    """What two ways to write one key have in common: spaces, case, formats of numbers, kinds of dashes and what nobody sees do not count.

    Example:
        >>> alike(" 7") == alike("7.0"), alike("Ann  Lee") == alike("ann lee"), alike("7") == alike("71")
        (True, True, False)
    """
    if not (key.isascii() and key.isprintable()):
        seen = "".join(c for c in unicodedata.normalize("NFKC", key) if c.isspace() or not _is_unseen(c))
        # again, for what stood apart until now
        key = "".join(" " if c.isspace() else str(unicodedata.decimal(c, c)) for c in unicodedata.normalize("NFKC", seen))
    text = " ".join(key.translate(_WRITTEN).split()).casefold()
    if _GROUPED.fullmatch(text):
        text = text.replace(",", "").replace("_", "")
    return Decimal(text) if _NUMBER.fullmatch(text) else text


def _is_unseen(character: str) -> bool:
    return unicodedata.category(character) in _DROPPED or ord(character) in _UNSEEN


_WORDS = ("", "?", "-", "--", ".", "nan", "nat", "none", "null", "(null)", "nil", "na", "n/a", "n.a.", "#n/a", "<na>", "\\n")
_NOBODY = frozenset(map(alike, (*_WORDS, "unknown", "missing")))


def of_nobody(names: Iterable[str]) -> int:
    """How many records stand under a word for a name that is not known, of which there are several: they may be of many people.

    >>> of_nobody(["ann", "unknown", "NaN", "Unknown"])
    2
    """
    often: Counter[object] = Counter()
    for name, records in Counter(names).items():
        often[alike(name)] += records
    return sum(records for word, records in often.items() if records > 1 and word in _NOBODY)


def of_several(names: Iterable[str]) -> int:
    """How many names are those of two others or more, one behind the other, as in "ann;bob" beside "ann" and "bob".

    >>> of_several(["ann", "bob", "ann; bob", "Doe, John"])
    1
    """
    distinct = set(names)
    known = {alike(name) for name in distinct}
    return sum(sum(alike(part) in known for part in _SEVERAL.split(name) if part.strip()) > 1 for name in distinct if _SEVERAL.search(name))
