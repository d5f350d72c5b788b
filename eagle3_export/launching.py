"""The command that serves an export, for `eagle3-export launch`."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError, ExportInvalidError
from eagle3_export.fields import read_json_object
from eagle3_export.findings import Finding
from eagle3_export.metadata import read_metadata
from eagle3_export.sglang.launch import launch_arguments, launch_command
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.verifier import read_verifier

DEFAULT_NUM_STEPS = 3


@dataclass(frozen=True)
class ServingCommand:
    """A server to start.

    Attributes:
        shell: one line for a POSIX shell.
        num_steps: draft steps per verify step; reason: where that number comes from.
        findings: what was said about this draft at export.
    """

    shell: str
    num_steps: int
    reason: str
    findings: tuple[Finding, ...]

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "command": self.shell,
            "num_steps": self.num_steps,
            "num_steps_reason": self.reason,
            "findings": [finding.as_dict() for finding in self.findings],
        }


def serving_command(export: str | Path, target: str, *, num_steps: int | None = None) -> ServingCommand:
    """How to serve `target` with the draft in `export`.

    Args:
        num_steps: draft steps; None takes the depth that was trained.

    Raises:
        ExportInvalidError: `export` is no export.
    """
    directory = Path(export).resolve()
    metadata = read_metadata(directory)
    try:
        config = read_json_object(directory / "config.json")
    except CheckpointError as error:
        raise ExportInvalidError(error.what, why=error.why, remedy="Export the checkpoint again.") from error
    reason = "as asked"
    if num_steps is None:
        trained = metadata.acceptance.num_steps
        num_steps = trained or DEFAULT_NUM_STEPS
        reason = (
            "the depth that was trained" if trained else "SGLang's usual depth; the trained one is unknown"
        )
    serving = ServingTarget(metadata.sglang.version, verifier=read_verifier(target))
    arguments = launch_arguments(config, serving, num_steps)
    return ServingCommand(
        launch_command(directory, target, arguments),
        num_steps,
        reason,
        tuple(Finding(f.id, f.level, f.cause, f.remedy) for f in metadata.sglang.findings),
    )
