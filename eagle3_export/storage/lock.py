"""One exporter per output directory."""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import FILE_MODE, os_errors, shown

logger = logging.getLogger(__name__)

LOCK_NAME = ".eagle3-export.lock"


@contextmanager
def output_lock(output_dir: Path) -> Iterator[None]:
    """Holds `output_dir` (made if missing) for this exporter; the kernel lets go when the process ends,
    however it ends.

    Raises:
        StorageError: another process, or another part of this one, is exporting there.
    """
    path = output_dir / LOCK_NAME
    with os_errors("Locking", output_dir):
        output_dir.mkdir(parents=True, exist_ok=True)
        descriptor = _acquire(path)
    try:
        yield
    finally:
        # Removed while still held; whoever waits for it notices in `_acquire`.
        with suppress(OSError):
            path.unlink()
        os.close(descriptor)


def _acquire(path: Path) -> int:
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, FILE_MODE)
        try:
            _flock(path, descriptor)
            # The holder before us may have removed the name: then this is a lock on nothing.
            if _same_file(path, descriptor):
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{os.getpid()} on {socket.gethostname()}\n".encode(), 0)
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _flock(path: Path, descriptor: int) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 200, 0).decode("utf-8", "replace").strip() or "unknown"
        raise StorageError(
            f"Another export is running in {shown(path.parent)} (process {holder}).",
            why="Two at once could remove each other's files.",
            remedy="Wait for it, or choose another output directory.",
        ) from None
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL):
            raise
        logger.warning(
            "%s is on a filesystem without file locks: make sure that only one run exports there",
            shown(path.parent),
        )


def _same_file(path: Path, descriptor: int) -> bool:
    try:
        there = path.lstat()
    except FileNotFoundError:
        return False
    here = os.fstat(descriptor)
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)
