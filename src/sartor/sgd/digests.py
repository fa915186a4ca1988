"""Values and code as digests that are the same in another process: what a function computes, how an object was set, what a tensor holds.

Code of the user is followed as far as Python shows it: bytecode, constants, names, defaults, closures, the globals that it reads, the
methods of classes. Code of installed packages and of Python counts by its name, its file and the package's version, which `Scope.packages`
collects. Digests hold no address, no order of a set, no line number, no name of a file or folder.

Guarantee: two values with the same digest were made by the same code from the same settings, as far as these can be seen.
Breaks if: what is computed follows from something out of sight: an extension in C whose version stays the same, functions imported inside
    of functions, names looked up at run time (`getattr` of a computed name), files and global state read on the way, private attributes of
    packages' objects, objects that keep what they are to themselves (they count by their class), whatever lies beyond the bounds below
    (numbers and text in lists and dictionaries have none: a vocabulary counts word by word).
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import dis
import functools
import hashlib
import io
import logging
import operator
import os
import random
import re
import threading
import types
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from pathlib import PurePath
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from sartor.sgd.packages import package, package_of, source, version

_MOST, _DEEPEST, _LONGEST, _LARGEST = 100_000, 60, 10_000, 2**26  # objects of a walk, levels, objects in a container, bytes of a tensor
_FOREIGN = 3  # how deep objects of packages are followed, one in another
_PLAIN = (
    *(type(None), bool, int, float, complex, str, bytes, type(...), range, torch.dtype, torch.device, torch.layout, torch.memory_format),
    *(np.dtype, np.generic),
)
_WRITTEN_OUT = frozenset({type(None), bool, int, float, complex, str, bytes})  # values that `repr` tells apart, whatever they are in
_OPAQUE = (
    *(logging.Logger, logging.Handler, io.IOBase, threading.Thread, concurrent.futures.Executor, concurrent.futures.Future),
    *(weakref.ref, weakref.WeakSet, weakref.WeakKeyDictionary, weakref.WeakValueDictionary, types.GeneratorType, types.FrameType),
    *(torch.Generator, random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator),
    *(torch.optim.Optimizer, torch.optim.lr_scheduler.LRScheduler),
)
_DESCRIPTORS = (
    *(types.WrapperDescriptorType, types.MethodDescriptorType, types.ClassMethodDescriptorType, types.MethodWrapperType),
    *(types.GetSetDescriptorType, types.MemberDescriptorType),
)
_OF_PYTHON = frozenset(
    {"__dict__", "__weakref__", "__doc__", "__module__", "__qualname__", "__firstlineno__", "__static_attributes__", "__abstractmethods__"}
    | {"_abc_impl", "__orig_bases__", "__parameters__", "__subclasshook__", "__classcell__"}
)
_OF_MODULES = frozenset(vars(nn.Module()))
_HOOKS = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")


@dataclass
class Scope:
    """What values may refer to without being described by it, and what was met on the way."""

    layers: Mapping[int, str] = field(default_factory=dict)  # the model's modules by their ids, which are described one by one
    restored: frozenset[int] = frozenset()  # the memory of tensors that a checkpoint puts back
    packages: dict[str, str] = field(default_factory=dict)
    mentioned: set[str] = field(default_factory=set)  # all names in the user's code


def digest(value: Any, scope: Scope | None = None) -> str:
    """A value's digest; `scope` learns which packages were met.

    >>> digest(lambda x: x + 1) == digest(lambda x: x + 1), digest(lambda x: x + 1) == digest(lambda x: x + 2)
    (True, False)
    """
    return _Walk(Scope() if scope is None else scope).of(value)


@functools.lru_cache(maxsize=4096)
def _names(code: types.CodeType) -> tuple[tuple[str, ...], frozenset[str]]:
    """Which globals code reads and does not write, and all names that it mentions."""
    read, written, mentioned = set(), set(), set()
    for part in _codes(code):
        mentioned |= {*part.co_names, *(value for value in part.co_consts if isinstance(value, str))}
        for step in dis.get_instructions(part):
            if step.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
                read.add(str(step.argval))
            elif step.opname in ("STORE_GLOBAL", "DELETE_GLOBAL"):
                written.add(str(step.argval))
    return tuple(sorted(read - written)), frozenset(mentioned)


def _codes(code: types.CodeType) -> Iterator[types.CodeType]:
    yield code
    for value in code.co_consts:
        if isinstance(value, types.CodeType):
            yield from _codes(value)


def layer(module: nn.Module) -> dict[str, Any]:
    """What a module computes with beside its class: settings, buffers that are not restored, hooks, the names of what is in it.

    Private attributes count for modules of the user's. Whether it is in training mode does not: loops set that around every step.
    """
    ours = package_of(type(module)) is None
    found: dict[str, Any] = {
        f"setting {name}": value
        for name, value in sorted(vars(module).items())
        if name not in _OF_MODULES and (ours or not name.startswith("_")) and not _place(value)
    }
    for name, buffer in module._buffers.items():
        found[f"buffer {name}"] = (name in module._non_persistent_buffers_set, buffer)
    found["layers"] = [name for name, inner in module._modules.items() if inner is not None]
    found["parameters"] = [name for name, parameter in module._parameters.items() if parameter is not None]
    hooks = [users(getattr(module, kind)) for kind in _HOOKS]
    for parameter in module._parameters.values():
        if parameter is not None:
            hooks += [users(getattr(parameter, kind, None) or {}) for kind in ("_backward_hooks", "_post_accumulate_grad_hooks")]
    found["hooks"] = [kind for kind in hooks if kind]
    if isinstance(module, torch.jit.ScriptModule | torch.fx.GraphModule):
        found["setting code"] = str(module.code)
    return found


def users(hooks: Mapping[Any, Any]) -> list[Any]:
    """Hooks in their order without those of a run, which come with the run and go with it."""
    return [hook for hook in hooks.values() if str(getattr(hook, "__module__", "")).partition(".")[0] != "sartor"]


def records(dataset: Any) -> dict[str, Any]:
    """How a data set makes its records: settings, functions and data sets in it. The records themselves are compared as data."""

    def makes(value: Any) -> bool:
        if isinstance(value, list | tuple):
            return bool(value) and all(callable(part) or isinstance(part, Dataset) for part in value)
        return isinstance(value, bool | int | float | str | Dataset) or callable(value)

    return {f"setting {name}": value for name, value in sorted(attributes(dataset).items()) if makes(value) and not _place(value)}


class _Walk:
    """One walk through a value: everything met goes into one hash, each object once (again it is a reference, so cycles end)."""

    def __init__(self, scope: Scope) -> None:
        self._scope, self._hash = scope, hashlib.blake2b(digest_size=16)
        self._met: dict[int, tuple[int, Any]] = {}  # the object is kept: the id of one that was freed may be given out again
        self._namespaces: list[Any] = []

    def of(self, value: Any) -> str:
        self._take(value, 0, 0)
        for namespace in self._namespaces:  # last, when it is known which of their names any code mentions
            self._settings({name: part for name, part in vars(namespace).items() if name in self._scope.mentioned}, 1, 0)
        return self._hash.hexdigest()

    def _say(self, *words: str) -> None:
        text = "\x1f".join(words).encode(errors="surrogatepass")
        self._hash.update(b"%d:" % len(text) + text)

    def _take(self, value: Any, depth: int, foreign: int) -> None:
        if isinstance(value, _PLAIN) and not isinstance(value, Enum):
            self._say(type(value).__name__, repr(value))
        elif type(value) in (list, tuple, dict) and _is_plain(value):
            self._say("plain", repr(value))
        elif id(value) in self._scope.layers:
            self._say("layer", self._scope.layers[id(value)])
        elif id(value) in self._met:
            self._say("again", str(self._met[id(value)][0]))
        elif depth > _DEEPEST or len(self._met) > _MOST:
            self._say("beyond", type(value).__qualname__)
        else:
            if not isinstance(value, tuple):  # equal constants may or may not be one tuple
                self._met[id(value)] = len(self._met), value
            self._describe(value, depth + 1, foreign)

    def _describe(self, value: Any, depth: int, foreign: int) -> None:
        how = next((how for kinds, how in _KINDS if isinstance(value, kinds)), _Walk._object)
        try:
            how(self, value, depth, foreign)
        except Exception:  # whatever an object does when it is looked at: then it counts by its class
            self._say("unseen", type(value).__qualname__)

    # -- values

    def _tensor(self, value: Tensor, depth: int, foreign: int) -> None:
        self._say("tensor", str(value.dtype), str(tuple(value.shape)), value.device.type)
        if value.device.type == "meta" or value.grad_fn is not None or memory(value) in self._scope.restored:
            return  # computed from parameters, or put back by the checkpoint
        if value.layout is not torch.strided or value.is_quantized:
            value = value.to_dense() if not value.is_quantized else value.int_repr()
        flat = value.detach().resolve_conj().resolve_neg().cpu().reshape(-1)
        self._bytes(flat.contiguous().view(torch.uint8).numpy().data)

    def _array(self, value: np.ndarray[Any, Any], depth: int, foreign: int) -> None:
        self._say("array", str(value.dtype), str(value.shape))
        if value.dtype.hasobject:
            self._sequence(value.ravel().tolist(), depth, foreign)
        else:
            self._bytes(np.ascontiguousarray(value).reshape(-1).view(np.uint8).data)

    def _bytes(self, content: memoryview) -> None:
        stride = max(1, -(-len(content) // _LARGEST)) if len(content) > _LARGEST else 1
        self._hash.update(content[::stride].tobytes() if stride > 1 else content)

    def _dict(self, value: Mapping[Any, Any], depth: int, foreign: int) -> None:
        self._container(value, depth, foreign)
        self._sequence([part for pair in value.items() for part in pair], depth, foreign)

    def _sequence(self, value: Any, depth: int, foreign: int) -> None:
        parts = [value.start, value.stop, value.step] if isinstance(value, slice) else list(value)
        self._container(value, depth, foreign)
        self._say(str(len(parts)))
        for part in _some(parts):
            self._take(part, depth, foreign)

    def _set(self, value: Any, depth: int, foreign: int) -> None:
        """Elements in an order of their own; those that this order cannot tell apart count by it alone."""
        self._container(value, depth, foreign)
        found = sorted(((_sorted_by(part), part) for part in value), key=operator.itemgetter(0))
        keys = collections.Counter(key for key, _ in found)
        for key, part in found:
            self._say(key)
            if keys[key] == 1:
                self._take(part, depth, foreign)

    def _container(self, value: Any, depth: int, foreign: int) -> None:
        if type(value).__module__ in ("builtins", "collections"):
            self._say("container", type(value).__qualname__)
        else:
            self._take(type(value), depth, foreign)
            self._settings({} if isinstance(value, tuple) else attributes(value), depth, foreign)

    def _settings(self, named: Mapping[str, Any], depth: int, foreign: int) -> None:
        """Values by name, whatever their order."""
        for name in sorted(named, key=str):
            value = named[name]
            if not _place(value):
                self._say("setting", str(name))
                self._take(value, depth, foreign)

    # -- code

    def _code(self, value: types.CodeType, depth: int, foreign: int) -> None:
        counts = (value.co_argcount, value.co_posonlyargcount, value.co_kwonlyargcount, value.co_flags)
        arguments = value.co_varnames[: value.co_argcount + value.co_kwonlyargcount]
        self._say("code", value.co_code.hex(), getattr(value, "co_exceptiontable", b"").hex(), repr((counts, arguments, value.co_names)))
        self._sequence(value.co_consts, depth, foreign)

    def _function(self, value: types.FunctionType, depth: int, foreign: int) -> None:
        original = getattr(value, "_torchdynamo_orig_callable", None)  # torch.compile
        if original is not None:
            self._take(original, depth, foreign)
            return
        cells = [_content(cell) for cell in value.__closure__ or ()]
        home = package_of(value)
        if home is not None:
            # its code has its own name; __qualname__ may have been copied from what it wraps
            name = value.__code__.co_qualname
            self._note(home, str(value.__globals__.get("__name__", "")), name)
            if "<locals>" in name and foreign < _FOREIGN:
                self._sequence([cells, value.__defaults__, value.__kwdefaults__], depth, foreign + 1)
            return
        self._say("function", value.__qualname__)
        self._code(value.__code__, depth, 0)
        self._sequence([value.__defaults__, value.__kwdefaults__, cells], depth, 0)
        self._settings(vars(value), depth, 0)
        read, mentioned = _names(value.__code__)
        self._scope.mentioned |= mentioned
        for name in read:
            if name in value.__globals__:
                self._say("global", name)
                self._take_named(value.__globals__[name], mentioned, depth)

    def _take_named(self, value: Any, mentioned: frozenset[str], depth: int) -> None:
        """A global; of a module only what the code mentions of it, and of a package's module only what the user put there."""
        if not isinstance(value, types.ModuleType) or depth > _DEEPEST:
            self._take(value, depth, 0)
            return
        ours = not self._foreign(value.__name__, "", _file(value))
        for name in sorted(mentioned & set(vars(value))):
            if ours or _ours(vars(value)[name]):
                self._say("global", name)
                self._take_named(vars(value)[name], mentioned - {name}, depth + 1)

    def _method(self, value: types.MethodType, depth: int, foreign: int) -> None:
        self._sequence([value.__func__, value.__self__], depth, foreign)

    def _wrapped(self, value: Any, depth: int, foreign: int) -> None:
        self._say(type(value).__name__)
        self._take(value.__func__, depth, foreign)

    def _property(self, value: property, depth: int, foreign: int) -> None:
        self._sequence([value.fget, value.fset, value.fdel], depth, foreign)

    def _builtin(self, value: Any, depth: int, foreign: int) -> None:
        if not self._foreign(str(value.__module__ or "builtins"), value.__qualname__):
            self._say("builtin", value.__qualname__)
        if not isinstance(value.__self__, type | types.ModuleType | None):
            self._take(value.__self__, depth, foreign)

    def _partial(self, value: Any, depth: int, foreign: int) -> None:
        self._sequence([value.func, value.args], depth, foreign)
        self._settings(value.keywords, depth, foreign)

    def _class(self, value: type, depth: int, foreign: int) -> None:
        """The code of the user's classes; those of packages count by name, but for what the user put into them."""
        for kind in value.__mro__:
            home = package_of(kind)
            if home is None:
                self._say("class", kind.__qualname__)
                own = {name: part for name, part in vars(kind).items() if name not in _OF_PYTHON and not name.startswith("__annot")}
            else:
                self._note(home, kind.__module__, kind.__qualname__)
                own = {name: part for name, part in vars(kind).items() if _ours(part)}
            self._settings(own, depth, 0)

    def _foreign(self, module: str, name: str, file: str | None = None) -> bool:
        found = package(module, file)
        if found is not None:
            self._note(found, module, name)
        return found is not None

    def _note(self, home: str, module: str, name: str) -> None:
        """What is of a package is told by its name and file, and the package by its version."""
        self._scope.packages[home] = version(home)
        self._say("of a package", module, name, source(module))

    # -- objects

    def _by_class(self, value: Any, depth: int, foreign: int) -> None:
        self._say("a", type(value).__qualname__)

    def _namespace(self, value: Any, depth: int, foreign: int) -> None:
        """A module, or the arguments of a command, of which --resume may be one: what no code here mentions does not count."""
        if not isinstance(value, types.ModuleType) or not self._foreign(value.__name__, "", _file(value)):
            self._namespaces.append(value)

    def _member(self, value: Enum, depth: int, foreign: int) -> None:
        self._say("member", value.name)
        self._take(type(value), depth, foreign)

    def _descriptor(self, value: Any, depth: int, foreign: int) -> None:
        self._say("descriptor", value.__qualname__)

    def _reduced(self, value: Any, depth: int, foreign: int) -> None:
        self._sequence([value.pattern, value.flags] if isinstance(value, re.Pattern) else value.__reduce__(), depth, foreign)

    def _module(self, value: nn.Module, depth: int, foreign: int) -> None:
        """A module that is none of the model's layers: nothing of it is restored, so parameters count as well."""
        self._take(type(value), depth, foreign)
        self._settings(layer(value), depth, foreign)
        self._settings({name: part for name, part in value._parameters.items() if part is not None}, depth, foreign)
        self._settings({name: part for name, part in value._modules.items() if part is not None}, depth, foreign)

    def _dataset(self, value: Dataset[Any], depth: int, foreign: int) -> None:
        self._take(type(value), depth, foreign)
        self._settings(records(value), depth, foreign)

    def _object(self, value: Any, depth: int, foreign: int) -> None:
        self._take(type(value), depth, foreign)
        if isinstance(value, torch.jit.ScriptFunction):
            self._say(str(value.code))
        named = getattr(value, "__name__", None)
        self._say("named", named if isinstance(named, str) else "")
        wrapped = getattr(value, "__wrapped__", None) or getattr(value, "__func__", None)  # caches and the like
        if callable(wrapped):
            self._take(wrapped, depth, foreign)
        ours = package_of(type(value)) is None
        if ours or foreign < _FOREIGN:
            own = {name: part for name, part in attributes(value).items() if name != "__wrapped__" and (ours or not name.startswith("_"))}
            self._settings(own, depth, 0 if ours else foreign + 1)


_KINDS: tuple[tuple[Any, Callable[[_Walk, Any, int, int], None]], ...] = (
    (Tensor, _Walk._tensor),
    (np.ndarray, _Walk._array),
    (nn.Module, _Walk._module),
    (Dataset, _Walk._dataset),
    (Enum, _Walk._member),
    ((dict, types.MappingProxyType), _Walk._dict),
    ((list, tuple, collections.deque, slice), _Walk._sequence),
    ((set, frozenset), _Walk._set),
    (functools.partial, _Walk._partial),
    (types.CodeType, _Walk._code),
    (types.FunctionType, _Walk._function),
    (types.MethodType, _Walk._method),
    (types.BuiltinFunctionType, _Walk._builtin),
    (type, _Walk._class),
    ((types.ModuleType, argparse.Namespace, types.SimpleNamespace), _Walk._namespace),
    ((staticmethod, classmethod), _Walk._wrapped),
    (property, _Walk._property),
    (_DESCRIPTORS, _Walk._descriptor),
    ((re.Pattern, operator.itemgetter, operator.attrgetter, operator.methodcaller), _Walk._reduced),
    ((PurePath, *_OPAQUE), _Walk._by_class),
)


def memory(tensor: Tensor) -> int:
    """Where a tensor's numbers lie: views share it."""
    return tensor.untyped_storage().data_ptr() if tensor.layout is torch.strided and tensor.numel() else 0


def _place(value: Any) -> bool:
    """Whether a value is the name of a file or folder: where data lie is no setting."""
    return isinstance(value, PurePath) or (isinstance(value, str) and os.sep in value and os.path.exists(value))


def _ours(value: Any) -> bool:
    """Whether this is a function of the user's, wherever it was put."""
    return isinstance(value, types.FunctionType) and package_of(value) is None


def attributes(value: Any) -> dict[str, Any]:
    """An object's attributes by name, in its dictionary and in its slots."""
    found = dict(getattr(value, "__dict__", {}))
    for kind in type(value).__mro__:
        slots = vars(kind).get("__slots__", ())
        for name in (slots,) if isinstance(slots, str) else slots:
            if isinstance(vars(kind).get(name), types.MemberDescriptorType) and hasattr(value, name):
                found[name] = getattr(value, name)
    return found


def _sorted_by(value: Any) -> str:
    if isinstance(value, _PLAIN) or _is_plain(value):
        return f"{type(value).__qualname__} {value!r}"
    return f"{type(value).__qualname__} {getattr(value, '__qualname__', '')}"


def _content(cell: types.CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # not filled yet
        return None


def _file(module: types.ModuleType) -> str | None:
    file = getattr(module, "__file__", None)
    return file if isinstance(file, str) else None


def _is_plain(value: Any, deep: int = 4) -> bool:
    """Whether a value is numbers and text alone, in lists, tuples and dictionaries of Python's or by itself."""
    kind = type(value)
    if kind in _WRITTEN_OUT:
        return True
    if deep and kind in (list, tuple):
        return all(_is_plain(part, deep - 1) for part in value)
    return bool(deep) and kind is dict and all(_is_plain(part, deep - 1) for pair in value.items() for part in pair)


def _some(parts: list[Any]) -> list[Any]:
    """All that is plain, and all objects, or as many of them as the bound allows, spread evenly."""
    if len(parts) <= _LONGEST:
        return parts
    objects = [i for i, part in enumerate(parts) if not _is_plain(part)]
    if len(objects) <= _LONGEST:
        return parts
    left_out = set(objects) - {objects[int(i)] for i in np.linspace(0, len(objects) - 1, _LONGEST)}
    return [part for i, part in enumerate(parts) if i not in left_out]
