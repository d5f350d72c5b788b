"""One exporter per output directory."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import DIRECTORY_MODE, FILE_MODE, os_errors, shown

if TYPE_CHECKING:
    from filelock import FileLock

logger = logging.getLogger(__name__)

LOCK_NAME = ".eagle3-export.lock"

_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK, errno.EINVAL)
# How long to wait for a lock file that its last holder is removing.
_SECONDS = 0.05


class OutputBusyError(StorageError):
    """Another exporter holds the output directory."""


@contextmanager
def output_lock(output_dir: Path) -> Iterator[None]:
    """Holds `output_dir` for this exporter; the kernel lets go when the process ends, however it ends.

    Where the filesystem has no locks, a warning says so and nothing is held.

    Args:
        output_dir: is made if it is missing.

    Raises:
        OutputBusyError: another process, or another part of this one, is exporting there.
        StorageError: the directory or the lock file cannot be made.
    """
    path = output_dir / LOCK_NAME
    with os_errors("Locking", output_dir):
        output_dir.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        holder = _holder(path)
        if path.is_symlink():
            raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
        lock = _file_lock(path)
        locked = _acquire(lock, output_dir, holder)
        if locked:
            path.write_text(f"{os.getpid()} on {socket.gethostname()}\n", encoding="utf-8")
    try:
        yield
    finally:
        if locked:
            # Removed while it is still held: who opened it before sees that it has no name any more, and opens anew.
            with suppress(OSError):
                path.unlink()
            with suppress(OSError):
                lock.release()


def _file_lock(path: Path) -> FileLock:
    from filelock import FileLock  # 0.2 s, and only an export needs it

    # Release 4 would put a marker file in place of a lock, which a killed process leaves behind.
    known = inspect.signature(FileLock.__init__).parameters
    options: dict[str, Any] = {"fallback_to_soft": False} if "fallback_to_soft" in known else {}
    return FileLock(path, _SECONDS, FILE_MODE, thread_local=False, poll_interval=0.01, **options)


def _acquire(lock: FileLock, output_dir: Path, holder: str) -> bool:
    """Takes the lock; False where the filesystem has none."""
    from filelock import Timeout

    try:
        lock.acquire()
    except Timeout:
        raise OutputBusyError(
            f"Another export is running in {shown(output_dir)} (process {holder}).",
            why="Two at once could remove each other's files.",
            remedy="Wait for it, or choose another output directory.",
        ) from None
    except (OSError, NotImplementedError) as error:
        if isinstance(error, OSError) and error.errno not in _NO_LOCKS:
            raise
        logger.warning(
            "%s is on a filesystem without file locks: make sure that only one run exports there",
            shown(output_dir),
        )
        return False
    return True


def _holder(path: Path) -> str:
    """Returns who wrote the lock file; read before the attempt, since older releases of filelock empty the file."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")[:200].strip() or "unknown"
    except OSError:
        return "unknown"
