"""What every command shares: reading lists and budgets, printing sentences, tables and JSON."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sartor.errors import SartorError
from sartor.run.files import lead_nowhere, same


def say(sentence: str) -> None:
    """A line for the person at the terminal, beside the result: one line, whatever names and values it repeats."""
    words = re.sub(r"\S{300,}", lambda word: shortened(word[0]), sentence)
    with contextlib.suppress(OSError):  # there may be nobody to read it, which is no reason for another exit code
        print("".join(letter if letter.isprintable() else repr(letter)[1:-1] for letter in words), file=sys.stderr)


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
        wide = None if sys.stdout.isatty() or "COLUMNS" in os.environ else 160
        console = Console(width=wide, no_color=not sys.stdout.isatty())
        console.on_broken_pipe = _no_reader  # type: ignore[method-assign]
        console.print(thing, markup=False, highlight=False)


def _no_reader() -> None:
    raise BrokenPipeError


@contextmanager
def _written() -> Iterator[None]:
    """What is printed inside has left when this ends; an output that is full, closed or read by nobody any more ends the command."""
    if sys.stdout is None or sys.stdout.closed:
        raise SartorError("standard output is closed: give a file or a terminal to print to.")
    try:
        yield
        sys.stdout.flush()
    except OSError as error:
        give_up_printing()
        why = "nobody reads it any more" if isinstance(error, BrokenPipeError) else error.strerror
        raise SartorError(f"standard output cannot be written: {why}.") from None


def give_up_printing() -> None:
    """Let what is left to print go nowhere, so that it does not fail once more when the program ends."""
    with contextlib.suppress(OSError, ValueError):
        lead_nowhere(sys.stdout.fileno())


@contextmanager
def working(sentence: str) -> Iterator[None]:
    """Shows on stderr, if it is a terminal, that something is going on."""
    from rich.console import Console

    try:
        own = os.fdopen(os.dup(sys.stderr.fileno()), "w")  # so that it is not taken for what somebody prints inside
    except (OSError, ValueError, AttributeError):
        yield
        return
    with own:
        console = Console(file=own)
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
        raise SartorError(f"{out} is a file that this command reads: write elsewhere.")
