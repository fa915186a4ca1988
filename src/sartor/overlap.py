"""Whether rows that are taken to be public are rows of the private data, or only happen to equal some.

Equal rows are not always one person: where features are few, strangers have the same. How often that happens, the private rows tell
themselves: the share of them that equal another private row is what a stranger's row would find among them (Good and Turing).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

_CHANCE = 1e-6  # so rare an overlap is no chance
_FEWEST = 10
_ALONE = 0.9


def shared(private: Mapping[Any, int], public: Mapping[Any, int]) -> int:
    """How many public rows are private rows, as often as they occur, if that is no chance; otherwise 0.

    Refused are: all private rows in any order; half of the rows of either side on the other one, ten at least, where nine of ten private
    rows are unlike any other; and more different rows in common than strangers would have but once in a million.

    >>> from collections import Counter
    >>> shared(Counter(range(1000)), Counter(range(900, 1900)))
    100
    >>> shared(Counter("aaabbbccc"), Counter("abcabc"))
    0
    """
    both = private.keys() & public.keys()
    found, trained = (sum(rows[row] for row in both) for rows in (public, private))
    count, asked = sum(private.values()), sum(public.values())
    much = found >= _FEWEST and (2 * found > asked or 2 * trained > count)
    alone = sum(times == 1 for times in private.values()) >= _ALONE * count
    # rows that were made different from each other say nothing of chance, so public ones are asked only where private ones agree with them
    rare = _beyond_chance(len(both), private, asked) or (alone and _beyond_chance(len(both), public, count))
    return found if asked and (private == public or (much and alone) or rare) else 0


def _beyond_chance(common: int, rows: Mapping[Any, int], others: int) -> bool:
    """Whether so many of the `others` cannot be strangers to these rows, judged by how often rows equal each other.

    Of coincidences at one common rate, `common` fall on the others and `repeated` on the rows themselves; so given how many there are,
    those on the others are binomial with their share of all rows. Different rows are counted, which strangers have fewer of in common.
    """
    count = sum(rows.values())
    repeated = sum(times for times in rows.values() if times > 1)
    return bool(common) and _at_least(common, common + repeated, others / (others + count)) < _CHANCE


def _at_least(successes: int, trials: int, share: float) -> float:
    """The probability of so many successes or more."""
    if successes <= share * trials:
        return 1.0  # not in the tail
    log = math.log(share), math.log1p(-share)
    whole = math.lgamma(trials + 1)
    terms = (
        math.exp(whole - math.lgamma(k + 1) - math.lgamma(trials - k + 1) + k * log[0] + (trials - k) * log[1])
        for k in range(successes, trials + 1)
    )
    return sum(terms)
