"""Asking one server and writing down what it did."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_export.documents.json_files import read_metadata, utc_now
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.errors import MeasurementError, UsageError
from eagle3_export.estimates.reasons import explained
from eagle3_export.late_numbers import add_measurement
from eagle3_export.locate import locate_export
from eagle3_export.measure.connection import Connection
from eagle3_export.measure.counts import Counts, add_counts, check_counts
from eagle3_export.measure.draft_settings import refuse_other_quantity, setting_differences
from eagle3_export.measure.facts import Server
from eagle3_export.measure.identity import Identity, identify, require_speculation
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.server import connect
from eagle3_export.measure.workload import Workload, readable_name
from eagle3_export.storage.faults import resolved

WARM_UP_TOKENS = 8
SPEEDUP_TOLERANCE = 1.1  # a speed-up above the acceptance length is noise, for a draft step costs something

# Told after every answer: prompts answered, prompts in all, and the counters of the answers so far.
Progress = Callable[[int, int, Counts], None]


@dataclass(frozen=True, slots=True)
class Answers:
    """What a server did with a workload.

    Attributes:
        counts: its counters over the requests, the warm-up not among them.
        seconds: wall time from the first request to the last answer.
    """

    counts: Counts
    seconds: float

    @property
    def tokens_per_second(self) -> float:
        """Completion tokens / wall time."""
        return self.counts.completion_tokens / self.seconds


def run_workload(server: Server, workload: Workload, progress: Progress | None = None) -> Answers:
    """Puts a workload to a server, after one short request that is not counted.

    Raises:
        MeasurementError: a request failed.
    """
    server.answer(workload.prompts[0], workload, WARM_UP_TOKENS)
    server.begin()

    def answer(prompt: Prompt) -> Counts:
        return server.answer(prompt, workload, workload.max_new_tokens)

    counts: list[Counts] = []
    started = time.perf_counter()
    for count in _answers_as_they_come(answer, workload.prompts, workload.concurrency):
        counts.append(count)
        if progress is not None:
            progress(len(counts), len(workload.prompts), add_counts(counts))
    seconds = time.perf_counter() - started
    return Answers(server.end(add_counts(counts)), seconds)


def _answers_as_they_come(
    answer: Callable[[Prompt], Counts], prompts: Sequence[Prompt], concurrency: int
) -> Iterator[Counts]:
    """Asks with so many requests in flight at a time.

    The threads are daemons: on Ctrl+C the program ends without waiting for answers that may take minutes.
    """
    waiting: queue.SimpleQueue[Prompt] = queue.SimpleQueue()
    answered: queue.SimpleQueue[Counts | BaseException] = queue.SimpleQueue()
    stopped = threading.Event()
    for prompt in prompts:
        waiting.put(prompt)

    def work() -> None:
        while not stopped.is_set():
            try:
                answered.put(answer(waiting.get_nowait()))
            except queue.Empty:
                return
            except BaseException as error:
                answered.put(error)
                return

    for _ in range(min(concurrency, len(prompts))):
        threading.Thread(target=work, daemon=True).start()
    try:
        for _ in prompts:
            result = answered.get()
            if isinstance(result, BaseException):
                raise result
            yield result
    finally:
        stopped.set()


def measure(
    export: str | Path,
    base_url: str,
    workload: Workload,
    *,
    api_key: str | None = None,
    served_as: str | None = None,
    baseline_tokens_per_second: float | None = None,
    progress: Progress | None = None,
) -> Measurement:
    """Measures an export on a running server, writing nothing.

    Args:
        export: the export's directory, the same that the server runs.
        base_url: `http://host:port` of an SGLang or vLLM server.
        workload: prompts and sampling.
        api_key: sent with every request, stored nowhere.
        served_as: the path or hub id under which the server sees the export, if another: the user's word.
        baseline_tokens_per_second: of a server without a draft on the same workload, for the speed-up.
        progress: called after every answer.

    Returns:
        The measurement; `differences` in it names where the server runs the draft otherwise than the export asks.

    Raises:
        MeasurementError: no server, a failed request, no speculation, another draft, a setting that makes it another
            quantity, or counters that contradict each other.
        ExportInvalidError: `export` is no export.
        UsageError: `base_url` is no address, or the key cannot be sent.
    """
    directory = locate_export(export)
    metadata = read_metadata(directory)
    with Connection(base_url, api_key=api_key) as connection:
        server = connect(connection)
        num_steps = require_speculation(server.facts)
        identity = identify(server.facts, directory, metadata, served_as)
        refuse_other_quantity(server.facts)
        answers = run_workload(server, workload, progress)
    check_counts(answers.counts, num_steps)
    asked = metadata.sglang.launch_arguments
    differences = setting_differences(server.facts, asked, metadata.weights.dtype)
    return _describe(server, num_steps, workload, answers, baseline_tokens_per_second, differences, identity)


def measure_baseline(
    base_url: str, workload: Workload, *, api_key: str | None = None, progress: Progress | None = None
) -> float:
    """Measures completion tokens per second of a server without a draft.

    Args:
        base_url: `http://host:port` of the server.
        workload: prompts and sampling.
        api_key: sent with every request.
        progress: called after every answer.

    Raises:
        MeasurementError: no server, a failed request, or a server that speculates.
    """
    with Connection(base_url, api_key=api_key) as connection:
        server = connect(connection)
        if server.facts.algorithm is not None:
            raise MeasurementError(
                f"The server at {connection.base_url} speculates with {server.facts.algorithm}.",
                why="A speed-up is against decoding without a draft.",
                remedy="Start it without the --speculative options.",
            )
        return run_workload(server, workload, progress).tokens_per_second


def _describe(
    server: Server,
    num_steps: int,
    workload: Workload,
    answers: Answers,
    baseline: float | None,
    differences: list[str],
    identity: Identity,
) -> Measurement:
    facts, counts, speed = server.facts, answers.counts, answers.tokens_per_second
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
        "served_as": identity.draft,
    }
    because = {"accepted_per_position": server.explain_missing(counts), "speedup": no_speedup}
    return Measurement(
        acceptance_length=counts.acceptance_length,
        num_steps=num_steps,
        topk=facts.topk,
        verify_steps=counts.verify_steps,
        reported_acceptance_length=counts.reported_acceptance_length,
        prompts=len(workload.prompts),
        prompt_source=readable_name(workload.source),
        prompts_digest=workload.digest(),
        completion_tokens=counts.completion_tokens,
        sampling=workload.sampling(),
        tokens_per_second=speed,
        concurrency=workload.concurrency,
        server=facts.kind,
        measured_at=utc_now(),
        differences=differences,
        identified_by=identity.by,
        reasons=explained(values, because, "The server does not say."),
        **values,
    )


def record(export: str | Path, measurement: Measurement) -> ExportMetadata:
    """Writes a measurement into the export's metadata and model card, and into the run's index.

    Args:
        export: the export's own directory. A pointer such as `best` is refused: it may have moved while the server
            was measured.
        measurement: made on a server that ran this export.

    Raises:
        UsageError: `export` is a pointer.
        ExportInvalidError: the export has no readable metadata.json.
        StorageError: a document could not be replaced; each is replaced by rename, so none is half-written.
    """
    if Path(export).is_symlink():
        raise UsageError(
            f"{export} is a pointer, which may have moved since the server was measured.",
            remedy="Name the export itself.",
        )
    return add_measurement(resolved(export), measurement)
