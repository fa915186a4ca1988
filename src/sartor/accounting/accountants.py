"""Accountants: what each can judge, and how. One more is one more class here, or a `register` call elsewhere.

An accountant answers for exposures; nothing else in the library knows how. Solvers and plans ask `spend`, reports ask `epsilon` and
`delta`, later releases compose with `profile`, and audits compare with `floor`.

Example:
    >>> from sartor.accounting import SampledGaussian, accountants
    >>> sorted(accountants.names())
    ['pld', 'rdp']
    >>> accountants.find("pld").supports(SampledGaussian(0.01, 1.0, 100))
    True
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from sartor.accounting import pld, rdp
from sartor.errors import SartorError
from sartor.exposure import Composition, Exposure, Included
from sartor.relation import ZERO_OUT

Array = NDArray[np.float64]


class ArrayBounds(NamedTuple):
    """Figures between two bounds each; promises use `upper`."""

    lower: Array
    estimate: Array
    upper: Array


class Accountant(Protocol):
    """What judges exposures. Every upper figure must be at least the true one, in either direction of the exposure's relation.

    `waste` is the share of a budget that solvers aim to leave unspent at most. Searches begin at Rényi's figure; `refines` says that this
    accountant's differs from it, so that it has to be asked as well.
    """

    @property
    def name(self) -> str:
        """By which plans and documents name it."""

    @property
    def waste(self) -> float:
        """Share of a budget that is not worth a further search."""

    @property
    def refines(self) -> bool:
        """Whether it says anything else than the Rényi accountant."""

    def supports(self, exposure: Exposure) -> bool:
        """Whether it can judge this exposure."""

    def spend(self, rate: Array, noise_multiplier: Array, steps: Array, delta: Array, accuracy: float) -> Array:
        """Epsilon (upper) of many sampled Gaussians with positive rates, steps and noise, each at its own delta."""

    def epsilon(self, exposures: Sequence[Exposure], delta: Array, accuracy: float) -> ArrayBounds:
        """Epsilon of each exposure at its delta."""

    def delta(self, exposures: Sequence[Exposure], epsilon: Array, accuracy: float) -> ArrayBounds:
        """Delta of each exposure at its epsilon."""

    def profile(self, exposure: Exposure, epsilon: Array) -> Array:
        """Delta (upper) of one exposure at each epsilon."""

    def floor(self, exposures: Sequence[Exposure], delta: Array) -> Array:
        """An epsilon that each exposure costs at least, at its delta; 0 where nothing is proven."""


class Renyi:
    """Rényi divergences at many orders: quick, and an upper bound that numerics do not blur; it proves nothing from below.

    It does not judge a holder who owns several records.
    """

    name, waste, refines = rdp.NAME, 1e-6, False

    def supports(self, exposure: Exposure) -> bool:
        """See `_is_known` and `rdp.knows`."""
        return _is_known(exposure) and rdp.knows(exposure)

    def spend(self, rate: Array, noise_multiplier: Array, steps: Array, delta: Array, accuracy: float) -> Array:
        """See `Accountant`."""
        return rdp.epsilon_and_order(rate, noise_multiplier, steps, delta)[0]

    def epsilon(self, exposures: Sequence[Exposure], delta: Array, accuracy: float) -> ArrayBounds:
        """See `Accountant`; numerics leave no gap, so all three are the bound itself."""
        value = rdp.epsilon_of(list(exposures), delta, rdp.ORDERS, "balle")
        return ArrayBounds(value, value, value)

    def delta(self, exposures: Sequence[Exposure], epsilon: Array, accuracy: float) -> ArrayBounds:
        """See `Accountant`; numerics leave no gap, so all three are the bound itself."""
        value = rdp.delta_of(list(exposures), epsilon, rdp.ORDERS, "balle")
        return ArrayBounds(value, value, value)

    def profile(self, exposure: Exposure, epsilon: Array) -> Array:
        """See `Accountant`."""
        return rdp.delta_of([exposure] * len(epsilon), epsilon, rdp.ORDERS, "balle")

    def floor(self, exposures: Sequence[Exposure], delta: Array) -> Array:
        """Nothing is proven from below."""
        return np.zeros(len(exposures))


class LossDistributions:
    """Privacy-loss distributions on a grid, rounded up: tight, with a proven lower bound beside the upper one."""

    name, waste, refines = "pld", 2e-4, True

    def supports(self, exposure: Exposure) -> bool:
        """See `_is_known`."""
        return _is_known(exposure)

    def spend(self, rate: Array, noise_multiplier: Array, steps: Array, delta: Array, accuracy: float) -> Array:
        """See `Accountant`."""
        return pld.epsilon_of_each(rate, noise_multiplier, steps, delta, accuracy)

    def epsilon(self, exposures: Sequence[Exposure], delta: Array, accuracy: float) -> ArrayBounds:
        """See `Accountant`."""
        return _gathered([pld.epsilon_bounds(e, delta[i : i + 1], accuracy) for i, e in enumerate(exposures)])

    def delta(self, exposures: Sequence[Exposure], epsilon: Array, accuracy: float) -> ArrayBounds:
        """See `Accountant`."""
        return _gathered([pld.delta_bounds(e, epsilon[i : i + 1], accuracy) for i, e in enumerate(exposures)])

    def profile(self, exposure: Exposure, epsilon: Array) -> Array:
        """See `Accountant`; in the worse direction."""
        by_direction = pld.Profile(exposure).delta(epsilon)
        return np.maximum(by_direction["remove"], by_direction["add"])

    def floor(self, exposures: Sequence[Exposure], delta: Array) -> Array:
        """See `Accountant`."""
        return self.epsilon(exposures, delta, pld.REPORTING_ACCURACY).lower


def _is_known(exposure: Exposure) -> bool:
    """Every exposure under zeroing; under other relations, where nobody is sampled: a plain Gaussian is the same in all."""
    if exposure.relation == ZERO_OUT:
        return True
    if isinstance(exposure, Composition):
        return all(_is_known(part) for part in exposure.parts)
    return not isinstance(exposure, Included) and exposure.rate in (0, 1)


def _gathered(figures: list[tuple[Array, Array, Array]]) -> ArrayBounds:
    return ArrayBounds(*(np.array([float(figure[k][0]) for figure in figures]) for k in range(3)))


_KNOWN: dict[str, Accountant] = {}


def register(accountant: Accountant) -> None:
    """Make an accountant known by its name, which must be new: what a plan was promised by cannot be exchanged."""
    if accountant.name in _KNOWN:
        raise SartorError(f'there is an accountant "{accountant.name}" already.')
    _KNOWN[accountant.name] = accountant


def names() -> tuple[str, ...]:
    """All accountants by name."""
    return tuple(_KNOWN)


def find(name: str) -> Accountant:
    """The accountant of this name."""
    found = _KNOWN.get(name) if isinstance(name, str) else None
    if found is None:
        raise SartorError(f'there is no accountant "{name}"; there are {" and ".join(_KNOWN)}.')
    return found


register(Renyi())
register(LossDistributions())
