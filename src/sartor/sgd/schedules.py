"""What a learning-rate scheduler is, as digests: the part that stays the same through a run, and the whole of it at one moment.

Nobody can see from outside what `load_state_dict` puts back, so a run that resumes does not guess: the whole scheduler as it was saved is
compared with the whole one as it stands once its state was loaded. Whatever came back is equal, and whatever did not must have been made
equal: the arguments of a partial, the variables of a closure, the attributes of a class of one's own.

Guarantee: two schedulers with the same `whole` were made by the same code and stand at the same place, as far as `digests` sees them.
Breaks if: a scheduler keeps what it follows out of its attributes (in a global variable, a file, the clock).
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
from torch import nn
from torch.optim import Optimizer
from torch.optim.lr_scheduler import LRScheduler

from sartor.sgd.digests import Scope, attributes, digest


def lasting(scheduler: Any) -> str | None:
    """What stays the same while a scheduler steps: its class, and the functions that it asks."""
    return None if scheduler is None else digest((type(scheduler), _asked(scheduler)))


def whole(scheduler: Any, scope: Scope) -> str | None:
    """A scheduler with all its attributes; its optimizer, and what the model in `scope` restores, count by their names alone."""
    return None if scheduler is None else digest(_parts(scheduler, ()), scope)


def _asked(value: Any) -> Any:
    if _is_scheduler(value):
        inner = {name: _asked(part) for name, part in sorted(attributes(value).items()) if not isinstance(part, Optimizer)}
        return type(value), {name: part for name, part in inner.items() if part}
    if isinstance(value, list | tuple):
        return [part for part in map(_asked, value) if part]
    if hasattr(value, "__code__") or isinstance(value, functools.partial):
        return value
    return type(value) if callable(value) else None


def _parts(value: Any, above: tuple[int, ...]) -> Any:
    """A scheduler and those in it by their attributes, and plain values as JSON gives them back (lists for tuples, Python's numbers)."""
    if isinstance(value, Optimizer):
        return type(value)
    if _is_scheduler(value):
        if id(value) in above:
            return "again", above.index(id(value))
        return type(value), {name: _parts(part, (*above, id(value))) for name, part in sorted(attributes(value).items())}
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, float):
        return float(value)
    if isinstance(value, list | tuple):
        return [_parts(part, above) for part in value]
    if isinstance(value, Mapping):
        return {key: _parts(part, above) for key, part in value.items()}
    return value


def _is_scheduler(value: Any) -> bool:
    return isinstance(value, LRScheduler) or (not isinstance(value, type | Optimizer | nn.Module) and hasattr(value, "load_state_dict"))
