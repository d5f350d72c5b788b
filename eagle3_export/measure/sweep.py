"""Measuring an export at several draft depths, starting one server after the other."""

from __future__ import annotations

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.documents.schema import Measurement
from eagle3_export.errors import MeasurementError, UsageError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.measurement import measure, measure_baseline, record
from eagle3_export.measure.workload import Workload

DEFAULT_TEMPLATE = (
    "python -m sglang.launch_server --model-path {target} --host 127.0.0.1 --port {port} {speculative}"
)
_POLL_SECONDS = 0.5
_STOP_SECONDS = 30.0
_LOG_TAIL = 2000


@dataclass(frozen=True, slots=True)
class Sweep:
    """One server per depth.

    Args:
        template: the command line that starts a server, split as a shell would but run without one. ``{port}`` and
            ``{speculative}`` stand in it, the latter for the draft's arguments (for the baseline its --dtype);
            ``{target}`` for the target model. Put ``srun …`` or ``docker run …`` in front as needed; the server
            must see the export under the same path and listen on this machine's ``{port}``.
        target: the model to serve.
        arguments: from a depth to the draft's launch arguments.
        start_timeout: seconds a server may take to answer.
        base_url: where a server listens, ``{port}`` in it.
    """

    target: str
    arguments: Callable[[int], Sequence[str]]
    template: str = DEFAULT_TEMPLATE
    start_timeout: float = 1800.0
    base_url: str = "http://127.0.0.1:{port}"

    def command(self, port: int, speculative: Sequence[str]) -> list[str]:
        """The command line of one server.

        Raises:
            UsageError: the template lacks {port} or {speculative}, or is no shell command.
        """
        command: list[str] = []
        seen = set()
        try:
            words = shlex.split(self.template)
        except ValueError as error:
            raise UsageError(f"The launch template cannot be split into words: {error}.") from None
        for word in words:
            if word == "{speculative}":
                seen.add(word)
                command += speculative
                continue
            for name, value in (("{port}", str(port)), ("{target}", self.target)):
                if name in word:
                    seen.add(name)
                    word = word.replace(name, value)
            command.append(word)
        missing = {"{port}", "{speculative}"} - seen
        if missing:
            raise UsageError(
                f"The launch template has no {' and no '.join(sorted(missing))}.",
                remedy=f"For example: {DEFAULT_TEMPLATE}",
            )
        return command


@dataclass(frozen=True, slots=True)
class SweepResult:
    """What a sweep found.

    Args:
        measurements: one per depth, in the order asked for.
        baseline_tokens_per_second: without a draft; None where it was not asked for.
    """

    measurements: list[Measurement]
    baseline_tokens_per_second: float | None

    @property
    def fastest(self) -> Measurement:
        """The measurement with the highest throughput."""
        return max(self.measurements, key=lambda m: m.tokens_per_second or 0.0)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {
            "baseline_tokens_per_second": self.baseline_tokens_per_second,
            "fastest_num_steps": self.fastest.num_steps,
            "measurements": [m.model_dump(mode="json") for m in self.measurements],
        }


def sweep_depths(
    export: str | Path,
    depths: Sequence[int],
    workload: Workload,
    sweep: Sweep,
    *,
    baseline: bool = True,
    say: Callable[[str], None] = lambda _: None,
) -> SweepResult:
    """Measure an export at several depths and write each measurement into its metadata as it is made.

    Args:
        export: the export's directory.
        depths: draft steps, each at least 1.
        workload: prompts and sampling, the same for every server.
        sweep: how to start a server.
        baseline: first measure a server without a draft, for the speed-ups.
        say: told what happens.

    Raises:
        MeasurementError: a server did not start, died or failed a request; what was measured before stays written.
        UsageError: no depths, or a template that lacks a placeholder.
    """
    if not depths or min(depths) < 1:
        raise UsageError("A sweep needs draft depths of at least 1, for example 16,10,5.")
    sweep.command(0, [])
    without_draft = None
    if baseline:
        say("baseline: starting a server without a draft")
        with running_server(sweep, _the_targets_own(sweep.arguments(depths[0]))) as url:
            without_draft = measure_baseline(url, workload)
        say(f"baseline: {without_draft:.1f} tokens/s")
    measurements = []
    for depth in depths:
        say(f"depth {depth}: starting a server")
        with running_server(sweep, sweep.arguments(depth)) as url:
            found = measure(export, url, workload, baseline_tokens_per_second=without_draft)
        if found.num_steps != depth:
            raise MeasurementError(
                f"The server runs {found.num_steps} draft steps where {depth} were asked for."
            )
        record(export, found)
        measurements.append(found)
        say(
            f"depth {depth}: acceptance length {found.acceptance_length:.2f}, {found.tokens_per_second:.1f} tokens/s"
        )
    return SweepResult(measurements, without_draft)


def _the_targets_own(arguments: Sequence[str]) -> list[str]:
    """What the draft's arguments change about the target too, which a comparison has to leave equal: its dtype."""
    at = arguments.index("--dtype") if "--dtype" in arguments else len(arguments)
    return list(arguments[at : at + 2])


@contextlib.contextmanager
def running_server(sweep: Sweep, speculative: Sequence[str]) -> Iterator[str]:
    """A server that answers, at the yielded address; stopped with all its children at the end.

    Raises:
        MeasurementError: it ended or stayed silent; the end of its log is in the message.
    """
    port = free_port()
    url = sweep.base_url.replace("{port}", str(port))
    command = sweep.command(port, speculative)
    with tempfile.TemporaryFile() as log:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        except OSError as error:
            raise MeasurementError(f"{shlex.join(command)} cannot be started: {error.strerror}.") from error
        try:
            _wait_until_it_answers(process, url, sweep.start_timeout, log, command)
            yield url
        finally:
            _stop(process)


def _wait_until_it_answers(
    process: subprocess.Popen[bytes], url: str, timeout: float, log: Any, command: Sequence[str]
) -> None:
    connection = Connection(url, timeout=10.0)
    deadline = time.monotonic() + timeout
    while True:
        with contextlib.suppress(MeasurementError):
            if connection.get("/health") is not None:
                return
        status = process.poll()
        late = time.monotonic() > deadline
        if status is not None or late:
            what = (
                f"ended with status {status}" if status is not None else f"did not answer in {timeout:.0f} s"
            )
            raise MeasurementError(
                f"The server {what}: {shlex.join(command)}", why=f"The end of its log:\n{_tail(log)}"
            )
        time.sleep(_POLL_SECONDS)


def _tail(log: Any) -> str:
    log.seek(0, os.SEEK_END)
    log.seek(max(0, log.tell() - _LOG_TAIL))
    return str(log.read().decode(errors="replace"))


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End a server and every process it started: its group, which is its own."""
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


def free_port() -> int:
    """A TCP port that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
