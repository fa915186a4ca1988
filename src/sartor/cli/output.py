"""What every command shares: reading lists and budgets, printing sentences, tables and JSON.

What a command was asked for is one frozen value, from the command line or a file of settings. The fields of the value are the options:
their annotations hold the help, their defaults stand for what was not said.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import json
import os
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from sartor.errors import SartorError
from sartor.run.files import lead_nowhere, same

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

    Settings = TypeVar("Settings", bound=DataclassInstance)

_WORDS = {int: "a whole number", float: "a number", str: "a text", bool: "true or false"}


def flat(command: Callable[..., None]) -> Callable[..., None]:
    """A command that takes a value first, as one with an option for each of the value's fields."""
    (name, *_), hints = inspect.signature(command).parameters, get_type_hints(command, include_extras=True)
    kind = hints.pop(name)
    inner = {field.name: field.default for field in fields(kind)}
    outer = {option: parameter.default for option, parameter in inspect.signature(command).parameters.items() if option != name}
    known = {**get_type_hints(kind, include_extras=True), **hints}

    @functools.wraps(command)
    def flattened(**given: Any) -> None:
        command(kind(**{option: given[option] for option in inner}), **{option: given[option] for option in outer})

    options = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=known[option])
        for option, default in {**inner, **outer}.items()
    ]
    flattened.__signature__ = inspect.Signature(options)  # type: ignore[attr-defined]
    flattened.__annotations__ = {option: known[option] for option in (*inner, *outer)}
    return flattened


def said(settings: DataclassInstance) -> dict[str, Any]:
    """What was said, by option: all that is neither nothing nor a flag that was left out."""
    found = {field.name: getattr(settings, field.name) for field in fields(settings)}
    return {name: value for name, value in found.items() if value is not None and value is not False}


def over(settings: Settings, below: Settings) -> Settings:
    """The settings, with those below where nothing was said."""
    return replace(below, **said(settings))


def from_document(kind: type[Settings], document: Mapping[str, Any], name: str) -> Settings:
    """The settings in a document, each of its option's type; `name` says in messages where they are from."""
    kinds = {option: _kind(hint) for option, hint in get_type_hints(kind).items()}
    unknown = [option for option in document if option not in kinds]
    if unknown:
        raise SartorError(f"{name} has a setting {', '.join(unknown)} that does not exist; the settings are {', '.join(kinds)}.")
    for option, value in document.items():
        wanted = kinds[option]
        right = isinstance(value, (int, float) if wanted is float else wanted)
        if not right or (isinstance(value, bool) and wanted is not bool):
            raise SartorError(f"in {name}, {option} must be {_WORDS[wanted]}.")
    return kind(**document)


def listed(document: Mapping[str, Any], names: Collection[str]) -> dict[str, Any]:
    """The document with these options as texts with commas; they may be written so, as one number, or as a list."""
    return {name: _joined(value) if name in names else value for name, value in document.items()}


def _joined(value: Any) -> Any:
    if isinstance(value, list):
        return ",".join(str(item) for item in value)
    return value if isinstance(value, bool | str) else str(value)


def _kind(hint: Any) -> type:
    """The type of an option that may be left out."""
    return next(kind for kind in (bool, int, float, str) if kind in (hint, *get_args(hint)))


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
