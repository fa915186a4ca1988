"""What can go wrong, by name. Every message is one sentence with the way out; none shows one holder's budget."""

from __future__ import annotations


class SartorError(ValueError):
    """A request that cannot be carried out as given."""


class InvalidBudget(SartorError):
    """Budgets that are not budgets: zero, negative or missing numbers, unknown levels, duplicate holders."""


class Infeasible(SartorError):
    """A request that no parameters can meet; the message names the group and the limit that binds."""


class Overspent(SartorError):
    """Parameters under which somebody would spend more than their budget: such a plan cannot be constructed."""


class Exhausted(SartorError):
    """The plan's steps are done: a further one would spend what nobody allowed."""


class SartorWarning(UserWarning):
    """Something that holds its promise but is probably not what was meant."""


class RarelyUsed(SartorWarning):
    """A group whose members are expected to be used less than once in the whole run."""


class Unspent(SartorWarning):
    """A plan whose stretches or thresholds leave a part of the budgets unused."""


class NoNoise(SartorWarning):
    """Public records alone, or deltas that allow everything: the run adds no noise and protects nobody."""


class Unsound(SartorWarning):
    """A published algorithm whose guarantee does not hold: it is here to be compared with."""


class AllDrawn(SartorWarning):
    """Sampling that draws everybody at every step: it cannot tell budgets apart, and the strictest sets the noise for all."""


class NoAccuracy(SartorWarning):
    """Classes that are not where accuracy is counted: outputs of shape (examples, classes, ...), targets (examples, ...)."""


class LargeDelta(SartorWarning):
    """A delta above one in the number of holders, which would allow to publish somebody's record outright."""


def warned(warning: Warning) -> str:
    """Say why a command ended where warnings are errors."""
    told = " ".join(str(warning).split())
    return f"a warning was turned into an error: start without -W error and PYTHONWARNINGS ({type(warning).__name__}: {told})"
