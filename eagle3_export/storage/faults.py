"""Turns operating-system errors into `StorageError`: which file, why, and what would help."""

from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

from eagle3_export.errors import StorageError, UsageError

_REMEDIES = {
    errno.EROFS: "Choose an output directory on a filesystem that is mounted for writing.",
    errno.EACCES: "Give this user permission there, or choose another output directory.",
    errno.EPERM: "Give this user permission there, or choose another output directory.",
    errno.ENOENT: "Check that the directory still exists and that nothing else removes it.",
    errno.ENOTDIR: "A file stands where a directory is needed: move it away.",
    errno.ENAMETOOLONG: "Choose a shorter name.",
    errno.EXDEV: "Keep the whole output directory on one filesystem, without mounts inside it.",
    errno.EBUSY: "Something is mounted or in use there: unmount it or choose another output directory.",
    errno.EIO: "The device or the network filesystem reported a fault: check it before trusting its files.",
    errno.ESTALE: "The network filesystem lost the file: check the server and try again.",
    errno.EMFILE: "Raise the limit of open files (ulimit -n).",
    errno.ELOOP: "A symbolic link stands in the way and is not followed: remove it.",
}

DISK_FULL = (errno.ENOSPC, errno.EDQUOT)
# Seconds to wait between looks at a network filesystem that answers with what was true a moment ago.
PAUSES = (0.0, 0.1, 0.4, 1.0, 2.0)

_Answer = TypeVar("_Answer")

# Before the umask: groups may share exports, nobody else may write them.
FILE_MODE = 0o664
DIRECTORY_MODE = 0o775


def shown(path: str | os.PathLike[str]) -> str:
    """The path for messages, printable anywhere: bytes that are not UTF-8 are escaped."""
    return os.fsencode(path).decode("utf-8", "backslashreplace")


def resolved(path: str | os.PathLike[str]) -> Path:
    """The path without links; one that leads nowhere stays as it is, and using it says so.

    `Path.resolve` raises RuntimeError for a loop of links up to Python 3.12.
    """
    try:
        return Path(os.path.realpath(path))
    except OSError:  # the working directory was removed
        return Path(path)


def leads_to(link: Path) -> str:
    """Says of a symbolic link that leads nowhere where it leads, to be put after its name."""
    try:
        link.stat()
    except (OSError, RuntimeError) as error:
        if getattr(error, "errno", None) == errno.ELOOP or isinstance(error, RuntimeError):
            return "is a symbolic link that leads back to itself"
    return f"points to {shown(link.readlink())}, which is not there"


def expanded(path: str | os.PathLike[str]) -> Path:
    """Returns the path with a leading `~` or `~user` replaced by that home directory, where there is one."""
    return Path(os.path.expanduser(path))  # noqa: PTH111 (Path.expanduser raises where there is no home)


def lies_in(inner: Path, outer: Path) -> bool:
    """Whether `inner` is `outer` or lies in it, whatever links, bind mounts or spellings of case lead there."""
    real_inner, real_outer = resolved(inner), resolved(outer)
    if real_inner == real_outer or real_outer in real_inner.parents:
        return True
    try:
        target = real_outer.stat()
    except OSError:
        return False
    for ancestor in (real_inner, *real_inner.parents):
        with suppress(OSError):
            if os.path.samestat(ancestor.stat(), target):
                return True
    return False


def require_apart(output_dir: Path, save_path: Path, *, named: str, remedy: str) -> None:
    """Refuses an output directory that lies in the trainer's save_path, or the other way round.

    The trainer sweeps its save_path (speculators 0.9.0, `BaseCheckpointer.cleanup_keep_only_best`) and resumes from any
    directory there that has a number for a name; retention removes numbered exports.

    Args:
        output_dir: where exports go.
        save_path: where the trainer saves.
        named: what the message calls `output_dir`.
        remedy: what to do about it.

    Raises:
        UsageError: one lies in the other.
    """
    if lies_in(output_dir, save_path):
        raise UsageError(
            f"{named} lies in the trainer's save_path ({shown(save_path)}).",
            why="The trainer deletes what it does not know there and resumes from numbered directories.",
            remedy=remedy,
        )
    if lies_in(save_path, output_dir):
        raise UsageError(
            f"The trainer's save_path ({shown(save_path)}) lies in {named}.",
            why="Checkpoints and exports would lie among each other.",
            remedy=remedy,
        )


def human_bytes(count: int) -> str:
    """A byte count for messages, such as `4.6 GB` (decimal units)."""
    size = float(count)
    for unit in ("bytes", "kB", "MB", "GB"):
        if size < 1000:
            return f"{count} bytes" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} TB"


def free_bytes(path: Path) -> int | None:
    """Bytes that a user can still write on the filesystem of `path`; None where it cannot be told."""
    try:
        status = os.statvfs(path)
    except OSError:
        return None
    # Some FUSE filesystems fill in nothing.
    return status.f_bavail * status.f_frsize if status.f_blocks else None


def disk_full_error(doing: str, path: Path, needed: int | None, reason: str = "") -> StorageError:
    """The error for a full disk or an exhausted quota: how much was needed, how much is free."""
    free = free_bytes(path if path.is_dir() else path.parent)
    amounts = [
        f"{human_bytes(needed)} needed" if needed else "",
        f"{human_bytes(free)} free" if free is not None else "",
    ]
    numbers = ", ".join(filter(None, amounts))
    return StorageError(
        f"{doing} {shown(path)} failed: no space left" + (f" ({numbers})." if numbers else "."),
        why=reason or "The export was not published; what had been published before is untouched.",
        remedy="Free space there, set keep_last, or choose an output directory on another filesystem.",
    )


def changed_error(path: Path) -> StorageError:
    """The error for a source file that was rewritten while an export read it."""
    return StorageError(
        f"{shown(path)} was changed while it was being exported.",
        why="Its tensors may be of two different saves.",
        remedy="Export it again once the save has finished.",
    )


def storage_error(error: OSError, doing: str, path: Path, *, needed: int | None = None) -> StorageError:
    """The `StorageError` for `error`, met while `doing` something to `path`; `needed` is in bytes."""
    if error.errno in DISK_FULL:
        reason = (
            "The quota is exhausted; the export was not published." if error.errno == errno.EDQUOT else ""
        )
        return disk_full_error(doing, path, needed, reason)
    cause = error.strerror or str(error)
    return StorageError(f"{doing} {shown(path)} failed: {cause}.", remedy=_REMEDIES.get(error.errno or 0, ""))


@contextmanager
def os_errors(doing: str, path: Path, *, needed: int | None = None) -> Iterator[None]:
    """Raises every `OSError` of the block as `StorageError`."""
    try:
        yield
    except OSError as error:
        raise storage_error(error, doing, path, needed=needed) from error


def patiently(action: Callable[[], _Answer], until: Callable[[_Answer], bool]) -> _Answer:
    """Repeats `action` for a few seconds and returns its first answer that satisfies `until`, or else its last."""
    for pause in PAUSES:
        time.sleep(pause)
        answer = action()
        if until(answer):
            break
    return answer
