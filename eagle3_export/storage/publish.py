"""Publication by rename: a reader sees all of a directory, file or pointer, or what was there before.

Names that begin with `.eagle3-export-` are ours. What a killed process leaves under them, `clean_leftovers` removes;
a process that lives holds a lock (flock) on its directories there.
"""

from __future__ import annotations

import errno
import fcntl
import logging
import os
import secrets
import shutil
import stat
import time
from contextlib import suppress
from pathlib import Path

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import DIRECTORY_MODE, FILE_MODE, os_errors, shown, storage_error

logger = logging.getLogger(__name__)

# Short and independent of the published name, which may already have the 255 bytes that a name can have.
_OURS = _STAGING, _REPLACED, _DISCARDED, _FILE, _POINTER = tuple(
    f".eagle3-export-{kind}-" for kind in ("staging", "replaced", "discarded", "file", "pointer")
)
# Descriptors of the directories that this process holds.
_held: dict[Path, int] = {}

_AT_FDCWD = -100
_RENAME_NOREPLACE, _RENAME_EXCHANGE = 1, 2
_NO_SUCH_RENAME = (errno.ENOSYS, errno.EINVAL, errno.EOPNOTSUPP, errno.ENOTTY)


def staging_directory(final: Path) -> Path:
    """Makes an empty directory beside `final`, on the same filesystem, to build its content in.

    `publish_directory` or `remove_staging` ends its life.

    Raises:
        StorageError: the parent directory cannot be made or written.
    """
    with os_errors("Creating a directory in", final.parent):
        final.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        return _make_aside(final.parent, _STAGING)


def remove_staging(staged: Path) -> None:
    """Removes a staging directory, if it is still there."""
    _remove_quietly(staged)
    _let_go(staged)


def publish_directory(staged: Path, final: Path, *, replace: bool) -> None:
    """Syncs `staged` to disk and moves it to `final` by one rename.

    Where `final` exists and `replace` is true, the two are exchanged, so that the name never vanishes
    (renameat2, Linux 3.15 and most local filesystems). Elsewhere the old one steps aside first;
    `clean_leftovers` puts it back if the process dies between the two renames. Readers keep the old files
    that they have open.

    Raises:
        StorageError: `final` exists and must not be replaced, or is no directory; or the filesystem
            refused. Then `final` is as it was and `staged` is still there.
    """
    with os_errors("Syncing", staged):
        _sync_tree(staged)
    with os_errors("Publishing", final):
        if replace and _is_directory(final):
            _exchange(staged, final)
        else:
            _rename_new(staged, final)
        sync_directory(final.parent)
    _let_go(staged)


def replace_file(path: Path, content: bytes) -> None:
    """Puts `content` at `path` by rename, synced; a symbolic link there is replaced, not followed.

    Raises:
        StorageError: the file cannot be written; the old one is then untouched.
    """
    aside = _aside(path.parent, _FILE)
    try:
        with os_errors("Writing", path, needed=len(content)):
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
            _rename(aside, path)
            sync_directory(path.parent)
    except BaseException:
        with suppress(OSError):
            aside.unlink()
        raise


def set_pointer(output_dir: Path, name: str, target: str) -> None:
    """Makes the symbolic link `name` in `output_dir` point to its sibling `target`, by rename.

    Raises:
        StorageError: something that is no symbolic link stands there, or the filesystem has no symbolic
            links.
    """
    link = output_dir / name
    if Path(target).name != target or target in ("", ".", ".."):
        raise StorageError(f"{shown(link)} may only point to a neighbour, not to {target!r}.")
    with os_errors("Pointing", link):
        if os.path.lexists(link) and not link.is_symlink():
            raise StorageError(
                f"{shown(link)} exists and is not a symbolic link.",
                why=f"It would have to be replaced to point to {target!r}.",
                remedy="Move it away.",
            )
        aside = _aside(output_dir, _POINTER)
        aside.symlink_to(target)
        try:
            _rename(aside, link)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
        sync_directory(output_dir)


def neighbour(directory: Path) -> Path:
    """`directory`, or what it points to if it is a pointer such as `latest`.

    Raises:
        StorageError: it is a symbolic link to anywhere but a neighbour, through which nothing is to be written.
    """
    with os_errors("Reading", directory):
        target = directory.resolve()
        if directory.is_symlink() and target.parent != directory.parent.resolve():
            raise StorageError(
                f"{shown(directory)} is a symbolic link out of its directory, to {shown(target)}.",
                why="Nothing is written through it.",
                remedy="Remove it.",
            )
    return target


def clean_leftovers(output_dir: Path) -> list[Path]:
    """Removes what a killed export left in `output_dir`, after putting back what it had moved aside.

    The work of processes that live is left alone, and so is what this user may not remove: a warning names that.

    Returns:
        the paths that were removed or put back.

    Raises:
        StorageError: the directory cannot be listed.
    """
    with os_errors("Cleaning", output_dir):
        if not output_dir.is_dir():
            return []
        children = sorted(output_dir.iterdir())
        leftovers = [child for child in children if child.name.startswith(_OURS)]
        for child in children:
            if child not in leftovers and (child / "metadata.json").is_file() and not child.is_symlink():
                leftovers += child.glob(f"{_FILE}*")
    return [path for path in leftovers if _clean(path)]


def _clean(path: Path) -> bool:
    try:
        if _in_use(path):
            return False
        if path.name.startswith(_REPLACED) and _is_directory(path):
            _put_back(path)
        _remove(path)
    except OSError as error:
        logger.warning("%s", storage_error(error, "Cleaning up", path))
        return False
    return True


def discard_directory(directory: Path) -> None:
    """Removes a published directory: first its name, so that nobody finds half of it, then its files."""
    aside = _aside(directory.parent, _DISCARDED)
    with os_errors("Removing", directory):
        _rename(directory, aside)
    _remove_quietly(aside)


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


def _make_aside(parent: Path, prefix: str) -> Path:
    """Makes a directory of ours and holds it, so that it is told from one whose process died."""
    directory = _aside(parent, prefix)
    directory.mkdir(DIRECTORY_MODE)
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    with suppress(OSError):  # a filesystem without locks
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    _held[directory] = descriptor
    return directory


def _let_go(directory: Path) -> None:
    descriptor = _held.pop(directory, None)
    if descriptor is not None:
        os.close(descriptor)


def _in_use(path: Path) -> bool:
    if not _is_directory(path):
        return False
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno == errno.EWOULDBLOCK
    finally:
        os.close(descriptor)
    return False


def _aside(directory: Path, prefix: str) -> Path:
    return directory / f"{prefix}{secrets.token_hex(6)}"


def _is_directory(path: Path) -> bool:
    try:
        return stat.S_ISDIR(path.lstat().st_mode)
    except FileNotFoundError:
        return False


def _sync_tree(directory: Path) -> None:
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


def _rename_new(staged: Path, final: Path) -> None:
    inode = staged.lstat().st_ino
    try:
        if not _renameat2(staged, final, _RENAME_NOREPLACE):
            if os.path.lexists(final):
                raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))
            staged.rename(final)
    except OSError as error:
        if error.errno == errno.ENOENT and _arrived(final, inode):
            return
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY, errno.ENOTDIR, errno.EISDIR):
            raise _in_the_way(final) from error
        raise


def _rename(source: Path, target: Path) -> None:
    """Renames, replacing `target` as rename(2) does."""
    inode = source.lstat().st_ino
    try:
        source.replace(target)
    except FileNotFoundError:
        if not _arrived(target, inode):
            raise


def _arrived(target: Path, inode: int) -> bool:
    """Whether a rename that answered ENOENT was done after all.

    A network filesystem whose answer got lost repeats the request and finds nothing to rename any more; and it may
    remember for a moment that there was nothing at `target`.
    """
    for pause in (0.0, 0.1, 0.4, 1.0, 2.0):
        time.sleep(pause)
        with suppress(OSError):
            if target.lstat().st_ino == inode:
                return True
        if not target.parent.is_dir():
            break
    return False


def _in_the_way(final: Path) -> StorageError:
    kind = "a symbolic link" if final.is_symlink() else "a directory" if final.is_dir() else "a file"
    return StorageError(
        f"{shown(final)} already exists and is {kind}.",
        why="An existing export is replaced only on request; anything else never.",
        remedy="Choose another name or allow overwriting." if kind == "a directory" else "Move it away.",
    )


def _exchange(staged: Path, final: Path) -> None:
    if _exchanged(staged, final):
        sync_directory(final.parent)
        _remove_quietly(staged)
        return
    aside = _make_aside(final.parent, _REPLACED)
    old = aside / final.name
    try:
        _rename(final, old)
        try:
            _rename_new(staged, final)
        except BaseException:
            _rename(old, final)
            raise
        sync_directory(final.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        with suppress(OSError):  # never with the old one still in it
            aside.rmdir()
        _let_go(aside)


def _exchanged(staged: Path, final: Path) -> bool:
    try:
        return _renameat2(staged, final, _RENAME_EXCHANGE)
    except OSError as error:
        # The answer of a FUSE filesystem that overlooks the flag and tries a plain rename.
        if error.errno in (errno.EEXIST, errno.ENOTEMPTY):
            return False
        raise


def _put_back(aside: Path) -> None:
    for old in aside.iterdir():
        home = aside.parent / old.name
        if not os.path.lexists(home):
            _rename(old, home)
            logger.warning("%s was put back: the process that was replacing it had died", shown(home))
    sync_directory(aside.parent)


def _remove(path: Path) -> None:
    if _is_directory(path):
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _remove_quietly(path: Path) -> None:
    # Deleted files that a reader has open stay in an NFS directory under a hidden name until they are closed.
    for pause in (0.1, 0.5, 0.0):
        try:
            _remove(path)
        except OSError as error:
            if pause and error.errno in (errno.ENOTEMPTY, errno.EEXIST, errno.EBUSY):
                time.sleep(pause)
                continue
            logger.warning("%s", storage_error(error, "Removing the replaced", path))
        return


def _renameat2(source: Path, target: Path, flags: int) -> bool:
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
