"""The copy and the scan for non-finite values, side by side: each byte comes from the disk once."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from eagle3_export.storage.copy import WriteReport, write_safetensors
from eagle3_export.storage.finite import non_finite_tensors
from eagle3_export.storage.safetensors_file import TensorSource
from eagle3_export.storage.sources import PinnedSources, open_sources


def write_and_scan(
    destination: Path,
    tensors: Sequence[tuple[str, TensorSource]],
    *,
    metadata: Mapping[str, str] | None = None,
    sources: PinnedSources | None = None,
) -> tuple[WriteReport, list[str]]:
    """`write_safetensors` while a second thread runs `non_finite_tensors` over the same sources.

    Returns:
        the report and the names of the tensors with NaN or infinite values; the file is written either way.

    Raises:
        StorageError: as the two functions do.
        CheckpointError: as `write_safetensors` does.
    """
    with open_sources(tensors) if sources is None else nullcontext(sources) as pinned:
        scan = _Scan(tensors, pinned)
        try:
            report = write_safetensors(destination, tensors, metadata=metadata, sources=pinned)
            return report, scan.result()
        except BaseException:
            scan.cancel()
            raise


class _Scan:
    """`non_finite_tensors` in a thread of its own, or later in the caller's where no thread can be started."""

    def __init__(self, tensors: Sequence[tuple[str, TensorSource]], sources: PinnedSources) -> None:
        self._tensors = tensors
        self._sources = sources
        self._stop = threading.Event()
        self._found: list[str] = []
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        thread = threading.Thread(target=self._run, name="finite-scan", daemon=True)
        # An interpreter that is shutting down starts no threads, but may still wait for one that exports.
        with suppress(RuntimeError):
            thread.start()
            self._thread = thread

    def cancel(self) -> None:
        """Ends the scan; afterwards the sources may be closed."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join()

    def result(self) -> list[str]:
        """Waits for the scan."""
        if self._thread is None:
            self._run()
        else:
            self._thread.join()
        if self._error is not None:
            raise self._error
        return self._found

    def _run(self) -> None:
        try:
            self._found = non_finite_tensors(self._tensors, sources=self._sources, stop=self._stop)
        except BaseException as error:
            self._error = error
