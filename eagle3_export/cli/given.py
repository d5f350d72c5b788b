"""What a path on the command line is, and what to type where it is another thing than the command wants."""

from __future__ import annotations

from pathlib import Path

from eagle3_export.config import ExportConfig
from eagle3_export.documents.files import is_export
from eagle3_export.errors import CheckpointError, UsageError
from eagle3_export.output_directory import is_output_directory
from eagle3_export.speculators_format.run_files import WEIGHTS_FILE, WEIGHTS_INDEX_FILE, find_checkpoints
from eagle3_export.storage.faults import resolved, shown


def require_checkpoint(path: str) -> None:
    """Refuses what `convert` cannot convert because it has been converted.

    Raises:
        UsageError: the path is an export, or holds exports.
    """
    directory = resolved(path)
    if is_export(directory):
        raise UsageError(
            f"{shown(path)} is an export already, not a checkpoint.",
            remedy=f"Name the checkpoint. To check the export: eagle3-export verify {shown(path)}",
        )
    _refuse_exports(path, directory)


def require_run(path: str | Path, command: str) -> None:
    """Refuses what is no save_path of a run, as far as that can be told before the run has saved.

    Args:
        path: what the user named.
        command: what to type for one checkpoint.

    Raises:
        UsageError: the path is one checkpoint, an export, or holds exports.
    """
    directory = resolved(path)
    if is_export(directory):
        require_checkpoint(str(path))
    if _has_weights(directory):
        raise UsageError(
            f"{shown(path)} is one checkpoint, not the save_path of a run.",
            remedy=f"Name its parent {shown(directory.parent)}, or export it alone: {command}",
        )
    _refuse_exports(path, directory)


def _refuse_exports(path: str | Path, directory: Path) -> None:
    if not _checkpoints(directory) and is_output_directory(directory):
        raise UsageError(
            f"{shown(path)} holds exports, not checkpoints.",
            remedy="Name the save_path of the run. To see the exports: eagle3-export report " + shown(path),
        )


def watch_announcement(save_path: Path, config: ExportConfig, *, once: bool, stop_file: Path | None) -> str:
    """Returns what `watch` says first: what it watches, where exports go, and what it waits for.

    Raises:
        UsageError: as `require_run`, or exports would lie in the save_path.
    """
    require_run(save_path, f"eagle3-export convert {shown(save_path)} OUT")
    output_dir = config.resolve_output_dir(save_path)
    there = len(_checkpoints(save_path))
    found = f"{there} checkpoint{'s' * (there != 1)} there" if there else "no checkpoint there yet"
    if not save_path.exists():
        found = "not there yet"
    waits = "this looks once and ends" if once else "waiting for each save to complete; Ctrl+C ends it"
    if stop_file is not None and not once:
        waits = f"waiting for each save to complete; ends with Ctrl+C or when {shown(stop_file)} appears"
        if stop_file.exists():
            waits = f"{shown(stop_file)} exists already, so this looks once and ends (remove it to go on watching)"
    return f"watching {shown(save_path)} ({found}), exports go to {shown(output_dir)}; {waits}"


def _checkpoints(directory: Path) -> list[Path]:
    """Lists the checkpoints of a run; exports have numbers for names and weights too, and are none."""
    try:
        return [found for found in find_checkpoints(directory) if not is_export(found)]
    except CheckpointError:
        return []


def _has_weights(directory: Path) -> bool:
    try:
        return (directory / WEIGHTS_FILE).exists() or (directory / WEIGHTS_INDEX_FILE).exists()
    except OSError:
        return False
