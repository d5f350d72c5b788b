"""Temporary files and directories, `.eagle3-export-*`: exports that are being built, and old ones being removed.

A live process holds an flock on its directories. What is not locked was left by a crash, and `clean_leftovers` removes
it. Temporary files and links cannot be told so: only the holder of the output directory's lock cleans.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from eagle3_export.storage.faults import DIRECTORY_MODE, os_errors, patiently, shown, storage_error
from eagle3_export.storage.rename import rename, sync_directory

logger = logging.getLogger(__name__)

# Short and independent of the published name, which may already have the 255 bytes that a name can have.
OURS = STAGING, REPLACED, DISCARDED, FILE, POINTER = tuple(
    f".eagle3-export-{kind}-" for kind in ("staging", "replaced", "discarded", "file", "pointer")
)
# Descriptors of the directories that this process holds.
_held: dict[Path, int] = {}


def clean_leftovers(output_dir: Path, exports: Iterable[Path] = ()) -> list[Path]:
    """Removes what a killed export left in `output_dir`, after putting back what it had moved aside.

    The caller holds the output directory's lock. The directories of processes that live are left alone, and so is
    what this user may not remove: a warning names that.

    Args:
        output_dir: may be missing.
        exports: directories below it in which documents are replaced too.

    Returns:
        the paths that were removed or put back.

    Raises:
        StorageError: a directory cannot be listed.
    """
    with os_errors("Cleaning", output_dir):
        if not output_dir.is_dir():
            return []
        leftovers = [child for child in sorted(output_dir.iterdir()) if child.name.startswith(OURS)]
        for export in exports:
            leftovers += sorted(child for child in export.iterdir() if child.name.startswith(FILE))
    return [path for path in leftovers if _clean(path)]


def _clean(path: Path) -> bool:
    try:
        if _in_use(path):
            return False
        if path.name.startswith(REPLACED) and is_directory(path):
            _put_back(path)
        _remove(path)
    except OSError as error:
        logger.warning("%s", storage_error(error, "Cleaning up", path))
        return False
    return True


def _put_back(aside: Path) -> None:
    for old in aside.iterdir():
        home = aside.parent / old.name
        if not os.path.lexists(home):
            rename(old, home)
            logger.warning("%s was put back: the process that was replacing it had died", shown(home))
    sync_directory(aside.parent)


def make_aside(parent: Path, prefix: str) -> Path:
    """Makes a directory of ours and holds it, so that it is told from one whose process died."""
    directory = new_name(parent, prefix)
    directory.mkdir(DIRECTORY_MODE)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with suppress(OSError):  # a filesystem without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held[directory] = descriptor
    return directory


def let_go(directory: Path) -> None:
    """Ends this process's hold on a directory from `make_aside`."""
    descriptor = _held.pop(directory, None)
    if descriptor is not None:
        os.close(descriptor)


def _in_use(path: Path) -> bool:
    if not is_directory(path):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def new_name(directory: Path, prefix: str) -> Path:
    """A name of ours in `directory` that nobody has yet."""
    return directory / f"{prefix}{secrets.token_hex(6)}"


def is_directory(path: Path) -> bool:
    """Whether `path` itself is a directory, not a link to one."""
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return False


def _remove(path: Path) -> None:
    if is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def remove_quietly(path: Path) -> None:
    """Removes a file or a tree; a warning says what could not be removed."""

    def attempt() -> OSError | None:
        try:
            _remove(path)
        except OSError as error:
            return error
        return None

    # Deleted files that a reader has open stay in an NFS directory under a hidden name until they are closed.
    held = (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY)
    error = patiently(attempt, until=lambda error: error is None or error.errno not in held)
    if error is not None:
        logger.warning("%s", storage_error(error, "Removing the replaced", path))
