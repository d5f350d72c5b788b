"""Finds tensors with NaN or infinite values, at the speed of reading the file, and the weights' digest with them.

NaN and infinity have all exponent bits set. So max() over the buffer viewed as signed integers finds the
positive ones, max() over unsigned integers the negative ones. The buffer stays in the processor's cache, and
nothing else is allocated.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple

from eagle3_export.errors import StorageError
from eagle3_export.storage.digest import CHUNK_BYTES, chunk_sum, weights_digest
from eagle3_export.storage.faults import os_errors, shown
from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from eagle3_export.storage.sources import PinnedSources, open_sources

if TYPE_CHECKING:
    import numpy as np

# Fits the second-level cache of current server CPUs, so each byte comes from memory once.
_BUFFER_BYTES = CHUNK_BYTES
# What a thread takes at a time: small enough that all threads end together.
_PIECE_BYTES = 16 * 1024 * 1024
# Beside the caller's. More would take cores from a training step for the sake of milliseconds.
_MOST_HELPERS = 3


class _Limits(NamedTuple):
    """The bit patterns from which on a value is not finite; None where no such pattern exists."""

    width: int
    positive: int | None
    negative: int | None


# IEEE 754, bfloat16, and the 8-bit formats of OCP "8-bit Floating Point Specification" (E4M3 has one NaN
# and no infinity; E8M0 has no sign); dtypes missing here have only finite values, the FNUZ ones are handled
# apart.
_LIMITS = {
    "F64": _Limits(8, 0x7FF0000000000000, 0xFFF0000000000000),
    "F32": _Limits(4, 0x7F800000, 0xFF800000),
    "C64": _Limits(4, 0x7F800000, 0xFF800000),
    "F16": _Limits(2, 0x7C00, 0xFC00),
    "BF16": _Limits(2, 0x7F80, 0xFF80),
    "F8_E5M2": _Limits(1, 0x7C, 0xFC),
    "F8_E4M3": _Limits(1, 0x7F, 0xFF),
    "F8_E8M0": _Limits(1, None, 0xFF),
}
# Their only NaN is negative zero's pattern: the smallest signed integer.
_NEGATIVE_ZERO_IS_NAN = frozenset({"F8_E4M3FNUZ", "F8_E5M2FNUZ"})


def non_finite_tensors(tensors: Sequence[tuple[str, TensorSource]]) -> list[str]:
    """Returns the names of the tensors that hold a NaN or an infinity, in the order given.

    Integer and boolean tensors are finite.

    Args:
        tensors: name and source of each tensor.

    Raises:
        StorageError: a source cannot be read, or changed while it was.
    """
    return scan_tensors(tensors)[0]


def scan_tensors(tensors: Sequence[tuple[str, TensorSource]]) -> tuple[list[str], str | None]:
    """Returns the names of the tensors that hold a NaN or an infinity, and the weights' digest if there are none.

    Args:
        tensors: name and source of each tensor.

    Raises:
        StorageError: a source cannot be read, or changed while it was.
    """
    with open_sources(tensors) as pinned, FiniteScan(tensors, pinned) as scan:
        return scan.result(), scan.digest()


def digest_of_file(path: Path) -> str | None:
    """Returns the digest of a draft's weight file, None if it holds a NaN or an infinity. Reads all of it.

    Raises:
        CheckpointError: it is no safetensors file.
        StorageError: it cannot be read, or changed while it was.
    """
    file = read_safetensors(path)
    return scan_tensors([(name, TensorSource(file, entry)) for name, entry in file.tensors.items()])[1]


class FiniteScan:
    """The search for tensors with NaN or infinite values. A context manager.

    Threads of its own search from the beginning of the `with` block; `result` helps them. Leaving the block ends the
    search, whether it is done or not; afterwards the sources may be closed.
    """

    def __init__(self, tensors: Sequence[tuple[str, TensorSource]], sources: PinnedSources) -> None:
        """Plans the search; the `with` block begins it.

        Args:
            tensors: name and source of each tensor.
            sources: their opened files, from `open_sources`.
        """
        self._tensors = tensors
        self._sources = sources
        self._pieces = _pieces(tensors)
        self._taking = threading.Lock()
        self._found: set[int] = set()
        self._sums: dict[int, dict[int, int]] = {number: {} for number in range(len(tensors))}
        self._error: BaseException | None = None
        self._ended = False
        self._helpers: list[threading.Thread] = []

    def __enter__(self) -> FiniteScan:
        for _ in range(_helpers()):
            helper = threading.Thread(target=self._search, name="finite-scan", daemon=True)
            # An interpreter that is shutting down starts no threads, but may still wait for one that exports.
            with suppress(RuntimeError):
                helper.start()
                self._helpers.append(helper)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._ended = True
        for helper in self._helpers:
            helper.join()

    def result(self) -> list[str]:
        """Searches what no thread has taken yet, and waits for the threads.

        Returns:
            the names of the tensors with NaN or infinite values, in the order given.

        Raises:
            StorageError: a source cannot be read, or changed while it was.
        """
        self._search()
        for helper in self._helpers:
            helper.join()
        if self._error is not None:
            raise self._error
        self._sources.require_unchanged()
        return [self._tensors[number][0] for number in sorted(self._found)]

    def digest(self) -> str | None:
        """Returns the weights' digest after `result`, None where a value was not finite: the search ended there."""
        return None if self._found else weights_digest(self._tensors, self._sums)

    def _search(self) -> None:
        import numpy as np

        try:
            buffer = np.empty(_BUFFER_BYTES, dtype=np.uint8)
            while (piece := self._take()) is not None:
                if piece.number not in self._found and self._has_non_finite(piece, buffer):
                    self._found.add(piece.number)
        except BaseException as error:
            self._error = error
            self._ended = True

    def _take(self) -> _Piece | None:
        with self._taking:
            return None if self._ended else next(self._pieces, None)

    def _has_non_finite(self, piece: _Piece, buffer: np.ndarray) -> bool:
        file, dtype = piece.source.file, piece.source.entry.dtype
        descriptor, at = self._sources.descriptor(file), piece.offset
        with os_errors("Reading", file.path):
            while at < piece.end and not self._ended:
                want = min(len(buffer), piece.end - at)
                have = 0
                while have < want:
                    got = os.preadv(descriptor, [buffer.data[have:want]], at + have)
                    if not got:
                        raise StorageError(
                            f"{shown(file.path)} was truncated while it was being read.",
                            remedy="Export it again once the save has finished.",
                        )
                    have += got
                if _chunk_has_non_finite(dtype, buffer[:want]):
                    return True
                self._sums[piece.number][at - piece.source.entry.offset] = chunk_sum(buffer[:want])
                at += want
        return False


class _Piece(NamedTuple):
    """A part of the tensor `number` of the list; `offset` and `end` count bytes from the start of its file."""

    number: int
    source: TensorSource
    offset: int
    end: int


def _pieces(tensors: Sequence[tuple[str, TensorSource]]) -> Iterator[_Piece]:
    for number, (_, source) in enumerate(tensors):
        end = source.entry.offset + source.entry.nbytes
        for offset in range(source.entry.offset, end, _PIECE_BYTES):
            yield _Piece(number, source, offset, min(offset + _PIECE_BYTES, end))


def _helpers() -> int:
    """Returns how many threads search beside the caller, which has a copy to make meanwhile."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(_MOST_HELPERS, cores - 1))


def _chunk_has_non_finite(dtype: str, chunk: np.ndarray) -> bool:
    if dtype in _NEGATIVE_ZERO_IS_NAN:
        return bool(chunk.view("i1").min() == -128)
    limits = _LIMITS.get(dtype)
    if limits is None:
        return False
    if limits.positive is not None and int(chunk.view(f"<i{limits.width}").max()) >= limits.positive:
        return True
    return limits.negative is not None and int(chunk.view(f"<u{limits.width}").max()) >= limits.negative
