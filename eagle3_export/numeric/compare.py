"""Proof of one export by numbers: speculators' own model and SGLang's own class on the same inputs.

Runs where speculators and sglang are both installed, on the CPU and in float32, in a process of its own
(`worker`), so that nothing heavy is imported here.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from importlib import metadata
from pathlib import Path
from typing import Any

from eagle3_export.errors import StorageError, UsageError

TOLERANCE = 1e-4
"""Largest relative difference of logits that counts as the same computation in float32."""

REQUIRED_PACKAGES = ("speculators", "sglang")
RESULT_PREFIX = "eagle3-export-numeric "  # of the worker's lines that are answers


@dataclass(frozen=True)
class NumericReport:
    """What the two systems computed.

    Attributes:
        export: the export's directory.
        source: the checkpoint it was made from.
        served_class: the class that SGLang's registry resolved, with its module; None where none was built.
        per_step: largest relative difference of the logits per draft step, `max|a - b| / max|a|` over each
            position's logits, worst position; step 0 is the first drafted token. Empty where nothing ran.
        logits_digest: SHA-256 over all of SGLang's logits; equal means equal to the bit.
        problem: why it could not be compared, or None.
        versions: of the packages that computed.
    """

    export: str
    source: str
    served_class: str | None = None
    per_step: list[float] = field(default_factory=list)
    logits_digest: str | None = None
    problem: str | None = None
    versions: dict[str, str] = field(default_factory=dict)

    @property
    def max_relative_error(self) -> float | None:
        """Over all steps; None where nothing was compared."""
        return max(self.per_step, default=None)

    @property
    def ok(self) -> bool:
        """Whether every draft step was compared and differs by at most `TOLERANCE`."""
        error = self.max_relative_error
        return self.problem is None and error is not None and error <= TOLERANCE


@dataclass(frozen=True)
class NumericCase:
    """One comparison.

    Attributes:
        plugin: whether SGLang has the plugin of this package (False: stock SGLang).
        draft_window: `--speculative-draft-window-size` given to the server, or None.
        steps: draft steps to compare.
        context: tokens before the first drafted one, at the longest.
    """

    export: str
    source: str
    plugin: bool = True
    draft_window: int | None = None
    steps: int = 4
    context: int = 24


def verify_numeric(
    export: str | Path, source: str | Path, *, draft_window: int | None = None, timeout: float = 1800
) -> NumericReport:
    """Compares one export with the checkpoint it was made from.

    Args:
        export: the export's directory.
        source: the checkpoint's directory.
        draft_window: `--speculative-draft-window-size` of the launch arguments, where they have it.
        timeout: seconds.

    Raises:
        UsageError: sglang or speculators is not installed here, named.
        StorageError: the comparing process could not be started.
    """
    require_packages()
    return compare([NumericCase(str(export), str(source), draft_window=draft_window)], timeout=timeout)[0]


def require_packages() -> None:
    """Raises UsageError, naming what is missing, unless speculators and sglang are installed."""
    missing = [name for name in REQUIRED_PACKAGES if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"The numeric check needs {' and '.join(missing)}, which {_are(missing)} not installed here.",
            why="It runs speculators' own model beside SGLang's own class.",
            remedy=f"Install {' and '.join(missing)} in this environment, or run the check where both are.",
        )


def compare(cases: Sequence[NumericCase], *, timeout: float = 1800) -> list[NumericReport]:
    """Compares several exports in one process per kind of server (with the plugin, without).

    Returns:
        One report per case, in order. A case that cannot be built carries its `problem`; the others go on.
    """
    reports: dict[int, NumericReport] = {}
    for plugin in (True, False):
        chosen = [(index, case) for index, case in enumerate(cases) if case.plugin is plugin]
        if chosen:
            answers = _run_worker([case for _, case in chosen], plugin=plugin, timeout=timeout)
            reports.update(zip((index for index, _ in chosen), answers, strict=True))
    return [reports[index] for index in range(len(cases))]


def _run_worker(cases: list[NumericCase], *, plugin: bool, timeout: float) -> list[NumericReport]:
    command = [sys.executable, "-W", "ignore", "-m", "eagle3_export.numeric.worker"]
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
        "HF_HUB_OFFLINE": "1",
    }
    request = {"plugin": plugin, "cases": [asdict(case) for case in cases]}
    try:
        done = subprocess.run(
            command,
            input=json.dumps(request),
            env=environment,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=timeout,
        )
        output, ending = done.stdout + done.stderr, f"status {done.returncode}"
    except subprocess.TimeoutExpired as expired:
        output, ending = _text(expired.stdout) + _text(expired.stderr), f"no answer within {timeout:.0f} s"
    except OSError as error:
        raise StorageError(
            f"{sys.executable} cannot be started for the numeric check: {error.strerror or error}.",
            remedy="Free memory or processes on this machine and try again.",
        ) from error
    answers = _answers(output)
    versions = {name: _version(name) for name in (*REQUIRED_PACKAGES, "torch", "transformers")}
    reports = [
        NumericReport(case.export, case.source, versions=versions, **answer)
        for case, answer in zip(cases, answers, strict=False)
    ]
    problem = f"The comparing process ended early ({ending}): {_last_words(output)}"
    unanswered = cases[len(reports) :]
    return reports + [
        NumericReport(case.export, case.source, problem=problem, versions=versions) for case in unanswered
    ]


def _answers(output: str) -> list[dict[str, Any]]:
    """What the worker said of one case after the other; a line that was cut off ends the list."""
    answers: list[dict[str, Any]] = []
    for line in output.splitlines():
        if line.startswith(RESULT_PREFIX):
            try:
                answers.append(json.loads(line.removeprefix(RESULT_PREFIX)))
            except ValueError:
                break
    return answers


def _text(output: str | bytes | None) -> str:
    return output.decode(errors="replace") if isinstance(output, bytes) else output or ""


def _last_words(output: str) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    return " / ".join(lines[-3:])[-600:] or "it printed nothing"


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _are(names: Sequence[str]) -> str:
    return "is" if len(names) == 1 else "are"
