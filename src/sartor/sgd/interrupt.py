"""Signals that end a run: Ctrl-C between two steps instead of within one, so that what was trained can be kept; others as Ctrl-C does."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any


@contextmanager
def between_steps() -> Iterator[Callable[[], bool]]:
    """Yields a question, whether Ctrl-C was pressed; pressed a second time it interrupts at once, as ever.

    In another thread than the main one, or where somebody else listens to the signal, nothing is changed and the answer is no.
    """
    usual = signal.default_int_handler
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGINT) is not usual:
        yield lambda: False
        return
    pressed = False

    def note(number: int, frame: Any) -> None:
        nonlocal pressed
        if pressed:
            usual(number, frame)
        pressed = True

    signal.signal(signal.SIGINT, note)
    try:
        yield lambda: pressed
    finally:
        signal.signal(signal.SIGINT, usual)


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
