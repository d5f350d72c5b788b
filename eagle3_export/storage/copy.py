"""Writes a safetensors file from tensors in others: by reflink clone, or else copied in the kernel."""

from __future__ import annotations

import errno
import fcntl
import os
import struct
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from eagle3_export.errors import StorageError
from eagle3_export.storage.byte_plan import Layout, Segment, plan_layout
from eagle3_export.storage.faults import DISK_FULL, FILE_MODE, disk_full_error, free_bytes, os_errors, shown
from eagle3_export.storage.safetensors_file import TensorSource
from eagle3_export.storage.sources import FICLONE, FICLONERANGE, PinnedSources, open_sources
from eagle3_export.storage.write_back import WriteBack

__all__ = ["WriteReport", "open_sources", "write_safetensors"]

Method = Literal["reflink", "copy_file_range", "sendfile", "read"]

# Small enough that Ctrl+C is heeded and the disk busy soon, large enough that the calls cost nothing.
_STEP_BYTES = 16 * 1024 * 1024
_READ_BYTES = 1024 * 1024
_UNSUPPORTED = {
    errno.EXDEV, errno.ENOSYS, errno.EOPNOTSUPP, errno.EINVAL,
    errno.ENOTTY, errno.EPERM, errno.EBADF, errno.ENOTSOCK, errno.ETXTBSY,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class WriteReport:
    """How a file was written.

    Attributes:
        method: how most bytes were moved.
        bytes_total: size of the new file.
        bytes_copied: tensor bytes that were not cloned.
        seconds: wall time; the disk may not have all of it yet.
    """

    method: Method
    bytes_total: int
    bytes_copied: int
    seconds: float


def write_safetensors(
    destination: Path,
    tensors: Sequence[tuple[str, TensorSource]],
    *,
    metadata: Mapping[str, str] | None = None,
    sources: PinnedSources | None = None,
) -> WriteReport:
    """Writes `tensors`, each under its new name, to the new file `destination`.

    Args:
        destination: must not exist. It is removed again if anything fails. It gets the modification time of its
            newest source. The kernel is asked to write it to the disk at once, but nothing waits for that: sync it.
        tensors: new name and source of each tensor.
        metadata: the new `__metadata__`; None keeps that of the first tensor's file.
        sources: the opened sources, from `open_sources`; None opens them for this call.

    Returns:
        how it was written.

    Raises:
        StorageError: a source changed or ended early, or the destination could not be written.
        CheckpointError: two tensors would get the same name.
    """
    started = time.perf_counter()
    destination = Path(destination)
    layout = plan_layout(tensors, metadata, _block_size(destination.parent))
    with open_sources(tensors) if sources is None else nullcontext(sources) as pinned:
        with os_errors("Writing", destination, needed=layout.nbytes):
            # O_EXCL also refuses a symbolic link planted under this name.
            target = os.open(destination, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
        try:
            with os_errors("Writing", destination, needed=layout.nbytes):
                method, copied = _fill(target, layout, pinned, destination)
                _take_times(target, pinned, layout)
            pinned.require_unchanged()
        except BaseException:
            with suppress(OSError):
                destination.unlink()
            raise
        finally:
            os.close(target)
    return WriteReport(method, layout.nbytes, copied, time.perf_counter() - started)


def _take_times(target: int, pinned: PinnedSources, layout: Layout) -> None:
    """Gives the new file its newest source's modification time: by it a later look knows whose bytes these are."""
    sources = {segment.file.path: segment.file for segment in layout.segments}.values()
    if sources:
        modified = max(pinned.identity(file).modified_ns for file in sources)
        os.utime(target, ns=(modified, modified))


def _block_size(directory: Path) -> int:
    """Returns the filesystem's block size where it is one that a clone could need, else 4096."""
    try:
        size = os.statvfs(directory).f_frsize
    except OSError:
        return 4096
    return size if size in (4096, 8192, 16384, 32768, 65536) else 4096


def _fill(target: int, layout: Layout, pinned: PinnedSources, destination: Path) -> tuple[Method, int]:
    method: Method = "reflink"
    pieces: list[Segment] = []
    if layout.whole_file is None or not _clone_whole(target, pinned.descriptor(layout.whole_file)):
        for segment in layout.segments:
            pieces += _clone_blocks(target, pinned.descriptor(segment.file), segment, layout.block_size)
        to_copy = sum(piece.nbytes for piece in pieces)
        _require_space(destination, to_copy)
        copier = _Copier(target)
        for piece in pieces:
            copier.copy(pinned.descriptor(piece.file), piece)
        if 2 * to_copy > layout.nbytes:
            method = copier.method
    os.pwrite(target, layout.header, 0)
    size = os.fstat(target).st_size
    if size != layout.nbytes:
        raise StorageError(
            f"{shown(destination)} came out {size} bytes long instead of {layout.nbytes}.",
            why="A source file changed its length while it was being copied.",
            remedy="Export it again once the save has finished.",
        )
    return method, sum(piece.nbytes for piece in pieces)


def _require_space(destination: Path, needed: int) -> None:
    """Refuses before the first byte: a copy that fills the disk would also fail the trainer's next save."""
    free = free_bytes(destination.parent)
    if free is not None and free < needed:
        raise disk_full_error("Writing", destination, needed)


def _clone_whole(target: int, source: int) -> bool:
    try:
        fcntl.ioctl(target, FICLONE, source)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        return False
    return True


def _clone_blocks(target: int, source: int, segment: Segment, block: int) -> list[Segment]:
    """Clones the whole blocks of `segment`; returns the pieces that remain to be copied."""
    first = segment.source_offset + -segment.source_offset % block
    end = segment.source_offset + segment.nbytes
    # A clone may end inside a block only where its source file ends.
    last = end if end == segment.file.size else end - end % block
    shift = segment.offset - segment.source_offset
    if shift % block or last - first < block:
        return [segment]
    try:
        request = struct.pack("=qQQQ", source, first, last - first, first + shift)
        fcntl.ioctl(target, FICLONERANGE, request)
    except OSError as error:
        if error.errno in DISK_FULL:
            raise
        return [segment]
    edges = [(segment.source_offset, first), (last, end)]
    return [Segment(segment.file, a, a + shift, b - a) for a, b in edges if a < b]


class _Copier:
    """Copies ranges into one file, in the order of their offsets there, by the first way that works.

    A way that fails once is not tried again.

    Attributes:
        method: the way in use.
    """

    def __init__(self, target: int) -> None:
        """Begins with the fastest way.

        Args:
            target: descriptor of the file.
        """
        self._target = target
        self._ways = list(_WAYS)
        self._write_back = WriteBack(target)

    @property
    def method(self) -> Method:
        return self._ways[0][0]

    def copy(self, source: int, segment: Segment) -> None:
        """Copies `segment` from the descriptor `source`."""
        done = 0
        while done < segment.nbytes:
            count = min(_STEP_BYTES, segment.nbytes - done)
            try:
                moved = self._ways[0][1](
                    source, segment.source_offset + done, self._target, segment.offset + done, count
                )
            except OSError as error:
                if error.errno not in _UNSUPPORTED or len(self._ways) == 1:
                    raise
                moved = 0
            if moved:
                done += moved
                self._write_back.reached(segment.offset + done)
            elif len(self._ways) > 1:
                # Some filesystems answer 0, as at the end of a file, where they should say "not supported".
                del self._ways[0]
            else:
                raise StorageError(
                    f"{shown(segment.file.path)} was truncated while it was being exported.",
                    remedy="Export it again once the save has finished.",
                )


def _copy_file_range(source: int, source_offset: int, target: int, offset: int, count: int) -> int:
    return os.copy_file_range(source, target, count, source_offset, offset)


def _sendfile(source: int, source_offset: int, target: int, offset: int, count: int) -> int:
    os.lseek(target, offset, os.SEEK_SET)
    return os.sendfile(target, source, source_offset, count)


def _read_and_write(source: int, source_offset: int, target: int, offset: int, count: int) -> int:
    data = os.pread(source, min(count, _READ_BYTES), source_offset)
    return os.pwrite(target, data, offset) if data else 0


_WAYS: tuple[tuple[Method, Callable[[int, int, int, int, int], int]], ...] = (
    ("copy_file_range", _copy_file_range),
    ("sendfile", _sendfile),
    ("read", _read_and_write),
)
if not hasattr(os, "copy_file_range"):  # macOS, whose sendfile is for sockets only (ENOTSOCK)
    _WAYS = _WAYS[1:]
