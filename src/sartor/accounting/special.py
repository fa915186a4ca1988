"""SciPy's special functions, imported when first used: loading them takes longer than the rest of the library."""

from __future__ import annotations

from typing import Any


def ndtr(x: Any) -> Any:
    """The standard normal distribution function."""
    from scipy import special

    return special.ndtr(x)


def log_ndtr(x: Any) -> Any:
    """Its logarithm."""
    from scipy import special

    return special.log_ndtr(x)


def ndtri_exp(x: Any) -> Any:
    """The point at which its logarithm is x."""
    from scipy import special

    return special.ndtri_exp(x)


def gammaln(x: Any) -> Any:
    """The logarithm of the gamma function."""
    from scipy import special

    return special.gammaln(x)
