"""Asking one server and writing down what it did."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from eagle3_export.documents.json_files import read_metadata, utc_now
from eagle3_export.documents.metadata import with_measurement
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.errors import MeasurementError, StorageError
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts, add, check
from eagle3_export.measure.facts import Server, ServerFacts
from eagle3_export.measure.server import connect, require_export
from eagle3_export.measure.workload import Prompt, Workload

WARM_UP_TOKENS = 8
SPEEDUP_TOLERANCE = 1.1  # a speed-up above the acceptance length is noise, for a draft step costs something

Progress = Callable[[int, int], None]  # prompts answered, prompts in all


@dataclass(frozen=True, slots=True)
class Answers:
    """What a server did with a workload.

    Args:
        counts: its counters over the requests, the warm-up not among them.
        seconds: wall time from the first request to the last answer.
    """

    counts: Counts
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens / wall time."""
        return self.counts.completion_tokens / self.seconds


def ask(server: Server, workload: Workload, progress: Progress | None = None) -> Answers:
    """Put a workload to a server, after one short request that is not counted.

    Raises:
        MeasurementError: a request failed.
    """
    server.answer(workload.prompts[0], workload, WARM_UP_TOKENS)
    server.begin()

    def answer(prompt: Prompt) -> Counts:
        return server.answer(prompt, workload, workload.max_new_tokens)

    counts: list[Counts] = []
    pool = ThreadPoolExecutor(workload.concurrency)
    started = time.perf_counter()
    try:
        for count in pool.map(answer, workload.prompts):
            counts.append(count)
            if progress is not None:
                progress(len(counts), len(workload.prompts))
        seconds = time.perf_counter() - started
    finally:
        pool.shutdown(cancel_futures=True)
    return Answers(server.end(add(counts)), seconds)


def measure(
    export: str | Path,
    base_url: str,
    workload: Workload,
    *,
    baseline_tokens_per_second: float | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measure an export on a running server, writing nothing.

    Args:
        export: the export's directory, the same that the server runs.
        base_url: ``http://host:port`` of an SGLang or vLLM server.
        workload: prompts and sampling.
        baseline_tokens_per_second: of a server without a draft on the same workload, for the speed-up.
        progress: called after every answer.

    Raises:
        MeasurementError: no server, a failed request, no speculation, another draft, or counters that contradict
            each other.
        ExportInvalidError: ``export`` is no export.
    """
    read_metadata(export)
    server = connect(Connection(base_url))
    num_steps = require_export(server.facts, Path(export))
    answers = ask(server, workload, progress)
    check(answers.counts, num_steps)
    return _describe(server.facts, num_steps, workload, answers, baseline_tokens_per_second)


def measure_baseline(base_url: str, workload: Workload, *, progress: Progress | None = None) -> float:
    """Completion tokens per second of a server without a draft.

    Raises:
        MeasurementError: no server, a failed request, or a server that speculates.
    """
    server = connect(Connection(base_url))
    if server.facts.algorithm is not None:
        raise MeasurementError(
            f"The server at {base_url} speculates with {server.facts.algorithm}.",
            why="A speed-up is against decoding without a draft.",
            remedy="Start it without the --speculative options.",
        )
    return ask(server, workload, progress).tokens_per_second


def _describe(
    facts: ServerFacts, num_steps: int, workload: Workload, answers: Answers, baseline: float | None
) -> Measurement:
    counts, speed = answers.counts, answers.tokens_per_second
    speedup = speed / baseline if baseline else None
    no_speedup = "No server without a draft was measured beside it."
    if speedup is not None and speedup > SPEEDUP_TOLERANCE * counts.reported_acceptance_length:
        no_speedup = (
            f"{speedup:.2f} times the tokens per second without a draft is more than"
            f" {counts.reported_acceptance_length:.2f} tokens per verify step can give: the machine was busy with"
            " something else during one of the two."
        )
        speedup = None
    values = {
        "accepted_per_position": counts.per_position,
        "speedup": speedup,
        "server_version": facts.version,
        "target": facts.target,
        "hardware": facts.hardware,
    }
    because = {
        "accepted_per_position": f"{facts.kind} {facts.version} does not report accepted drafts, so the acceptance"
        " length is the reported one.",
        "speedup": no_speedup,
    }
    return Measurement(
        acceptance_length=counts.acceptance_length,
        num_steps=num_steps,
        topk=facts.topk,
        verify_steps=counts.verify_steps,
        reported_acceptance_length=counts.reported_acceptance_length,
        prompts=len(workload.prompts),
        prompt_source=workload.source,
        completion_tokens=counts.completion_tokens,
        sampling=workload.sampling(),
        tokens_per_second=speed,
        concurrency=workload.concurrency,
        server=facts.kind,
        measured_at=utc_now(),
        reasons={n: because.get(n, "The server does not say.") for n, v in values.items() if v is None},
        **values,
    )


def record(export: str | Path, measurement: Measurement) -> ExportMetadata:
    """Write a measurement into the export's metadata and model card, and into the run's index.

    Raises:
        ExportInvalidError: the export has no readable metadata.json.
        StorageError: a document could not be replaced; each is replaced by rename, so none is half-written.
    """
    from eagle3_export.output_directory import INDEX_FILE, refresh_outputs, replace_documents
    from eagle3_export.storage.lock import output_lock

    directory = Path(export).resolve()
    metadata = with_measurement(read_metadata(directory), measurement)
    replace_documents(directory, metadata)
    if (directory.parent / INDEX_FILE).is_file():
        # A run that is still exporting there holds the lock and refreshes its index itself.
        with contextlib.suppress(StorageError), output_lock(directory.parent):
            refresh_outputs(directory.parent)
    return metadata
