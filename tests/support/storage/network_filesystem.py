"""A filesystem with the habits of network filesystems.

``python -m tests.support.storage.network_filesystem BACKING MOUNT FLAGS``:

- A rename takes time and is not atomic: what stood at the new name is gone for a moment.
- Every third answer to a rename below `out` gets lost; the repeated request finds nothing left to rename (ENOENT).
- Names and attributes are cached for a while, also those that were not there.
- No clones, no anonymous files, no `copy_file_range`; a deleted file that is open stays as a hidden file.
- FLAGS: rename flags (exchange, no replace) are ``refused`` with EINVAL, as NFS does, or silently ``ignored``, as some
  FUSE filesystems do.
"""

# One line per system call, under its own name.
# ruff: noqa: PTH101, PTH102, PTH104, PTH106, PTH108, PTH112, PTH114, PTH115, PTH118, PTH208, PTH211

from __future__ import annotations

import errno
import os
import sys
import time
from typing import Any

import mfusepy


class NetworkLike(mfusepy.Operations):
    """Passes everything on to a backing directory, with those habits."""

    use_ns = True

    def __init__(self, backing: str) -> None:
        self._backing = backing
        self._renames = 0

    def _at(self, path: str) -> str:
        return self._backing + path

    def rename(self, old: str, new: str) -> int:
        source, target = self._at(old), self._at(new)
        if os.path.lexists(target):
            (os.rmdir if os.path.isdir(target) and not os.path.islink(target) else os.unlink)(target)
        time.sleep(0.005)
        os.rename(source, target)
        self._renames += 1
        if self._renames % 3 == 0 and "/out/" in new:
            raise mfusepy.FuseOSError(errno.ENOENT)
        return 0

    def getattr(self, path: str, fh: int | None = None) -> dict[str, Any]:
        status = os.lstat(self._at(path))
        names = ("st_mode", "st_nlink", "st_size", "st_uid", "st_gid", "st_ino", "st_blocks")
        times = {f"st_{kind}time": getattr(status, f"st_{kind}time_ns") for kind in "acm"}
        return {**{name: getattr(status, name) for name in names}, **times}

    def readdir(self, path: str, fh: int) -> list[tuple[str, dict[str, int], int]]:
        names = [".", "..", *os.listdir(self._at(path))]
        found = {name: os.lstat(os.path.join(self._at(path), name)) for name in names}
        return [(name, {"st_mode": s.st_mode, "st_ino": s.st_ino}, 0) for name, s in found.items()]

    def create(self, path: str, mode: int, fi: Any = None) -> int:
        return os.open(self._at(path), os.O_RDWR | os.O_CREAT | os.O_EXCL, mode)

    def open(self, path: str, flags: int) -> int:
        return os.open(self._at(path), flags & (os.O_ACCMODE | os.O_TRUNC))

    def read(self, path: str, size: int, offset: int, fh: int) -> bytes:
        return os.pread(fh, size, offset)

    def write(self, path: str, data: bytes, offset: int, fh: int) -> int:
        return os.pwrite(fh, data, offset)

    def truncate(self, path: str, length: int, fh: int | None = None) -> int:
        os.truncate(self._at(path), length)
        return 0

    def fsync(self, path: str, datasync: int, fh: int) -> int:
        return 0

    def fsyncdir(self, path: str, datasync: int, fh: int) -> int:
        return 0

    def flush(self, path: str, fh: int) -> int:
        return 0

    def release(self, path: str, fh: int) -> int:
        os.close(fh)
        return 0

    def mkdir(self, path: str, mode: int) -> int:
        os.mkdir(self._at(path), mode)
        return 0

    def rmdir(self, path: str) -> int:
        os.rmdir(self._at(path))
        return 0

    def unlink(self, path: str) -> int:
        os.unlink(self._at(path))
        return 0

    def symlink(self, target: str, source: str) -> int:
        os.symlink(source, self._at(target))
        return 0

    def readlink(self, path: str) -> str:
        return os.readlink(self._at(path))

    def chmod(self, path: str, mode: int) -> int:
        os.chmod(self._at(path), mode)
        return 0

    def chown(self, path: str, uid: int, gid: int) -> int:
        return 0

    def utimens(self, path: str, times: Any = None) -> int:
        os.utime(self._at(path), ns=times, follow_symlinks=False)
        return 0

    def statfs(self, path: str) -> dict[str, int]:
        status = os.statvfs(self._backing)
        return {
            name: getattr(status, name) for name in ("f_bavail", "f_bfree", "f_blocks", "f_bsize", "f_frsize")
        }


def main() -> None:
    backing, mount, flags = sys.argv[1:]

    class Mounted(mfusepy.FUSE):
        def rename_fuse_3(self, old: bytes, new: bytes, rename_flags: int) -> int:
            if rename_flags and flags == "refused":
                raise mfusepy.FuseOSError(errno.EINVAL)
            return super().rename_fuse_3(old, new, 0)

    caches = {"attr_timeout": 0.3, "entry_timeout": 0.3, "negative_timeout": 0.3, "use_ino": True}
    Mounted(NetworkLike(backing), mount, foreground=True, nothreads=True, **caches)


if __name__ == "__main__":
    main()
