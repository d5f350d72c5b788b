"""Reads small files that nobody vouches for, and looks for them where not all may be seen."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """The first `most_bytes` of a file, or all of a shorter one.

    Raises:
        OSError: it cannot be read, or is a pipe, a device or another thing that might never end.
    """
    # O_NONBLOCK: a named pipe in the file's place must not stop us.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    with os.fdopen(descriptor, "rb") as file:
        mode = os.fstat(descriptor).st_mode
        if not stat.S_ISREG(mode):
            number = errno.EISDIR if stat.S_ISDIR(mode) else errno.EINVAL
            raise OSError(number, os.strerror(number) if stat.S_ISDIR(mode) else "it is not a regular file")
        return file.read(most_bytes)


def is_regular_file(path: Path) -> bool:
    """Whether a regular file is seen there. `Path.is_file` raises in another user's private directory."""
    try:
        return path.is_file()
    except OSError:
        return False
