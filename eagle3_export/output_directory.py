"""The output directory of a run: `latest`, `best`, `index.json`, retention, and metrics that arrive later."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.documents.files import BEST, INDEX_FILE, LATEST, METADATA_FILE, WEIGHTS_FILE, is_export
from eagle3_export.documents.json_files import read_index
from eagle3_export.errors import CheckpointError, Eagle3ExportError, ExportInvalidError
from eagle3_export.speculators_format.run_files import WEIGHTS_INDEX_FILE, find_checkpoints
from eagle3_export.storage.faults import os_errors, resolved, shown
from eagle3_export.storage.publish import neighbour, replace_file, set_pointer
from eagle3_export.storage.regular_file import is_regular_file
from eagle3_export.storage.retention import prune

if TYPE_CHECKING:
    from eagle3_export.documents.schema import ExportIndex, ExportMetadata
    from eagle3_export.estimates.acceptance import AccuracySource

logger = logging.getLogger(__name__)


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
        if not os.path.lexists(directory):
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
        why = _pointer_reason(path.parent, path.name)
        others = read_exports(path.parent)
        remedy = f"Name an export, such as {shown(path.parent / others[-1].name)}." if others else ""
        return ExportInvalidError(f"There is no {shown(path)}.", why=why, remedy=remedy)
    if path.is_symlink():
        return ExportInvalidError(
            f"{shown(path)} points to {shown(path.readlink())}, which is not there.", remedy=_NAME_AN_EXPORT
        )
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
        read_index(directory)
    except ExportInvalidError:
        pass
    else:
        return True
    try:
        return any(is_export(child) for child in directory.iterdir())
    except OSError:
        return False


def refresh_outputs(
    output_dir: str | Path, *, latest: str | None = None, keep_last: int | None = None
) -> ExportIndex:
    """Brings pointers and index up to date with the exports that are there, after pruning old ones.

    `best` is the export with the highest acceptance length estimated from its own validation. The caller holds
    the output directory's lock.

    Args:
        latest: name of the export published last; None leaves the pointer `latest` as it is.
        keep_last: how many exports stay besides the newest and the best; None keeps all.

    Raises:
        StorageError: a pointer or the index could not be written, or an old export not be removed.
    """
    from eagle3_export.documents.index import build_index, choose_best
    from eagle3_export.documents.json_files import to_json

    output_dir = Path(output_dir)
    exports = read_exports(output_dir)
    best = choose_best(exports)
    if latest is not None:
        set_pointer(output_dir, LATEST, latest)
    if best is not None:
        set_pointer(output_dir, BEST, best)
    if keep_last is not None:
        protected = {name for name in (latest, best) if name is not None}
        gone = set(prune(output_dir, keep_last=keep_last, protected=protected))
        exports = [export for export in exports if export.name not in gone]
    index = build_index(exports, latest=_pointer_target(output_dir, LATEST), best=best)
    replace_file(output_dir / INDEX_FILE, to_json(index))
    return index


def read_exports(output_dir: Path) -> list[ExportMetadata]:
    """The metadata of every published export; one that cannot be read is named in the log and left out."""
    from eagle3_export.documents.json_files import read_metadata

    exports = []
    with os_errors("Listing the exports in", output_dir):
        children = sorted(output_dir.iterdir())
        names = [
            child.name
            for child in children
            if not child.name.startswith(".")
            and not child.is_symlink()
            and is_regular_file(child / "metadata.json")
        ]
    for name in names:
        try:
            exports.append(read_metadata(output_dir / name).model_copy(update={"name": name}))
        except (ExportInvalidError, OSError) as error:
            logger.warning("Left out of %s: %s", output_dir / INDEX_FILE, error)
    return exports


def is_export_of(export: Path, checkpoint: Path) -> bool:
    """Whether `export` was made from the checkpoint as it is now: from its weights, whose modification time it shares
    (so that a clock set back does no harm), and at the same step where both say one."""
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.speculators_format.checkpoint import read_checkpoint

    try:
        modified = (export / "model.safetensors").stat().st_mtime_ns
        if modified != max(path.stat().st_mtime_ns for path in checkpoint.glob("*.safetensors")):
            return False
        state = read_checkpoint(checkpoint).training_state
        return state is None or read_metadata(export).global_step in (None, state.global_step)
    except (Eagle3ExportError, OSError, ValueError):
        return False


def update_metrics(
    export_dir: str | Path,
    metrics: Mapping[str, Any] | None,
    *,
    source: AccuracySource = "validation",
    missing_reason: str | None = None,
) -> ExportMetadata:
    """Writes the metrics of an export's own validation into its metadata and model card, each by rename.

    Args:
        metrics: the trainer's, None if it turned out that there are none.
        missing_reason: then why.

    Raises:
        ExportInvalidError: the export has no readable metadata.json.
        StorageError: it could not be replaced.
    """
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.documents.metadata import NOT_VALIDATED, with_metrics

    metadata = with_metrics(
        read_metadata(export_dir), metrics, source=source, missing_reason=missing_reason or NOT_VALIDATED
    )
    replace_documents(Path(export_dir), metadata)
    return metadata


def replace_documents(export_dir: Path, metadata: ExportMetadata) -> None:
    """Replaces metadata.json and README.md of a published export, the only files in it that ever change.

    Raises:
        StorageError: one could not be replaced.
    """
    from eagle3_export.documents.json_files import to_json
    from eagle3_export.documents.model_card import render_model_card

    export_dir = neighbour(export_dir)
    replace_file(export_dir / "metadata.json", to_json(metadata))
    replace_file(export_dir / "README.md", render_model_card(metadata).encode())


def _pointer_target(output_dir: Path, pointer: str) -> str | None:
    link = output_dir / pointer
    with os_errors("Reading", link):
        return str(link.readlink()) if link.is_symlink() and link.exists() else None
