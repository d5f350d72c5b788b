"""Publication by rename: a reader sees all of a directory, file or pointer, or what was there before."""

from __future__ import annotations

import os
import shutil
from contextlib import suppress
from pathlib import Path

from eagle3_export.errors import StorageError
from eagle3_export.storage.faults import DIRECTORY_MODE, FILE_MODE, os_errors, shown
from eagle3_export.storage.leftovers import (
    DISCARDED,
    FILE,
    POINTER,
    REPLACED,
    STAGING,
    is_directory,
    let_go,
    make_aside,
    new_name,
    remove_quietly,
)
from eagle3_export.storage.rename import exchange, rename, rename_new, sync_directory, sync_tree


def staging_directory(final: Path) -> Path:
    """Makes an empty directory beside `final`, on the same filesystem, to build its content in.

    `publish_directory` or `remove_staging` ends its life.

    Raises:
        StorageError: the parent directory cannot be made or written.
    """
    with os_errors("Creating a directory in", final.parent):
        final.parent.mkdir(DIRECTORY_MODE, parents=True, exist_ok=True)
        return make_aside(final.parent, STAGING)


def remove_staging(staged: Path) -> None:
    """Removes a staging directory, if it is still there."""
    remove_quietly(staged)
    let_go(staged)


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
        sync_tree(staged)
    with os_errors("Publishing", final):
        if replace and is_directory(final):
            _replace(staged, final)
        else:
            rename_new(staged, final)
        sync_directory(final.parent)
    let_go(staged)


def replace_file(path: Path, content: bytes) -> os.stat_result:
    """Puts `content` at `path` by rename, synced; a symbolic link there is replaced, not followed.

    Returns:
        The status of the new file, as it was before others could see it.

    Raises:
        StorageError: the file cannot be written; the old one is then untouched.
    """
    aside = new_name(path.parent, FILE)
    try:
        with os_errors("Writing", path, needed=len(content)):
            descriptor = os.open(aside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, FILE_MODE)
            with os.fdopen(descriptor, "wb") as file:
                file.write(content)
                file.flush()
                os.fsync(file.fileno())
                written = os.fstat(file.fileno())
            rename(aside, path)
            sync_directory(path.parent)
            return written
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
        aside = new_name(output_dir, POINTER)
        aside.symlink_to(target)
        try:
            rename(aside, link)
        except BaseException:
            with suppress(OSError):
                aside.unlink()
            raise
        sync_directory(output_dir)


def discard_directory(directory: Path) -> None:
    """Removes a published directory: first its name, so that nobody finds half of it, then its files."""
    aside = new_name(directory.parent, DISCARDED)
    with os_errors("Removing", directory):
        rename(directory, aside)
    remove_quietly(aside)


def _replace(staged: Path, final: Path) -> None:
    if exchange(staged, final):
        sync_directory(final.parent)
        remove_quietly(staged)
        return
    aside = make_aside(final.parent, REPLACED)
    old = aside / final.name
    try:
        rename(final, old)
        try:
            rename_new(staged, final)
        except BaseException:
            rename(old, final)
            raise
        sync_directory(final.parent)
        shutil.rmtree(old, ignore_errors=True)
    finally:
        with suppress(OSError):  # never with the old one still in it
            aside.rmdir()
        let_go(aside)
