"""Writes the weights and searches them for non-finite values meanwhile: each byte comes from the disk once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from pathlib import Path

from eagle3_export.storage.copy import WriteReport, write_safetensors
from eagle3_export.storage.finite import FiniteScan
from eagle3_export.storage.safetensors_file import TensorSource
from eagle3_export.storage.sources import PinnedSources, open_sources


def write_and_scan(
    destination: Path,
    tensors: Sequence[tuple[str, TensorSource]],
    *,
    metadata: Mapping[str, str] | None = None,
    sources: PinnedSources | None = None,
) -> tuple[WriteReport, list[str], str | None]:
    """Writes a file as `write_safetensors` does, while other threads search the same sources with `FiniteScan`.

    Args:
        destination: the new file; it must not exist. The kernel has begun to write it to the disk, no more.
        tensors: new name and source of each tensor.
        metadata: the new `__metadata__`; None keeps that of the first tensor's file.
        sources: the opened sources, from `open_sources`; None opens them for this call.

    Returns:
        the report, the names of the tensors with NaN or infinite values, and the weights' digest if there are none;
        the file is written either way.

    Raises:
        StorageError: a source changed or cannot be read, or the destination could not be written.
        CheckpointError: two tensors would get the same name.
    """
    with (
        open_sources(tensors) if sources is None else nullcontext(sources) as pinned,
        FiniteScan(tensors, pinned) as scan,
    ):
        report = write_safetensors(destination, tensors, metadata=metadata, sources=pinned)
        return report, scan.result(), scan.digest()
