"""Removes old exports."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from eagle3_export.storage.faults import os_errors
from eagle3_export.storage.publish import discard_directory

KEEP_MARKER = ".keep"


def prune(output_dir: Path, *, keep_last: int, protected: Collection[str]) -> list[str]:
    """Removes all numbered exports in `output_dir` but the `keep_last` highest.

    Never removed: the highest number, the names in `protected`, the targets of symbolic links in
    `output_dir` (`latest`, `best`), directories that hold a file `.keep`, and whatever is not named by a
    number.

    Returns:
        the names removed, lowest first.

    Raises:
        StorageError: the directory cannot be listed, or an export cannot be removed.
    """
    with os_errors("Listing", output_dir):
        children = list(output_dir.iterdir())
        pointed_to = {child.readlink().name for child in children if child.is_symlink()}
        numbered = sorted(
            (
                child
                for child in children
                if _is_number(child.name) and child.is_dir() and not child.is_symlink()
            ),
            key=lambda child: int(child.name),
        )
    removed = []
    for child in numbered[: -max(keep_last, 1)]:
        if child.name in pointed_to or child.name in protected or (child / KEEP_MARKER).exists():
            continue
        discard_directory(child)
        removed.append(child.name)
    return removed


def _is_number(name: str) -> bool:
    return name.isascii() and name.isdigit()
