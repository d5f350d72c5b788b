"""The names on disk of an export and of a run's output directory, and what makes a directory an export of ours.

```text
output_dir/
  3/          model.safetensors  config.json  metadata.json  README.md  [.keep]
  latest -> 3    best -> 2    index.json
```
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from eagle3_export.storage.faults import os_errors
from eagle3_export.storage.leftovers import OURS, is_directory
from eagle3_export.storage.regular_file import is_regular_file, read_json

WEIGHTS_FILE = "model.safetensors"
CONFIG_FILE = "config.json"
METADATA_FILE = "metadata.json"
MODEL_CARD_FILE = "README.md"
# An export that holds this file is never pruned.
KEEP_MARKER = ".keep"

LATEST = "latest"
BEST = "best"
INDEX_FILE = "index.json"

# The section of an exported config.json that no other program writes.
CONFIG_SECTION = "eagle3_export"

_FILES = frozenset((WEIGHTS_FILE, CONFIG_FILE, METADATA_FILE, MODEL_CARD_FILE, KEEP_MARKER))
# What NFS and FUSE call a deleted file that somebody still has open.
_DELETED_BUT_OPEN = re.compile(r"\.nfs[0-9a-f]{16,}|\.fuse_hidden[0-9a-f]{16,}")
MAX_DOCUMENT_BYTES = 16 << 20


def is_export(directory: Path) -> bool:
    """Whether this is an export of ours: a real directory with weights, described by our metadata or config.

    Other programs write files of the same names too, so their content counts. It may hold other files besides; see
    `foreign_entries`.
    """
    try:
        return (
            is_directory(directory)
            and is_regular_file(directory / WEIGHTS_FILE)
            and (_is_our_metadata(directory / METADATA_FILE) or _is_our_config(directory / CONFIG_FILE))
        )
    except OSError:
        return False


def is_index(path: Path) -> bool:
    """Whether this is an index.json of ours, so that its directory is a run's output directory."""
    try:
        content = read_json(path, MAX_DOCUMENT_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and {"schema_version", "exports", "latest", "best"} <= content.keys()


def foreign_entries(directory: Path) -> list[str]:
    """The names in a directory that no export has: a user's files, or links and folders under the names of ours.

    Raises:
        StorageError: it cannot be listed.
    """
    with os_errors("Listing", directory):
        return sorted(child.name for child in directory.iterdir() if not _is_ours(child))


def _is_ours(child: Path) -> bool:
    if child.name not in _FILES and not child.name.startswith(OURS):
        return _DELETED_BUT_OPEN.fullmatch(child.name) is not None
    try:
        return stat.S_ISREG(child.lstat().st_mode)
    except FileNotFoundError:  # removed since it was listed
        return True


def _is_our_metadata(path: Path) -> bool:
    """The keys that every release has written; another tool's metadata.json lacks them."""
    try:
        content = read_json(path, MAX_DOCUMENT_BYTES)
    except (OSError, ValueError):
        return False
    keys = {"schema_version", "acceptance", "sglang", "source", "weights"}
    return isinstance(content, dict) and keys <= content.keys()


def _is_our_config(path: Path) -> bool:
    try:
        content = read_json(path, MAX_DOCUMENT_BYTES)
    except (OSError, ValueError):
        return False
    return isinstance(content, dict) and isinstance(content.get(CONFIG_SECTION), dict)
