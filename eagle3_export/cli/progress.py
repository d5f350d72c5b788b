"""A bar on stderr, for commands that take long."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Show = Callable[[int, int, "float | None"], None]


@contextmanager
def progress_bar() -> Iterator[Show | None]:
    """Shows what is done of how much, the acceptance length so far and the time left.

    Yields:
        a function of what is done, how much there is and the length, None where that is not known yet; or None where
        stderr is no terminal. What is done may begin again.
    """
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[length]}"), TimeRemainingColumn())
    with Progress(*columns, console=console, transient=True) as bar:
        task, before = bar.add_task("", total=None, length=""), 0

        def show(done: int, total: int, length: float | None) -> None:
            nonlocal before
            if done <= before:
                bar.reset(task)
            before = done
            text = "" if length is None else f"acceptance length {length:.2f}"
            bar.update(task, completed=done, total=total, length=text)

        yield show
