"""Exports checkpoints that exist already: one, or all of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.config import ExportConfig
from eagle3_export.errors import CheckpointError, Eagle3ExportError
from eagle3_export.export import ExportResult, export_checkpoint
from eagle3_export.output_directory import refresh_outputs
from eagle3_export.speculators_format.run_files import find_checkpoints
from eagle3_export.storage.lock import output_lock
from eagle3_export.storage.publish import clean_leftovers


@dataclass(frozen=True)
class Conversion:
    """What became of one checkpoint.

    Attributes:
        directory: where its export is, None if there is none.
        result: the new export, None if an old one was left in place or nothing could be exported.
        error: why nothing could be exported.
    """

    checkpoint: str
    directory: Path | None
    result: ExportResult | None = None
    error: Eagle3ExportError | None = None

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        return {
            "checkpoint": self.checkpoint,
            "directory": None if self.directory is None else str(self.directory),
            "status": "failed" if self.error else "exported" if self.result else "exists",
            "error": None if self.error is None else self.error.as_dict(),
            "findings": [finding.as_dict() for finding in self.result.findings] if self.result else [],
            "metadata": self.result.metadata.model_dump(mode="json") if self.result else None,
        }


def convert_checkpoint(
    checkpoint: str | Path, destination: Path, config: ExportConfig, *, overwrite: bool = False
) -> Conversion:
    """Exports one checkpoint to `destination`.

    Raises:
        CheckpointError, IncompatibleDraftError, StorageError: nothing was written.
    """
    clean_leftovers(destination.parent)
    result = export_checkpoint(checkpoint, destination, config, overwrite=overwrite)
    return Conversion(str(checkpoint), result.directory, result)


def convert_run(
    save_path: str | Path,
    output_dir: Path,
    config: ExportConfig,
    *,
    overwrite: bool = False,
    report: Callable[[Conversion], None] = lambda conversion: None,
) -> list[Conversion]:
    """Exports every checkpoint of a run to `output_dir/<its name>`, then `latest`, `best` and `index.json`.

    One that cannot be exported does not keep the others from it.

    Args:
        overwrite: export again what is there already; else it stays.
        report: called after each checkpoint.

    Raises:
        CheckpointError: the run has no checkpoints.
        UsageError: `output_dir` lies in `save_path`.
        StorageError: the output directory cannot be used.
    """
    output_dir = config.model_copy(update={"output_dir": str(output_dir)}).resolve_output_dir(save_path)
    checkpoints = find_checkpoints(save_path)
    if not checkpoints:
        raise CheckpointError(
            f"{save_path} holds no checkpoints.", remedy="Name the save_path of a run that has saved."
        )
    conversions = []
    with output_lock(output_dir):
        for checkpoint in checkpoints:
            conversion = _convert_one(checkpoint, output_dir / checkpoint.name, config, overwrite)
            report(conversion)
            conversions.append(conversion)
        there = [c.directory.name for c in conversions if c.directory is not None]
        if there:
            refresh_outputs(output_dir, latest=there[-1], keep_last=config.keep_last)
    return conversions


def _convert_one(checkpoint: Path, destination: Path, config: ExportConfig, overwrite: bool) -> Conversion:
    if destination.exists() and not overwrite:
        return Conversion(str(checkpoint), destination)
    try:
        return convert_checkpoint(checkpoint, destination, config, overwrite=overwrite)
    except Eagle3ExportError as error:
        return Conversion(str(checkpoint), None, error=error)
