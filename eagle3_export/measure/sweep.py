"""Measuring an export at several draft depths, starting one server after the other."""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from eagle3_export.documents.schema import Measurement
from eagle3_export.errors import MeasurementError, UsageError
from eagle3_export.measure import server_process
from eagle3_export.measure.measurement import Progress, measure, measure_baseline, record
from eagle3_export.measure.workload import Workload
from eagle3_export.output_directory import locate_export
from eagle3_export.ports import free_port

DEFAULT_TEMPLATE = (
    "python -m sglang.launch_server --model-path {target} --host 127.0.0.1 --port {port} {speculative}"
)


@dataclass(frozen=True, slots=True)
class Sweep:
    """One server per depth.

    Attributes:
        target: the model to serve.
        arguments: from a depth to the draft's launch arguments.
        template: the command line that starts a server, split as a shell would but run without one. `{port}` and
            `{speculative}` stand in it, the latter for the draft's arguments (for the baseline its --dtype);
            `{target}` for the target model. Put `srun …` or `docker run …` in front as needed; the server must see
            the export under the same path and listen on this machine's `{port}`.
        start_timeout: seconds a server may take to answer.
        served_as: the path under which those servers see the export, where it is another; as for `measure`.
        api_key: sent with every request; a server that asks for one gets it from its own command or environment.
    """

    target: str
    arguments: Callable[[int], Sequence[str]]
    template: str = DEFAULT_TEMPLATE
    start_timeout: float = 1800.0
    served_as: str | None = None
    api_key: str | None = field(default=None, repr=False)

    def command(self, port: int, speculative: Sequence[str]) -> list[str]:
        """Returns the command line of one server.

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

    Attributes:
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
        """For `--json`."""
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
    progress: Progress | None = None,
) -> SweepResult:
    """Measures an export at several depths and writes each measurement into its metadata as it is made.

    Args:
        export: the export's directory, or a pointer to it, which is followed once.
        depths: draft steps, each at least 1.
        workload: prompts and sampling, the same for every server.
        sweep: how to start a server.
        baseline: first measures a server without a draft, for the speed-ups.
        say: told what happens.
        progress: called after every answer.

    Raises:
        MeasurementError: a server did not start, died or failed a request; what was measured before stays written.
        UsageError: no depths, or a template that lacks a placeholder.
        ExportInvalidError: `export` is no export.
    """
    if not depths or min(depths) < 1:
        raise UsageError("A sweep needs draft depths of at least 1, for example 16,10,5.")
    directory = locate_export(export)
    # What cannot be served is refused here, before a server is started.
    arguments = {depth: list(sweep.arguments(depth)) for depth in depths}
    sweep.command(0, [])
    without_draft = None
    if baseline:
        say("baseline: starting a server without a draft")
        with running_server(sweep, _dtype_argument(arguments[depths[0]])) as url:
            without_draft = measure_baseline(url, workload, api_key=sweep.api_key, progress=progress)
        say(f"baseline: {without_draft:.1f} tokens/s")
    measurements = []
    for depth in depths:
        say(f"depth {depth}: starting a server")
        with running_server(sweep, arguments[depth]) as url:
            found = measure(
                directory,
                url,
                workload,
                api_key=sweep.api_key,
                served_as=sweep.served_as,
                baseline_tokens_per_second=without_draft,
                progress=progress,
            )
        if found.num_steps != depth:
            raise MeasurementError(
                f"The server runs {found.num_steps} draft steps where {depth} were asked for."
            )
        record(directory, found)
        measurements.append(found)
        say(
            f"depth {depth}: acceptance length {found.acceptance_length:.2f}, {found.tokens_per_second:.1f} tokens/s"
        )
        for difference in found.differences:
            say(f"depth {depth}: {difference}")
    return SweepResult(measurements, without_draft)


def _dtype_argument(arguments: Sequence[str]) -> list[str]:
    """The `--dtype` among the draft's arguments: it changes the target too, so the baseline runs in it as well."""
    at = arguments.index("--dtype") if "--dtype" in arguments else len(arguments)
    return list(arguments[at : at + 2])


@contextlib.contextmanager
def running_server(sweep: Sweep, speculative: Sequence[str]) -> Iterator[str]:
    """Starts one server of a sweep and yields its address; stops it at the end.

    Args:
        sweep: how to start it.
        speculative: the draft's launch arguments.

    Raises:
        MeasurementError: it ended or stayed silent.
    """
    port = free_port()
    with server_process.running_server(
        sweep.command(port, speculative), port, start_timeout=sweep.start_timeout, api_key=sweep.api_key
    ) as url:
        yield url
