"""Keeps signals out of our own code without losing them, or lets them end it cleanly."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def deferred_interrupts(*, every: bool = False) -> Iterator[None]:
    """Holds back SIGINT and SIGTERM for the few milliseconds of the body, then delivers them to their own handler.

    speculators' handler raises `TrainingInterruptedError`, an ordinary `Exception`, wherever the main thread is
    (speculators 0.9.0, `graceful_shutdown`). In here it cannot surface, so a broad `except Exception` in the body
    swallows no interrupt. Default handlers stay as they are: a second signal during the save still kills at once.

    Args:
        every: holds them back from Python's own handler of Ctrl+C too.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    received: list[tuple[int, FrameType | None]] = []
    replaced = {}
    for signum in (signal.SIGINT, signal.SIGTERM):
        handler = signal.getsignal(signum)
        if callable(handler) and (every or handler is not signal.default_int_handler):
            replaced[signum] = handler
            signal.signal(signum, lambda number, frame: received.append((number, frame)))
    try:
        yield
    finally:
        for signum, handler in replaced.items():
            signal.signal(signum, handler)
        for number, frame in received:
            replaced[signal.Signals(number)](number, frame)


@contextmanager
def cleaning_up_on_sigterm() -> Iterator[None]:
    """SIGTERM ends the body by an exception, as Ctrl+C does, so that nothing half-written stays behind."""

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    before = signal.signal(signal.SIGTERM, end)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
