"""From individual Rényi divergences to personal guarantees, (Phi, Delta)-PDP (PDP-SGD, theorem 4.8)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sartor.accounting import rdp

Array = NDArray[np.float64]


def personal_epsilon(divergence: ArrayLike, orders: ArrayLike, delta: ArrayLike) -> Array:
    """Each holder's epsilon at their own delta, from Rényi divergences (holders, orders) of the whole run with them and without.

    Guarantee: a mechanism whose divergence at order a is at most rho_i for holder i satisfies (Phi, Delta)-PDP with Phi_i = rho_i +
        log(1 / delta_i) / (a - 1); of several orders the best counts.
    Proof: theorem 4.8, which is Mironov 2017, proposition 3, holder by holder.
    Breaks if: the divergences are bounded in one direction only, or follow from the data: readings of realised norms are no bounds.

    Example:
        >>> personal_epsilon([[0.02, 0.1], [0.08, 0.4]], [5.0, 25.0], 1e-5).round(3).tolist()
        [0.58, 0.88]
    """
    found, at = np.asarray(divergence, float), np.asarray(orders, float)
    if found.ndim != 2 or at.shape != found.shape[1:]:
        raise ValueError("divergences have a row for each holder and a column for each order.")
    if np.any(~(found >= 0)) or np.any(~(at > 1)):
        raise ValueError("divergences are 0 or more, and orders above 1.")
    deltas = np.broadcast_to(np.asarray(delta, float), found.shape[:1])
    if np.any(~((deltas > 0) & (deltas < 1))):
        raise ValueError("deltas must lie strictly between 0 and 1.")
    return rdp.to_epsilon(found, at, deltas, "mironov")
