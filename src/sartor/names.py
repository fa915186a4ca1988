"""How holders are named: when two names may be one person, by the one rule that budgets and tables share."""

from __future__ import annotations

import re
import unicodedata
from decimal import Decimal

_NUMBER = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)(e[+-]?[0-9]{1,4})?")


def alike(key: str) -> object:
    """What two ways to write one key have in common: spaces, case and the format of numbers do not count.

    Example:
        >>> alike(" 7") == alike("7.0"), alike("Ann  Lee") == alike("ann lee"), alike("7") == alike("71")
        (True, True, False)
    """
    if not key.isascii():
        key = "".join(" " if c.isspace() else c for c in unicodedata.normalize("NFKC", key) if unicodedata.category(c) != "Cf")
    text = " ".join(key.split()).casefold()
    return Decimal(text) if _NUMBER.fullmatch(text) else text
