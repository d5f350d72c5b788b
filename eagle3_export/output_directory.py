"""The output directory of a run: `latest`, `best`, `index.json`, retention, and metrics that arrive later."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import Eagle3ExportError, ExportInvalidError
from eagle3_export.storage.faults import os_errors
from eagle3_export.storage.publish import neighbour, replace_file, set_pointer
from eagle3_export.storage.regular_file import is_regular_file
from eagle3_export.storage.retention import prune

if TYPE_CHECKING:
    from eagle3_export.documents.schema import ExportIndex, ExportMetadata
    from eagle3_export.estimates.acceptance import AccuracySource

LATEST = "latest"
BEST = "best"
INDEX_FILE = "index.json"

logger = logging.getLogger(__name__)


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
