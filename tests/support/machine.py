"""What tests need of the machine and pip cannot bring. A test that finds it missing is skipped, with the reason."""

from __future__ import annotations

import os
import shutil

import pytest

# Program -> Debian's package.
PACKAGES = {
    "btrfs": "btrfs-progs",
    "chromium": "chromium",
    "ip": "iproute2",
    "mkfs.btrfs": "btrfs-progs",
    "mkfs.ext4": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
}
# Names under which other systems have the same program.
OTHER_NAMES = {"chromium": ("chromium-browser", "google-chrome")}


def program(name: str) -> str:
    """The path of a program; without it, the test is skipped."""
    for spelling in (name, *OTHER_NAMES.get(name, ())):
        if path := shutil.which(spelling):
            return path
    pytest.skip(f"{name} is not installed (Debian: {PACKAGES[name]})")


def require_root(purpose: str) -> None:
    """Skips the test for an ordinary user; `purpose` begins the reason, as in "mounting a filesystem"."""
    if os.geteuid() != 0:
        pytest.skip(f"{purpose} needs root")


def require_fuse() -> None:
    """Skips the test where FUSE is not installed."""
    try:
        # pip brings it, but its import loads the system's library.
        import mfusepy  # noqa: F401
    except ImportError:
        pytest.skip("the Python package mfusepy is not installed")
    except OSError as error:
        pytest.skip(f"{error}: the system's FUSE library is not installed (Debian: fuse3)")
    if not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("/dev/fuse is missing or closed to this user")
