"""What tells one save's weight files from another's, also after a copy that changed their times."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_export.storage.faults import os_errors
from eagle3_export.storage.regular_file import open_regular_file
from eagle3_export.storage.safetensors_file import SafetensorsFile
from eagle3_export.storage.sources import PinnedSources

_BLOCKS, _BLOCK = 64, 4096


@dataclass(frozen=True, slots=True)
class WeightsFingerprint:
    """Of the weight files of one checkpoint.

    Attributes:
        size: of all files together, in bytes.
        modified_ns: when the newest was written, in ns since 1970.
        header_digest: sha256 of their headers, which all saves of a run share.
        sample_digest: sha256 of 64 blocks of 4 KiB, evenly spread over each file.
    """

    size: int
    modified_ns: int
    header_digest: str
    sample_digest: str


def weights_fingerprint(files: Iterable[SafetensorsFile], pinned: PinnedSources) -> WeightsFingerprint:
    """Reads the headers and a sample of files that are held open; a millisecond where they are in memory.

    Raises:
        StorageError: a file cannot be read.
    """
    ordered = _ordered(files)
    header, sample = hashlib.sha256(), hashlib.sha256()
    for file in ordered:
        with os_errors("Reading", file.path):
            descriptor = pinned.descriptor(file)
            header.update(os.pread(descriptor, file.data_start, 0))
            _add_blocks(sample, descriptor, _places(file))
    return WeightsFingerprint(
        size=sum(file.size for file in ordered),
        modified_ns=max((pinned.identity(file).modified_ns for file in ordered), default=0),
        header_digest=f"sha256:{header.hexdigest()}",
        sample_digest=f"sha256:{sample.hexdigest()}",
    )


def sample_digest(files: Iterable[SafetensorsFile]) -> str:
    """Returns the `sample_digest` of files by their names.

    Raises:
        OSError: a file cannot be read.
    """
    sample = hashlib.sha256()
    for file in _ordered(files):
        places = _places(file)
        descriptor = open_regular_file(file.path)
        try:
            _add_blocks(sample, descriptor, places)
        finally:
            os.close(descriptor)
    return f"sha256:{sample.hexdigest()}"


def is_same(files: Iterable[SafetensorsFile], *, size: int, modified_ns: int, sample: str) -> bool:
    """Whether weight files are those of an earlier `WeightsFingerprint`, as they are now or copied.

    False where one cannot be read.

    Args:
        files: of one checkpoint.
        size: of the fingerprint.
        modified_ns: of the fingerprint.
        sample: its `sample_digest`; read only where the times differ.
    """
    ordered = _ordered(files)
    if sum(file.size for file in ordered) != size:
        return False
    try:
        newest = max((file.path.stat().st_mtime_ns for file in ordered), default=0)
        return newest == modified_ns or sample_digest(ordered) == sample
    except OSError:
        return False


def newest_weights(directory: Path) -> int | None:
    """Returns when the newest weight file in a directory was written, in ns since 1970; None where there is none."""
    try:
        return max((path.stat().st_mtime_ns for path in directory.glob("*.safetensors")), default=None)
    except OSError:
        return None


def _ordered(files: Iterable[SafetensorsFile]) -> Sequence[SafetensorsFile]:
    by_path = {file.path: file for file in files}
    return [by_path[path] for path in sorted(by_path)]


def _places(file: SafetensorsFile) -> range:
    """Where the sampled blocks of a file begin."""
    step = max((file.size - file.data_start) // _BLOCKS, _BLOCK)
    return range(file.data_start, file.size, step)


def _add_blocks(sample: hashlib._Hash, descriptor: int, places: range) -> None:
    for at in places:
        sample.update(os.pread(descriptor, _BLOCK, at))
