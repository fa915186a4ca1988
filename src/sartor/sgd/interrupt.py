"""Ctrl-C between two steps instead of within one, so that what was trained can be kept before the run ends."""

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
