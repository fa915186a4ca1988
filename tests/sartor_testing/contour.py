"""Exact figures of the sampled Gaussian in forty digits, by a way that shares nothing with a grid of losses.

For n steps let rho be the ratio of one step's output densities, with the holder over without, and G(a) = E[rho^a] under the density
without. The loss has the moment generating function M(s) = G(s + 1)^n when the holder is removed and G(-s)^n when they are added, and

    delta(epsilon) = 1 / (2 pi i) * integral of M(s) e^(-s epsilon) / (s (s + 1)) ds   along Re s = c, for any c > 0

(Alghamdi et al. 2023, "The Saddle-Point Method in Differential Privacy"). Two integrals of analytic functions are all there is, both by the
trapezoidal rule, whose error falls exponentially. The value does not depend on c, so lines that agree to many digits prove each other.

Outputs further out than `reach` deviations are left out, which lowers delta by at most their probability with the holder, `steps` times
that of one step (see `cut_off`). They have to be left out: at the orders in question, outputs that will never be seen dominate G, which is
why the Rényi bound is weak where rates are small.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import mpmath as mp

DIGITS = 40
NEGLIGIBLE = 1e-25  # share of an integral that its ends may have


@dataclass(frozen=True)
class Exact:
    """`steps` of the Gaussian of this noise multiplier, sampled at a rate below 1; `reach` and the trapezoidal `step` are in deviations."""

    rate: float
    noise: float
    steps: int
    reach: float = 16.0
    step: float = 0.25

    @property
    def cut_off(self) -> mp.mpf:
        """The most that the outputs left out can hold of any delta."""
        beyond = self.reach - 1 / mp.mpf(self.noise)
        return self.steps * mp.erfc(beyond / mp.sqrt(2))

    @cached_property
    def _nodes(self) -> tuple[list[mp.mpf], list[mp.mpf]]:
        """log rho and the normal weight at each node."""
        mu, q, h = 1 / mp.mpf(self.noise), mp.mpf(self.rate), mp.mpf(self.step)
        count = round(self.reach / self.step)
        points = [h * k for k in range(-count, count + 1)]
        return (
            [mp.log1p(q * mp.expm1(mu * x - mu**2 / 2)) for x in points],
            [h * mp.exp(-(x**2) / 2) / mp.sqrt(2 * mp.pi) for x in points],
        )

    def moments(self, a: mp.mpc) -> tuple[mp.mpc, mp.mpc, mp.mpc]:
        """G, its first and its second derivative at a."""
        total = first = second = mp.mpc(0)
        for loss, weight in zip(*self._nodes, strict=True):
            term = weight * mp.exp(a * loss)
            total, first, second = total + term, first + loss * term, second + loss**2 * term
        if abs(term) > NEGLIGIBLE * abs(total):
            raise ArithmeticError("the integral goes on beyond its reach")
        return total, first, second

    def _cumulant(self, s: mp.mpc, way: str) -> tuple[mp.mpc, mp.mpc, mp.mpc]:
        """log M and its derivatives at s."""
        sign = 1 if way == "remove" else -1
        g, first, second = self.moments(s + 1 if way == "remove" else -s)
        slope = first / g
        return self.steps * mp.log(g), sign * self.steps * slope, self.steps * (second / g - slope**2)

    def saddle(self, epsilon: mp.mpf, way: str) -> tuple[mp.mpf, mp.mpf]:
        """Where the integrand is smallest on the positive axis, and how fast it falls from there along the line: c and 1 / deviation^2."""
        c = mp.mpf(1)
        for _ in range(200):
            _, slope, curve = self._cumulant(c, way)
            value = mp.re(slope) - epsilon - 1 / c - 1 / (c + 1)
            bend = mp.re(curve) + 1 / c**2 + 1 / (c + 1) ** 2
            new = max(c - value / bend, c / 3)
            new = min(new, 3 * c)
            if abs(new - c) < c * mp.mpf("1e-6"):
                return new, bend
            c = new
        raise ArithmeticError("the saddle was not found")

    def delta(self, epsilon: float | mp.mpf, way: str, shift: float = 1.0) -> tuple[mp.mpf, mp.mpf]:
        """delta(epsilon) and its derivative, along the line `shift` times as far out as the saddle."""
        with mp.workdps(DIGITS + 10):
            eps = mp.mpf(epsilon)
            c, bend = self.saddle(eps, way)
            c = c * mp.mpf(shift)
            h = min(1 / mp.sqrt(bend), c) / 16
            total, slope, k = mp.mpf(0), mp.mpf(0), 0
            while True:
                s = mp.mpc(c, k * h)
                value = mp.exp(self._cumulant(s, way)[0] - s * eps) / (s * (s + 1)) * (1 if k else mp.mpf(1) / 2)
                total, slope, k = total + mp.re(value), slope - mp.re(s * value), k + 1
                if abs(value) < abs(total) * mp.mpf(10) ** -DIGITS:
                    return total * h / mp.pi, slope * h / mp.pi

    def epsilon_of(self, delta: float, start: float, way: str) -> mp.mpf:
        """The epsilon at which one direction has this divergence, by Newton's steps on its logarithm."""
        with mp.workdps(DIGITS):
            eps, goal = mp.mpf(start), mp.log(mp.mpf(delta))
            for _ in range(50):
                value, slope = self.delta(eps, way)
                change = (mp.log(value) - goal) * value / slope
                eps = max(eps - change, eps / 2)
                if abs(change) < eps * mp.mpf("1e-15"):
                    return eps
        raise ArithmeticError("Newton's steps did not settle")
