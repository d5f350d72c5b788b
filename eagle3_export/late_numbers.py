"""Numbers that are found after an export was published, written into its documents by whoever found them.

The exporter of a run holds its directory for as long as the run goes on. Then the documents of the export are replaced
all the same, and the exporter is told.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.documents.files import INDEX_FILE, is_index
from eagle3_export.documents.json_files import read_index, read_metadata
from eagle3_export.documents.metadata import with_measurement, with_metrics
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.published import replace_documents
from eagle3_export.run_identity import require_export_of
from eagle3_export.storage.faults import shown
from eagle3_export.storage.lock import OutputBusyError

if TYPE_CHECKING:
    from eagle3_export.estimates.replay import Replay
    from eagle3_export.speculators_format.checkpoint import Checkpoint

logger = logging.getLogger(__name__)


def add_measurement(export: Path, measurement: Measurement) -> ExportMetadata:
    """Writes a measurement into an export's metadata and model card, and into its run's index.

    Args:
        export: the export's real directory, from `locate_export`.
        measurement: what was measured.

    Raises:
        ExportInvalidError: the export has no readable metadata.json.
        StorageError: a document could not be replaced; each is replaced by rename, so none is half-written.
    """
    return _change_documents(export, lambda metadata: with_measurement(metadata, measurement))


def add_estimate(
    export: Path, checkpoint: Checkpoint, metrics: Mapping[str, Any] | None, replay: Replay
) -> ExportMetadata:
    """Writes what a replay of an export's checkpoint counted into its metadata, and into its run's index.

    Args:
        export: the export's real directory, from `locate_export`.
        checkpoint: that was replayed.
        metrics: of the same pass.
        replay: what it counted, with its data.

    Raises:
        ExportInvalidError: the export has no readable metadata.json, or was made from another save.
        StorageError: a document could not be replaced; each is replaced by rename, so none is half-written.
    """

    def change(metadata: ExportMetadata) -> ExportMetadata:
        require_export_of(metadata, export, checkpoint)
        return with_metrics(metadata, metrics, source="estimate", replay=replay)

    return _change_documents(export, change)


def _change_documents(export: Path, change: Callable[[ExportMetadata], ExportMetadata]) -> ExportMetadata:
    """Replaces an export's documents, and the index of its run where it has one."""

    def replace() -> ExportMetadata:
        metadata = change(read_metadata(export))
        replace_documents(export, metadata)
        return metadata

    if not is_index(export.parent / INDEX_FILE):
        return replace()
    try:
        with OutputDirectory.around(export) as output:
            metadata = replace()
            output.refresh(latest=read_index(output.path).latest)
            return metadata
    except OutputBusyError:
        metadata = replace()
        tell_exporter(export.parent)
        return metadata


def tell_exporter(output_dir: Path) -> None:
    """Tells the exporter that holds the directory's lock that documents of exports there have changed.

    It updates the index with its next export, and looks at all documents then because index.json has another time.
    """
    try:
        os.utime(output_dir / INDEX_FILE, follow_symlinks=False)
    except OSError as error:
        logger.warning(
            "%s will not show this before it is made anew: %s", shown(output_dir / INDEX_FILE), error
        )
