"""The command that serves an export, for `eagle3-export launch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.compatibility.findings import Finding
from eagle3_export.documents.depth import recommend_depth
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import CheckpointError, ExportInvalidError, UsageError
from eagle3_export.sglang.exported import read_exported_draft
from eagle3_export.sglang.server_arguments import launch_arguments, launch_command
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.fields import read_json_object
from eagle3_export.speculators_format.verifier import read_verifier
from eagle3_export.storage.faults import resolved


@dataclass(frozen=True)
class ServingCommand:
    """A server to start.

    Attributes:
        shell: one line for a POSIX shell.
        num_steps: draft steps per verify step; reason: where that number comes from.
        warning: what speaks against serving this draft at that depth; None where nothing does.
        findings: what was said about this draft at export.
    """

    shell: str
    num_steps: int
    reason: str
    findings: tuple[Finding, ...]
    warning: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "command": self.shell,
            "num_steps": self.num_steps,
            "num_steps_reason": self.reason,
            "warning": self.warning,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def serving_command(
    export: str | Path, target: str, *, num_steps: int | None = None, cost_ratio: float | None = None
) -> ServingCommand:
    """How to serve `target` with the draft in `export`.

    Args:
        num_steps: draft steps; None takes the recommended depth.
        cost_ratio: time of one draft step / time of one step without a draft, for the recommendation.

    Raises:
        ExportInvalidError: `export` is no export.
        UsageError: both `num_steps` and `cost_ratio` are given, or `target` or `cost_ratio` makes no sense.
    """
    if not target.strip() or target.startswith("-"):
        raise UsageError(f"{target!r} names no model to serve.", remedy="Name a path or a hub id.")
    directory = resolved(export)
    metadata = read_metadata(directory)
    reason, warning = "as asked", None
    if num_steps is None:
        recommended = recommend_depth(metadata, cost_ratio=cost_ratio)
        num_steps, reason, warning = recommended.num_steps, recommended.reason, recommended.warning
    elif cost_ratio is not None:
        raise UsageError("--cost-ratio chooses the depth that --num-steps gives.", remedy="Name one of them.")
    return ServingCommand(
        launch_command(directory, target, _arguments(directory, metadata, target, num_steps)),
        num_steps,
        reason,
        tuple(Finding(f.id, f.level, f.cause, f.remedy) for f in metadata.sglang.findings),
        warning,
    )


def draft_arguments(export: str | Path, target: str, num_steps: int) -> list[str]:
    """Arguments of `sglang.launch_server` that put this draft beside `target`.

    Raises:
        ExportInvalidError: `export` is no export.
    """
    directory = resolved(export)
    arguments = _arguments(directory, read_metadata(directory), target, num_steps)
    return ["--speculative-draft-model-path", str(directory), *arguments]


def _arguments(directory: Path, metadata: ExportMetadata, target: str, num_steps: int) -> list[str]:
    try:
        config = read_json_object(directory / "config.json")
        read_exported_draft(config, str(directory / "config.json"))
    except CheckpointError as error:
        raise ExportInvalidError(error.what, why=error.why, remedy="Export the checkpoint again.") from error
    serving = ServingTarget(metadata.sglang.version, verifier=read_verifier(target))
    return launch_arguments(config, serving, num_steps)
