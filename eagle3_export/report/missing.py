"""The exports of a run that have no number: why, and what to type."""

from __future__ import annotations

import shlex
from collections.abc import Callable
from pathlib import Path

from eagle3_export.documents.best import not_compared
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.report.runs import Run
from eagle3_export.speculators_format.run_files import RUN_FILE
from eagle3_export.storage.faults import shown

MAX_COMMANDS = 5  # shown of one report


def missing_reasons(run: Run) -> list[str]:
    """Returns why exports have no estimate, or one that cannot be compared, a sentence each.

    Args:
        run: whose exports are looked at.
    """
    reasons = [f"No estimate for {', '.join(names)}: {reason}" for reason, names in run.unrated().items()]
    reasons += not_compared(run.exports)
    if others := [export.name for export in _lacking(run)[MAX_COMMANDS:]]:
        reasons.append(f"The commands for {', '.join(others)} are like those below.")
    return reasons


def missing_commands(run: Run) -> list[str]:
    """Returns what to type for those exports, a line each; for some of them, where they are many.

    Args:
        run: whose exports are looked at.
    """
    return [estimate_command(export, run.directory_of(export)) for export in _lacking(run)[:MAX_COMMANDS]]


def _lacking(run: Run) -> list[ExportMetadata]:
    compared = {export.name for export in run.compared}
    return [export for export in run.exports if export.name not in compared]


def estimate_command(export: ExportMetadata, directory: Path) -> str:
    """Returns the command that replays an export's checkpoint and writes the number into its metadata.

    Args:
        export: what its metadata.json says.
        directory: where it is.

    Returns:
        the command; CHECKPOINT and DATA stand in it for what is not where it was.
    """
    checkpoint = Path(export.source.checkpoint)
    data = [] if _true((checkpoint.parent / RUN_FILE).is_file) else ["--data", "DATA"]
    named = shown(checkpoint) if _true(checkpoint.is_dir) else "CHECKPOINT"
    return shlex.join(["eagle3-export", "estimate", named, *data, "--export", shown(directory)])


def _true(of: Callable[[], bool]) -> bool:
    """What lies in another user's private directory cannot be told, and is not there for us."""
    try:
        return of()
    except OSError:
        return False
