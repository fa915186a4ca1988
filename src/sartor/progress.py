"""A progress bar on stderr, where somebody watches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager


@contextmanager
def bar(what: str, total: int, done: int = 0, *, wanted: bool = True) -> Iterator[Callable[[int], None]]:
    """Gives a function that is told how much is done. Nothing is shown where stderr is no terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not wanted or not console.is_terminal:
        yield lambda count: None
        return
    with Progress(TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), console=console) as shown:
        task = shown.add_task(what, total=total, completed=done)
        yield lambda count: shown.update(task, completed=count)
