"""Thresholds of rounds: the budget up to which a round spends, chosen from the budgets alone.

A holder whose budget lies below a round's threshold tau is included by a coin, and wastes what the coin leaves unused; one above it is
included for sure, and wastes what lies above. With pi = (e^eps - 1) / (e^tau - 1) the two wastes are

    u(tau) = sum over eps < tau of eps (1 - pi),        s(tau) = sum over eps > tau of (eps - tau),

and the threshold is the one between the smallest and the largest budget at which a loss is least (Heo, Seo and Whang, PDP-SGD):

    fixed:     w u + (1 - w) s,                          their equation 6;
    adaptive:  (u^2 + s^2) / (u + s),                    the weights u / (u + s) and s / (u + s) that their text gives for equation 7. The
               closed form printed there, 2 u s / (u + s), is 0 at both ends of the range, so its least is always an end.

Thresholds are looked for among numbers of three digits, so that none is one person's budget to the last one.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sartor.errors import SartorError
from sartor.numbers import several

Array = NDArray[np.float64]
Threshold = str | Sequence[float]
"""What may be asked for: "fixed:W" with a weight W of the unused, "adaptive", or one number for each round."""

_CANDIDATES = 401
_DIGITS = 3
_ROUNDING = 1e-9  # of differences of budgets


def wastes(epsilon: Array, weight: Array, tau: Array) -> tuple[Array, Array]:
    """What is wasted by coins, u, and above the threshold, s, at each of some thresholds."""
    eps, at = epsilon[None, :], tau[:, None]
    with np.errstate(over="ignore", invalid="ignore"):
        unused = eps * np.maximum(1 - np.exp(_log_expm1(eps) - _log_expm1(at)), 0.0)
    below = np.where(eps < at, unused, 0.0) @ weight
    return below, np.maximum(eps - at, 0.0) @ weight


def loss(epsilon: Array, weight: Array, tau: Array, rule: str) -> Array:
    """The loss of each of some thresholds by a rule, "fixed:W" or "adaptive"."""
    unused, above = wastes(epsilon, weight, tau)
    share = _share(rule)
    if share is not None:
        return np.asarray(share * unused + (1 - share) * above)
    total = unused + above
    return np.asarray(np.where(total > 0, (unused**2 + above**2) / np.where(total > 0, total, 1.0), 0.0))


def best(epsilon: Array, weight: Array, rule: str) -> float:
    """The threshold between the smallest and the largest budget at which the loss is least."""
    low, high = float(epsilon.min()), float(epsilon.max())
    among = np.unique([rounded(value) for value in np.linspace(low, high, _CANDIDATES)])
    within = among[(among >= low * (1 - _ROUNDING)) & (among <= high * (1 + _ROUNDING))]
    among = within if len(within) else among
    return float(among[int(np.argmin(loss(epsilon, weight, among, rule)))])


def rounded(value: float) -> float:
    """A number of three digits near a value."""
    return float(f"{value:.{_DIGITS}g}")


def is_rule(threshold: object) -> bool:
    """Whether a threshold is asked for by a rule; refuses texts that are none."""
    if isinstance(threshold, str):
        _share(threshold)
        return True
    return False


def asked(threshold: Any) -> str | tuple[Any, ...]:
    """A threshold as it was asked for: the text of a rule, or one number for each round, of which a single one may stand alone."""
    if isinstance(threshold, str):
        return threshold
    if isinstance(threshold, Real):
        return (threshold,)
    if not isinstance(threshold, (Sequence, np.ndarray)) or isinstance(threshold, bytes) or not len(threshold):
        raise SartorError(f'a threshold is "fixed:W", "adaptive", or a list of one number for each round, not {threshold!r}.')
    return tuple(threshold)


def given(values: Sequence[Any], rounds: int) -> tuple[float, ...]:
    """Thresholds that were given, one for each round."""
    if not all(isinstance(value, Real) and not isinstance(value, bool) and 0 < float(value) < np.inf for value in values):
        raise SartorError("thresholds are positive numbers, one for each round.")
    if len(values) != rounds:
        raise SartorError(
            f"{several(rounds, 'round')} cannot have {several(len(values), 'threshold')}: give one for each round, or a rule."
        )
    return tuple(float(value) for value in values)


def ascending(values: Sequence[float]) -> bool:
    """Whether each lies above the one before."""
    return all(low < high for low, high in pairwise(values))


def _share(rule: str) -> float | None:
    """The weight of the unused in a fixed loss; None for the adaptive one."""
    if rule == "adaptive":
        return None
    found = re.fullmatch(r"fixed:([0-9.eE+-]+)", rule)
    try:
        share = float(found[1]) if found else -1.0
    except ValueError:
        share = -1.0
    if not 0 <= share <= 1:
        raise SartorError(f'a threshold is "fixed:W" with a weight W in [0, 1], "adaptive", or a number for each round, not "{rule}".')
    return share


def _log_expm1(value: Array) -> Array:
    """log(e^x - 1), for large x too."""
    return np.asarray(value + np.log(-np.expm1(-value)))
