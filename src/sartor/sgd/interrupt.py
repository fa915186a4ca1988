"""Signals that end a run: Ctrl-C between two steps instead of within one, so that what was trained can be kept; others as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Yield a function that returns whether Ctrl-C was pressed or SIGTERM came; the second time either interrupts at once.

    In another thread than the main one, or where somebody else listens to a signal, nothing is changed for it.
    """
    came = False

    def note(number: int, frame: Any) -> None:
        nonlocal came
        if came:
            raise KeyboardInterrupt
        came = True

    usual: dict[signal.Signals, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    is_main = threading.current_thread() is threading.main_thread()
    before = {n: signal.signal(n, note) for n, handler in usual.items() if is_main and signal.getsignal(n) is handler}
    try:
        yield lambda: came
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def as_ctrl_c() -> Iterator[list[int]]:
    """SIGTERM and SIGHUP end what runs as Ctrl-C does, so that nothing is left behind; yields the numbers of those that came."""
    came: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield came
        return

    def note(number: int, frame: Any) -> None:
        came.append(number)
        raise KeyboardInterrupt

    ending = [getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name)]
    before = {number: signal.signal(number, note) for number in ending if signal.getsignal(number) is signal.SIG_DFL}
    try:
        yield came
    finally:
        for number, usual in before.items():
            signal.signal(number, usual)
