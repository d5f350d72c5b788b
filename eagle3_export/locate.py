"""What a path names: an export, or what else it is."""

from __future__ import annotations

import os
from pathlib import Path

from eagle3_export.documents.files import (
    BEST,
    INDEX_FILE,
    LATEST,
    METADATA_FILE,
    WEIGHTS_FILE,
    is_export,
    is_index,
)
from eagle3_export.documents.json_files import read_index
from eagle3_export.errors import CheckpointError, ExportInvalidError
from eagle3_export.speculators_format.run_files import WEIGHTS_INDEX_FILE, find_checkpoints
from eagle3_export.storage.faults import leads_to, os_errors, resolved, shown


def locate_export(path: str | Path) -> Path:
    """Returns the real directory of the export that `path` names, links such as `best` followed once, here.

    A pointer may move while a command runs, so a command calls this first and uses nothing but the answer.

    Args:
        path: an export, or a pointer to one.

    Raises:
        ExportInvalidError: it is something else; the message says what, and what to type instead.
        StorageError: it may not be read.
    """
    with os_errors("Reading", Path(path)):
        directory = resolved(path)
        if not os.path.lexists(directory) or directory.is_symlink():  # a link in a circle cannot be resolved
            raise _nothing_there(Path(path))
        if not directory.is_dir():
            raise ExportInvalidError(f"{shown(path)} is a file, not an export.", remedy=_NAME_AN_EXPORT)
        if os.path.lexists(directory / METADATA_FILE) or is_export(directory):
            return directory
        raise _no_export(Path(path), directory)


_NAME_AN_EXPORT = "Name the directory of one export, or a pointer to one such as latest."


def _nothing_there(path: Path) -> ExportInvalidError:
    """Says why a pointer that one expects is not there yet."""
    if path.name in (LATEST, BEST) and is_output_directory(path.parent):
        others = sorted(child.name for child in path.parent.iterdir() if is_export(child))
        remedy = f"Name an export, such as {shown(path.parent / others[-1])}." if others else ""
        return ExportInvalidError(
            f"There is no {shown(path)}.", why=_pointer_reason(path.parent, path.name), remedy=remedy
        )
    if path.is_symlink():
        return ExportInvalidError(f"{shown(path)} {leads_to(path)}.", remedy=_NAME_AN_EXPORT)
    return ExportInvalidError(f"There is no {shown(path)}.", remedy=_NAME_AN_EXPORT)


def _pointer_reason(output_dir: Path, pointer: str) -> str:
    try:
        return read_index(output_dir).reasons.get(pointer, "")
    except ExportInvalidError:
        return ""


def _no_export(path: Path, directory: Path) -> ExportInvalidError:
    """Says what the directory is instead."""
    if is_output_directory(directory):
        named = BEST if (directory / BEST).exists() else LATEST
        return ExportInvalidError(
            f"{shown(path)} is the output directory of a run, not one of its exports.",
            remedy=f"Name one of them, such as {shown(path / named)}.",
        )
    try:
        checkpoints = find_checkpoints(directory)
    except CheckpointError:
        checkpoints = []
    if checkpoints:
        return ExportInvalidError(
            f"{shown(path)} is the save_path of a training run, not an export.",
            remedy=f"Name one of its exports, or make them: eagle3-export convert --all {shown(path)} OUT.",
        )
    if (directory / WEIGHTS_FILE).exists() or (directory / WEIGHTS_INDEX_FILE).exists():
        return ExportInvalidError(
            f"{shown(path)} is a checkpoint, not an export.",
            remedy=f"Name its export, or make it: eagle3-export convert {shown(path)} OUT.",
        )
    return ExportInvalidError(f"{shown(path)} holds no export.", remedy=_NAME_AN_EXPORT)


def is_output_directory(directory: Path) -> bool:
    """Whether a run's exports lie in this directory: it has an index of ours, or an export."""
    try:
        return is_index(directory / INDEX_FILE) or any(is_export(child) for child in directory.iterdir())
    except OSError:
        return False
