"""Renames that network filesystems and odd ones answer oddly, and what makes them survive a power cut."""

from __future__ import annotations

import errno
import os
from contextlib import suppress
from pathlib import Path

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import patiently, shown

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NO_SUCH_RENAME = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


def rename(source: Path, target: Path) -> None:
    """Renames, replacing `target` as rename(2) does."""
    inode = source.lstat().st_ino
    try:
        source.replace(target)
    except FileNotFoundError:
        if not _arrived(target, inode):
            raise


def rename_new(staged: Path, final: Path) -> None:
    """Renames to a name that must be free.

    Raises:
        StorageError: it is not.
    """
    inode = staged.lstat().st_ino
    try:
        if not renameat2(staged, final, _RENAME_NOREPLACE):
            if os.path.lexists(final):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            staged.rename(final)
    except OSError as error:
        if error.errno == errno.ENOENT and _arrived(final, inode):
            return
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise _in_the_way(final) from error
        raise


def exchange(staged: Path, final: Path) -> bool:
    """Exchanges two names; False where the filesystem cannot."""
    try:
        return renameat2(staged, final, _RENAME_EXCHANGE)
    except OSError as error:
        # The answer of a FUSE filesystem that overlooks the flag and tries a plain rename.
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise


def sync_directory(directory: Path) -> None:
    """Makes the renames inside `directory` survive a power cut, where the filesystem can."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.EOPNOTSUPP, errno.ENOSYS):
            raise
    finally:
        os.close(descriptor)


def sync_tree(directory: Path) -> None:
    """Brings the files of a directory and the directories themselves to the disk."""
    for parent, directories, files in os.walk(directory, topdown=False):
        for name in files:
            descriptor = os.open(os.path.join(parent, name), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)  # noqa: PTH118
            try:
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        for name in directories:
            sync_directory(Path(parent, name))
    sync_directory(directory)


def _arrived(target: Path, inode: int) -> bool:
    """Whether a rename that answered ENOENT was done after all.

    A network filesystem whose answer got lost repeats the request and finds nothing to rename any more; and it may
    remember for a moment that there was nothing at `target`.
    """

    def look() -> bool | None:
        with suppress(OSError):
            if target.lstat().st_ino == inode:
                return True
        return False if target.parent.is_dir() else None

    return patiently(look, until=lambda seen: seen is not False) is True


def _in_the_way(final: Path) -> StorageError:
    kind = "a symbolic link" if final.is_symlink() else "a directory" if final.is_dir() else "a file"
    return StorageError(
        f"{shown(final)} already exists and is {kind}.",
        why="An existing export is replaced only on request; anything else never.",
        remedy="Choose another name or allow overwriting." if kind == "a directory" else "Move it away.",
    )


def renameat2(source: Path, target: Path, flags: int) -> bool:
    """Renames with flags; False where the C library, kernel or filesystem has no such call."""
    import ctypes  # costs a tenth of this package's start-up

    function = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if function is None:
        return False
    if function(_AT_FDCWD, os.fsencode(source), _AT_FDCWD, os.fsencode(target), ctypes.c_uint(flags)) == 0:
        return True
    number = ctypes.get_errno()
    if number in _NO_SUCH_RENAME:
        return False
    raise OSError(number, os.strerror(number), os.fsencode(source), None, os.fsencode(target))
