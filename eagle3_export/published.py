"""The exports that are published in a directory, read once each and again when their metadata.json changes."""

from __future__ import annotations

import logging
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path

from eagle3_export.documents.best import Candidate
from eagle3_export.documents.files import INDEX_FILE, METADATA_FILE, MODEL_CARD_FILE
from eagle3_export.documents.index import index_line
from eagle3_export.documents.json_files import read_metadata, to_json
from eagle3_export.documents.model_card import render_model_card
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import ExportInvalidError, StorageError
from eagle3_export.speculators_format.run_files import INTERRUPTED, epoch_of
from eagle3_export.storage.faults import os_errors, shown
from eagle3_export.storage.publish import replace_file

logger = logging.getLogger(__name__)

Stamp = tuple[int, int, int]


@dataclass(frozen=True)
class Exported:
    """One export of an output directory.

    Attributes:
        directory: where it is.
        metadata: what its metadata.json says, under the name that the directory has now.
    """

    directory: Path
    metadata: ExportMetadata

    @cached_property
    def index_line(self) -> bytes:
        """Its entry in index.json."""
        return index_line(self.metadata)

    @cached_property
    def candidate(self) -> Candidate:
        """What it is ordered and compared by."""
        return Candidate.of(self.metadata)

    @cached_property
    def run_id(self) -> str | None:
        """Of the run that it is of; None where its release recorded none."""
        return None if self.metadata.run is None else self.metadata.run.id

    @cached_property
    def save_path(self) -> str:
        """Where the run that it is of saved; releases that did not record it recorded the checkpoint's path."""
        if self.metadata.run is not None:
            return self.metadata.run.save_path
        return shown(run_of(Path(self.metadata.source.checkpoint)))


def run_of(checkpoint: Path) -> Path:
    """Returns the save_path that a checkpoint lies in; a checkpoint that is not named like one is a run of its own."""
    named = epoch_of(checkpoint.name) is not None or checkpoint.name == INTERRUPTED
    return checkpoint.parent if named else checkpoint


def read_exports(output_dir: Path) -> list[ExportMetadata]:
    """Returns the metadata of every published export; one that cannot be read is named in the log and left out.

    Raises:
        StorageError: the directory cannot be listed.
    """
    return [export.metadata for export in published_exports(output_dir, set())]


def published_exports(
    output_dir: Path, told: set[str], *, changed: Collection[str] | None = None
) -> Iterator[Exported]:
    """Yields the exports of a directory by name; a document that has not changed is not read again.

    Args:
        output_dir: the directory; none are yielded where it is missing.
        told: what has been said of exports that cannot be read, so that each is named once.
        changed: names of the exports whose documents have changed since the last call. Those of others are not looked
            at, except where an export is new. None looks at all.

    Raises:
        StorageError: the directory cannot be listed.
    """
    known, names = _known(os.fspath(output_dir)), set[str]()
    with (
        os_errors("Listing the exports in", output_dir),
        suppress(FileNotFoundError),
        _opened(output_dir) as opened,
    ):
        with os.scandir(opened) as entries:
            names = {e.name for e in entries if e.name[0] != "." and e.is_dir(follow_symlinks=False)}
        for name in names if changed is None else (names & set(changed)) | (names - known.keys()):
            try:
                now = stamp_of(os.stat(f"{name}/{METADATA_FILE}", dir_fd=opened))
            except OSError:
                known.pop(name, None)
                continue
            if name not in known or known[name][0] != now:
                known[name] = now, _read(output_dir / name)
    for name in known.keys() - names:
        del known[name]
    for name in sorted(known):
        _, export = known[name]
        if isinstance(export, Exported):
            yield export
        elif export not in told:
            told.add(export)
            logger.warning("Left out of %s: %s", shown(output_dir / INDEX_FILE), export)


def published_export(directory: Path) -> Exported | None:
    """Returns the export in a directory; None where there is none, or it cannot be read."""
    now = stamp(directory / METADATA_FILE)
    if now is None or directory.is_symlink():
        return None
    known = _known(os.fspath(directory.parent)).get(directory.name)
    found = known[1] if known is not None and known[0] == now else _read(directory)
    return found if isinstance(found, Exported) else None


def replace_documents(export_dir: Path, metadata: ExportMetadata) -> None:
    """Replaces metadata.json and README.md of a published export, the only files in it that ever change.

    Args:
        export_dir: the export's real directory.
        metadata: what they are to say.

    Raises:
        StorageError: one could not be replaced.
    """
    if export_dir.is_symlink():
        raise StorageError(
            f"{shown(export_dir)} is a symbolic link.",
            why="Nothing is written through it.",
            remedy="Remove it.",
        )
    replace_file(export_dir / METADATA_FILE, to_json(metadata))
    replace_file(export_dir / MODEL_CARD_FILE, render_model_card(metadata).encode())


def stamp(path: Path, *, follow_symlinks: bool = True) -> Stamp | None:
    """What changes when a file does that is replaced by rename; None where there is none."""
    try:
        return stamp_of(path.stat(follow_symlinks=follow_symlinks))
    except OSError:
        return None


def stamp_of(status: os.stat_result) -> Stamp:
    """The same, of a file whose status is known."""
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(directory: Path) -> Exported | str:
    """The export, or why it cannot be read."""
    try:
        metadata = read_metadata(directory / METADATA_FILE)
    except (ExportInvalidError, OSError) as error:
        return str(error)
    return Exported(directory, metadata.model_copy(update={"name": shown(directory.name)}))


@lru_cache(maxsize=64)
def _known(output_dir: str) -> dict[str, tuple[Stamp, Exported | str]]:
    """What was read of an output directory before, by name."""
    return {}


@contextmanager
def _opened(directory: Path) -> Iterator[int]:
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield descriptor
    finally:
        os.close(descriptor)
