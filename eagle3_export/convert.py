"""Exports checkpoints that exist already: one, or all of a run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.config import ExportConfig
from eagle3_export.errors import CheckpointError, Eagle3ExportError
from eagle3_export.export import ExportResult, export_checkpoint, prepare_export
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.speculators_format.run_files import find_checkpoints
from eagle3_export.storage.faults import expanded, require_apart, shown


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

    Args:
        checkpoint: its directory, a link to it, or a hub id in the local cache.
        destination: the directory that the export becomes.
        config: what to export, for which server.
        overwrite: replace an export that stands there.

    Raises:
        CheckpointError, IncompatibleDraftError, StorageError, UsageError: as `export_checkpoint`; nothing was written.
    """
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

    An export stays if it was made from the checkpoint as it is now; it is made anew if the checkpoint was saved again
    since. A checkpoint that cannot be exported does not keep the others from it.

    Args:
        save_path: where the run saved its checkpoints.
        output_dir: where exports go.
        config: what to export, for which server.
        overwrite: export again what is there already.
        report: called after each checkpoint.

    Raises:
        CheckpointError: the run has no checkpoints.
        UsageError: `output_dir` and `save_path` lie one in the other, or another run's exports are there.
        StorageError: the output directory cannot be used.
    """
    save_path, output_dir = expanded(save_path), expanded(output_dir)
    require_apart(
        output_dir,
        save_path,
        named=f"The output directory {shown(output_dir)}",
        remedy="Choose an output directory outside of it.",
    )
    checkpoints = find_checkpoints(save_path)
    if not checkpoints:
        raise CheckpointError(
            f"{shown(save_path)} holds no checkpoints.", remedy="Name the save_path of a run that has saved."
        )
    conversions = []
    with OutputDirectory(output_dir, save_path, keep_last=config.keep_last) as output:
        for path in checkpoints:
            destination = output.path / path.name
            try:
                checkpoint = read_checkpoint(path)
                if not overwrite and output.holds(path.name, checkpoint):
                    conversion = Conversion(str(path), destination)
                else:
                    with prepare_export(checkpoint, destination, config) as prepared:
                        conversion = Conversion(str(path), destination, prepared.run(output, replace=True))
            except Eagle3ExportError as error:
                conversion = Conversion(str(path), None, error=error)
            report(conversion)
            conversions.append(conversion)
        exported = [c.directory.name for c in conversions if c.directory is not None]
        if exported:
            output.refresh(latest=exported[-1])
    return conversions
