"""Plans of several models: `fit` and `make_private` train one model throughout, so they refuse them; `fit_members` trains each.

A plan of scheme "adapdp" says of its stages that each trains a model of its own. One model over all stages would be as private, and not
what the scheme is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from sartor.errors import SartorError

OF_MEMBERS = "adapdp"
"""The scheme whose stages train a model each."""
_BEGINS_ANEW: ContextVar[bool] = ContextVar("begins_anew", default=False)


def refuse_members(plan: object) -> None:
    """Refuse a plan of several models, unless who trains begins anew at each stage."""
    if getattr(plan, "scheme", None) == OF_MEMBERS and not _BEGINS_ANEW.get():
        raise SartorError(
            f'a plan of scheme "{OF_MEMBERS}" trains one model for each round: give it to sartor.sgd.fit_members, or make a plan of scheme '
            '"rounds" for one model.'
        )


@contextmanager
def begun_anew() -> Iterator[None]:
    """For as long as it lasts, whoever trains sees to it that every stage begins with a fresh model."""
    token = _BEGINS_ANEW.set(True)
    try:
        yield
    finally:
        _BEGINS_ANEW.reset(token)
