"""A server started here for one measurement, and stopped with all its children."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from typing import IO

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.connection import AccessRefusedError, Connection

_POLL_SECONDS = 0.5
_STOP_SECONDS = 30.0
_LOG_TAIL = 2000
# Keys in a command line, and in the arguments that SGLang prints into its log.
_KEYS = re.compile(r"""(--(?:admin-)?api-key[= ]|\b(?:admin_)?api_key=)('[^']*'|"[^"]*"|[^\s,)]+)""")


@contextlib.contextmanager
def running_server(
    command: Sequence[str], port: int, *, start_timeout: float, api_key: str | None = None
) -> Iterator[str]:
    """Starts a server and yields its address as soon as it answers; stops it and all its children at the end.

    Args:
        command: starts the server, without a shell.
        port: where it listens, on this machine.
        start_timeout: seconds it may take to answer.
        api_key: sent with the requests that wait for it; appears in no message.

    Raises:
        MeasurementError: it ended or stayed silent; the end of its log is in the message.
    """
    url = f"http://127.0.0.1:{port}"
    with tempfile.TemporaryFile() as log, Connection(url, timeout=10.0, api_key=api_key) as connection:
        shown = without_keys(shlex.join(command), api_key)
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except (OSError, ValueError) as error:
            reason = getattr(error, "strerror", None) or error
            raise MeasurementError(f"{shown} cannot be started: {reason}.") from error
        try:
            problem = _wait_until_it_answers(process, connection, start_timeout)
            if problem is not None:
                tail = without_keys(_tail(log), api_key)
                raise MeasurementError(f"The server {problem}: {shown}", why=f"The end of its log:\n{tail}")
            yield url
        finally:
            _stop(process)


def without_keys(text: str, api_key: str | None) -> str:
    """Returns a command line or log without API keys: the one given, and those behind `--api-key`."""
    if api_key:
        text = text.replace(api_key, "[key]")
    return _KEYS.sub(r"\1[key]", text)


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], connection: Connection, timeout: float
) -> str | None:
    """Returns None once the server answers, or what it did instead."""
    deadline = time.monotonic() + timeout
    while True:
        try:
            if connection.get("/health") is not None:
                return None
        except AccessRefusedError:
            return None  # it is up; the first request says what is wrong with the key
        except MeasurementError:
            pass
        status = process.poll()
        if status is not None:
            return f"ended with status {status}"
        if time.monotonic() > deadline:
            return f"did not answer in {timeout:.0f} s"
        time.sleep(_POLL_SECONDS)


def _tail(log: IO[bytes]) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL))
    return log.read().decode(errors="replace")


def _stop(process: subprocess.Popen[bytes]) -> None:
    """Ends a server and every process it started: its group, which is its own."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(_STOP_SECONDS)
            if number == signal.SIGKILL or not _group_lives(process.pid):
                return


def _group_lives(group: int) -> bool:
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
