"""One thread that works off jobs in order, so that the training thread never waits for a filesystem."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import NamedTuple

logger = logging.getLogger(__name__)


class _Job(NamedTuple):
    label: str
    run: Callable[[], None]
    discard: Callable[[], None]


class BackgroundQueue:
    """Runs jobs one at a time, in the order of submission, on a daemon thread.

    The thread is a daemon because a job may hang in a system call for good (a dead network mount): `wait` gives up
    after its limit and the process can still end. A job handles its own errors; one that escapes is logged.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._jobs: deque[_Job] = deque()
        self._running: str | None = None
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(
        self, label: str, run: Callable[[], None], *, discard: Callable[[], None] = lambda: None
    ) -> None:
        """Appends a job and returns at once.

        Args:
            label: what the job is about; `drop` and `wait` name jobs by it.
            run: the job.
            discard: called in place of `run` if the job is dropped.
        """
        with self._changed:
            self._jobs.append(_Job(label, run, discard))
            self._changed.notify_all()
            if self._thread is None:
                self._thread = threading.Thread(target=self._work, name=self._name, daemon=True)
                self._thread.start()

    def drop(self, label: str) -> None:
        """Forgets the jobs of that label which have not begun."""
        with self._changed:
            dropped = [job for job in self._jobs if job.label == label]
            self._jobs = deque(job for job in self._jobs if job.label != label)
        for job in dropped:
            job.discard()

    def wait(self, timeout: float, *, label: str | None = None) -> bool:
        """Waits at most `timeout` seconds for every job (of that label); returns whether all are done."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while self._busy(label):
                remaining = deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._changed.wait(remaining)
        return True

    def labels(self) -> list[str]:
        """The labels of the job that runs and of those that wait, each once."""
        with self._changed:
            running = [] if self._running is None else [self._running]
            return list(dict.fromkeys(running + [job.label for job in self._jobs]))

    def _busy(self, label: str | None) -> bool:
        if label is None:
            return bool(self._jobs) or self._running is not None
        return self._running == label or any(job.label == label for job in self._jobs)

    def _work(self) -> None:
        while True:
            with self._changed:
                while not self._jobs:
                    self._changed.wait()
                job = self._jobs.popleft()
                self._running = job.label
            try:
                job.run()
            except Exception:
                logger.exception("A background job of the exporter failed.")
            del job  # a prepared export pins its source by open files
            with self._changed:
                self._running = None
                self._changed.notify_all()
