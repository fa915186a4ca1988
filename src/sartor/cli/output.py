"""What every command shares: reading lists and budgets, printing sentences, tables and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sartor.budgets import Budgets, Policy
from sartor.errors import SartorError
from sartor.numbers import numbers
from sartor.run.files import lead_nowhere, same


def say(sentence: str) -> None:
    """A line for the person at the terminal, beside the result."""
    print(sentence, file=sys.stderr)


def shortened(text: str) -> str:
    """A path, say, as it fits into a sentence."""
    return text if len(text) <= 100 else f"{text[:80]}... ({len(text)} characters)"


def print_json(document: dict[str, Any]) -> None:
    """One document on stdout."""
    with _written():
        print(json.dumps(document, indent=2, allow_nan=False))


def show(thing: Any) -> None:
    """A table or text on stdout, as wide as it needs where nobody watches."""
    from rich.console import Console

    with _written():
        console = Console() if sys.stdout.isatty() else Console(width=160, no_color=True)
        console.on_broken_pipe = _no_reader  # type: ignore[method-assign]
        console.print(thing, markup=False, highlight=False)


def _no_reader() -> None:
    raise BrokenPipeError


@contextmanager
def _written() -> Iterator[None]:
    """What is printed inside has left when this ends; an output that is full or closed is told, one that nobody reads any more ends all."""
    if sys.stdout is None or sys.stdout.closed:
        raise SartorError("standard output is closed: give a file or a terminal to print to.")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_printing()
        raise
    except OSError as error:
        give_up_printing()
        raise SartorError(f"standard output cannot be written: {error.strerror}.") from None


def give_up_printing() -> None:
    """Let what is left to print go nowhere, so that it does not fail once more when the program ends."""
    with contextlib.suppress(OSError, ValueError):
        lead_nowhere(sys.stdout.fileno())


def check_seed(seed: int | None) -> None:
    """Refuse a seed that not every generator takes."""
    if seed is not None and not 0 <= seed < 2**63:
        raise SartorError(f"a seed must be 0 or more and below 2^63, not {seed}.")


@contextmanager
def working(sentence: str) -> Iterator[None]:
    """Shows on stderr, if it is a terminal, that something is going on."""
    from rich.console import Console

    console = Console(stderr=True)
    if not console.is_terminal:
        yield
        return
    with console.status(sentence):
        yield


@contextmanager
def initial_weights(seed: int | None) -> Iterator[None]:
    """Models built inside start from the weights of a seed, or from others every time; torch's own generator is left as it was."""
    import torch

    with torch.random.fork_rng(devices=[]):
        if seed is None:
            torch.seed()
        else:
            torch.manual_seed(seed)
        yield


def refuse_inputs(out: str | os.PathLike[str], *inputs: str | None) -> None:
    """Refuse to write in the place of a file that the command reads, by whatever name or link."""
    if any(same(out, path) for path in inputs if path is not None):
        raise SartorError(f"--out {out} is a file that this command reads: write elsewhere.")


def budgets_from(
    *,
    epsilon: str | None,
    share: str | None,
    holders: int | None,
    delta: str | None,
    budgets: str | None,
    policy: str | None,
    reserve: float,
    seed: int | None,
) -> Budgets:
    """Budgets as the options describe them: shares of a number of holders, or a file."""
    check_seed(seed)
    if policy is not None and budgets is None:
        raise SartorError("--policy maps the levels of a file of budgets: it goes with --budgets.")
    if (budgets is None) == (epsilon is None):
        raise SartorError("give either --epsilon with --share and --holders, or --budgets with a file.")
    deltas = None if delta is None else numbers(delta, "--delta")
    if budgets is not None:
        if share is not None or holders is not None:
            raise SartorError("--share and --holders go with --epsilon; a file of budgets says both itself.")
        if deltas is not None and len(deltas) > 1:
            raise SartorError("with --budgets, --delta is one number, for the rows that have none of their own.")
        own = None if policy is None else Policy.from_toml(policy)
        return Budgets.from_csv(budgets, delta=None if deltas is None else deltas[0], policy=own, reserve=reserve)
    assert epsilon is not None
    if holders is None or deltas is None:
        raise SartorError("--epsilon needs --holders and --delta.")
    values = numbers(epsilon, "--epsilon")
    shares = [1.0] if share is None and len(values) == 1 else numbers(share or "", "--share")
    if len(deltas) not in (1, len(values)):
        raise SartorError(f"there are {len(values)} epsilons but {len(deltas)} deltas.")
    return Budgets.from_shares(values, shares, holders=holders, delta=deltas[0] if len(deltas) == 1 else deltas, seed=seed, reserve=reserve)
