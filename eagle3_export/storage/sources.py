"""Holds source files open, so that a copy in the background is not disturbed when the trainer moves or removes them.

An open descriptor keeps the bytes through a later rename or unlink. It does not keep out a rewrite in place (as a
trainer with safetensors before 0.8 does it): that is detected, or made impossible by a private clone where the
filesystem has reflinks.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType

from eagle3_export.storage.faults import changed_error, os_errors, storage_error
from eagle3_export.storage.regular_file import open_regular_file
from eagle3_export.storage.safetensors_file import FileIdentity, SafetensorsFile, TensorSource

# linux/fs.h; the numbers are those of every architecture that generic ioctl encoding covers (x86, arm,
# riscv, s390).
FICLONE = 0x40049409
FICLONERANGE = 0x4020940D


class PinnedSources:
    """Open descriptors of source files. A context manager; `close` may be called twice.

    Attributes:
        isolated: every descriptor is a private clone, so nothing done to the source files can change its bytes.
    """

    def __init__(self, files: Sequence[SafetensorsFile], clone_beside: Path | None = None) -> None:
        """Opens the files.

        Args:
            files: the source files, as their headers were read.
            clone_beside: as for `open_sources`.

        Raises:
            StorageError: a file is gone, cannot be opened, or changed since its header was read.
        """
        self._descriptors: dict[Path, tuple[int, FileIdentity]] = {}
        self._identities: dict[Path, FileIdentity] = {}
        self.isolated = clone_beside is not None
        try:
            for file in files:
                self._pin(file, clone_beside)
        except BaseException:
            self.close()
            raise

    def descriptor(self, file: SafetensorsFile) -> int:
        """Returns the open descriptor of a pinned file."""
        return self._descriptors[file.path][0]

    def identity(self, file: SafetensorsFile) -> FileIdentity:
        """Returns what a pinned file was when it was opened."""
        return self._identities[file.path]

    def require_unchanged(self) -> None:
        """Checks that no pinned file was rewritten or truncated since its header was read.

        Raises:
            StorageError: one was, so what was copied or scanned meanwhile cannot be trusted.
        """
        for path, (descriptor, identity) in self._descriptors.items():
            with os_errors("Reading", path):
                now = FileIdentity.of(os.fstat(descriptor))
            if now != identity:
                raise changed_error(path)

    def close(self) -> None:
        """Closes the files."""
        while self._descriptors:
            os.close(self._descriptors.popitem()[1][0])

    def __enter__(self) -> PinnedSources:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _pin(self, file: SafetensorsFile, clone_beside: Path | None) -> None:
        if file.path in self._descriptors:
            return
        try:
            descriptor = open_regular_file(file.path)
            try:
                identity = FileIdentity.of(os.fstat(descriptor))
            except BaseException:
                os.close(descriptor)
                raise
        except OSError as error:
            raise storage_error(error, "Opening the source", file.path) from error
        self._descriptors[file.path] = (descriptor, identity)
        self._identities[file.path] = identity
        if identity != (file.identity or identity) or identity.size != file.size:
            raise changed_error(file.path)
        clone = _anonymous_clone(descriptor, clone_beside) if clone_beside is not None else None
        if clone is None:
            self.isolated = False
            return
        self._descriptors[file.path] = (clone, FileIdentity.of(os.fstat(clone)))
        changed = FileIdentity.of(os.fstat(descriptor)) != identity
        os.close(descriptor)
        if changed:
            raise changed_error(file.path)


def open_sources(
    tensors: Sequence[tuple[str, TensorSource]], *, clone_beside: Path | None = None
) -> PinnedSources:
    """Opens every file that `tensors` come from, in well under a millisecond a file.

    Args:
        tensors: as given to `write_safetensors`.
        clone_beside: a directory on the export's filesystem. Where that filesystem has reflinks and holds the
            sources too, the descriptors become private clones without a name, which vanish with the process.

    Returns:
        the opened files.

    Raises:
        StorageError: a file is gone, cannot be opened, or changed since its header was read.
    """
    return PinnedSources(
        list({source.file.path: source.file for _, source in tensors}.values()), clone_beside
    )


def _anonymous_clone(descriptor: int, directory: Path) -> int | None:
    if not hasattr(os, "O_TMPFILE"):
        return None
    try:
        while not directory.exists():
            directory = directory.parent
        clone = os.open(directory, os.O_TMPFILE | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError:
        return None
    try:
        fcntl.ioctl(clone, FICLONE, descriptor)
    except OSError:
        os.close(clone)
        return None
    return clone
