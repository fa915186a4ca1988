"""Options as types: what a command was asked for is one frozen value, from the command line or a file of settings.

The fields of the value are the options: their annotations hold the help, their defaults stand for what was not said.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection, Mapping
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, TypeVar, get_args, get_type_hints

from sartor.errors import SartorError

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
