"""Whose code it is: the user's, which is followed, or that of an installed package or of Python, which its version stands for."""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import os
import sys
import sysconfig
import types
from pathlib import Path
from typing import Any

BY_VERSION = frozenset({"python", "torch", "numpy"})
_STANDARD = tuple({f"{Path(sysconfig.get_path(kind)).resolve()}{os.sep}" for kind in ("stdlib", "platstdlib")})

_MADE_BY_CODE = 1 << 9  # Py_TPFLAGS_HEAPTYPE


@functools.lru_cache(maxsize=4096)
def package(name: str, file: str | None = None) -> str | None:
    """The installed package that a module of this name belongs to ("python" for Python's own); None for code of the user's."""
    top = name.partition(".")[0]
    if top == "__main__":
        return None
    if top in BY_VERSION:
        return top
    if top in sys.builtin_module_names:
        return "python"
    module = sys.modules.get(name) or sys.modules.get(top)
    path = file or getattr(module, "__file__", None)
    if not isinstance(path, str):
        return None
    if {"site-packages", "dist-packages"} & set(Path(path).parts):
        return top
    return "python" if str(Path(path).resolve()).startswith(_STANDARD) else None


def package_of(code: Any) -> str | None:
    """The installed package that a class or function was written in; its __module__ may have been copied from what it wraps."""
    if isinstance(code, types.FunctionType):
        return package(str(code.__globals__.get("__name__", "")), code.__globals__.get("__file__"))
    # a class that was made by code without a name (exec) says that it is built in
    nameless = code.__module__ == "builtins" and bool(code.__flags__ & _MADE_BY_CODE)
    return None if nameless else package(code.__module__)


@functools.lru_cache(maxsize=4096)
def version(name: str) -> str:
    """A package's version as it was installed (which does not depend on what is imported yet), or as it says itself."""
    if name == "python":
        return f"{sys.version_info.major}.{sys.version_info.minor}"
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return str(getattr(sys.modules.get(name), "__version__", "unknown"))


@functools.lru_cache(maxsize=4096)
def source(name: str) -> str:
    """The digest of the file of a package's module, for local packages are changed and installed again under one version."""
    if package(name) in BY_VERSION:
        return ""
    path = Path(str(getattr(sys.modules.get(name), "__file__", "")))
    return hashlib.blake2b(path.read_bytes(), digest_size=16).hexdigest() if path.suffix == ".py" and path.is_file() else ""
