"""Finds tensors with NaN or infinite values, at the speed of reading the file.

A value is not finite when its exponent bits are all ones. Read as an unsigned integer, the negative ones
among these are then the largest numbers there are; read as a signed integer, the positive ones are. Two
integer maxima over a buffer that stays in the CPU's cache decide it, without a temporary.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from contextlib import nullcontext
from typing import TYPE_CHECKING, NamedTuple

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import os_errors, shown
from eagle3_export.storage.safetensors_file import TensorSource
from eagle3_export.storage.sources import PinnedSources, open_sources

if TYPE_CHECKING:
    import numpy as np

# Fits the second-level cache of current server CPUs, so each byte comes from memory once.
_BUFFER_BYTES = 1024 * 1024


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
_NEGATIVE_ZERO_IS_NAN = {"F8_E4M3FNUZ": 1, "F8_E5M2FNUZ": 1}


def non_finite_tensors(
    tensors: Sequence[tuple[str, TensorSource]],
    *,
    sources: PinnedSources | None = None,
    stop: threading.Event | None = None,
) -> list[str]:
    """The names of the tensors that hold a NaN or an infinity, in the order given.

    Streams the files through one buffer of 1 MiB. Integer and boolean tensors are finite.

    Args:
        sources: the opened sources, from `open_sources`; None opens them for this call.
        stop: once set, the scan ends early and its answer means nothing.

    Raises:
        StorageError: a source cannot be read, or changed while it was.
    """
    import numpy as np

    buffer = np.empty(_BUFFER_BYTES, dtype=np.uint8)
    found = []
    with open_sources(tensors) if sources is None else nullcontext(sources) as pinned:
        for name, source in tensors:
            if source.entry.dtype in _LIMITS or source.entry.dtype in _NEGATIVE_ZERO_IS_NAN:
                with os_errors("Reading", source.file.path):
                    if _has_non_finite(pinned.descriptor(source.file), source, buffer, stop):
                        found.append(name)
        pinned.require_unchanged()
    return found


def _has_non_finite(
    descriptor: int, source: TensorSource, buffer: np.ndarray, stop: threading.Event | None
) -> bool:
    at, end = source.entry.offset, source.entry.offset + source.entry.nbytes
    while at < end and not (stop and stop.is_set()):
        want = min(len(buffer), end - at)
        have = 0
        while have < want:
            got = os.preadv(descriptor, [buffer.data[have:want]], at + have)
            if not got:
                raise StorageError(
                    f"{shown(source.file.path)} was truncated while it was being read.",
                    remedy="Export it again once the save has finished.",
                )
            have += got
        if _chunk_has_non_finite(source.entry.dtype, buffer[:want]):
            return True
        at += want
    return False


def _chunk_has_non_finite(dtype: str, chunk: np.ndarray) -> bool:
    if dtype in _NEGATIVE_ZERO_IS_NAN:
        return bool(chunk.view("i1").min() == -128)
    limits = _LIMITS[dtype]
    if limits.positive is not None and int(chunk.view(f"<i{limits.width}").max()) >= limits.positive:
        return True
    return limits.negative is not None and int(chunk.view(f"<u{limits.width}").max()) >= limits.negative
