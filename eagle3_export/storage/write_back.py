"""Lets the disk write what has been copied while the rest is still being copied."""

from __future__ import annotations

from collections.abc import Callable

# Enough for the disk to work on at a time; also what is left for it to do after the last byte was copied.
_STEP_BYTES = 16 * 1024 * 1024
_SYNC_FILE_RANGE_WRITE = 2  # linux/fs.h


class WriteBack:
    """Asks the kernel to write a file to the disk, as it grows.

    This is for speed only: nothing is safe before fsync, which also reports every error of the disk.
    """

    def __init__(self, descriptor: int) -> None:
        """Names the file.

        Args:
            descriptor: of the file, open for writing.
        """
        self._descriptor = descriptor
        self._begin = _sync_file_range()
        self._asked = 0

    def reached(self, end: int) -> None:
        """Takes note that all bytes before `end` are in the file; `end` only ever grows."""
        if self._begin is not None and end - self._asked >= _STEP_BYTES:
            self._begin(self._descriptor, self._asked, end - self._asked, _SYNC_FILE_RANGE_WRITE)
            self._asked = end


def _sync_file_range() -> Callable[[int, int, int, int], int] | None:
    """Returns the C library's sync_file_range(2); None where it has none (macOS)."""
    import ctypes  # costs a tenth of this package's start-up

    function = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function
