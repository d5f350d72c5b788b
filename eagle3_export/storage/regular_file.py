"""Opens and reads files of unknown origin: never a pipe or a device, never more than a limit."""

from __future__ import annotations

import errno
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from eagle3_export.errors import CheckpointError, Fault

_MOST_BYTES_OF_A_CONFIG = 64 * 2**20


def open_regular_file(path: Path) -> int:
    """Opens a regular file for reading and returns its descriptor.

    Raises:
        OSError: it cannot be opened, or is a directory, a pipe, a device or another thing that might never end.
    """
    # With O_NONBLOCK the open of a named pipe returns at once.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return descriptor
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
    raise OSError(errno.EINVAL, "it is not a regular file")


def read_regular_file(path: Path, most_bytes: int) -> bytes:
    """Returns the first `most_bytes` of a file, or all of a shorter one.

    Raises:
        OSError: as `open_regular_file`, or it cannot be read.
    """
    with os.fdopen(open_regular_file(path), "rb") as file:
        return file.read(most_bytes)


def read_json(path: Path, most_bytes: int) -> Any:
    """Reads a JSON file without NaN, infinity and halves of surrogate pairs, which could not be written again.

    Raises:
        OSError: as `read_regular_file`.
        ValueError: it has more than `most_bytes`, is no strict JSON, or is nested too deeply.
    """
    content = read_regular_file(path, most_bytes + 1)
    if len(content) > most_bytes:
        raise ValueError(f"it has more than {most_bytes} bytes")
    return _decoded(content, parse_constant=_refuse_constant)


def read_json_object(
    path: Path, *, most_bytes: int = _MOST_BYTES_OF_A_CONFIG, fault: Fault = CheckpointError
) -> dict[str, Any]:
    """Reads a JSON file that holds an object; numbers may be NaN and infinity, which trainers write.

    Args:
        path: the file.
        most_bytes: a larger file is refused.
        fault: the error to raise.

    Raises:
        CheckpointError: missing, unreadable, larger than `most_bytes`, or not a JSON object; `fault` may name
            another error.
    """
    try:
        content = read_regular_file(path, most_bytes + 1)
    except OSError as error:
        raise fault(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path and its permissions."
        ) from error
    if len(content) > most_bytes:
        raise fault(f"{path} is larger than {most_bytes} bytes.", why="No config of a draft is that large.")
    try:
        document = _decoded(content)
    except ValueError as error:
        raise fault(
            f"{path} is not valid JSON: {error}.",
            why="It may be truncated, or still being written.",
            remedy="Wait until the save has finished, or save the checkpoint again.",
        ) from error
    if not isinstance(document, dict):
        raise fault(
            f"{path} holds a JSON {type(document).__name__}, not an object.",
            remedy="Save the checkpoint again.",
        )
    return document


def _decoded(content: bytes, parse_constant: Callable[[str], Any] | None = None) -> Any:
    try:
        document = json.loads(content, parse_constant=parse_constant)
        if rb"\ud" in content.lower():
            json.dumps(document, ensure_ascii=False).encode()  # UnicodeEncodeError, a ValueError
        return document
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON number")


def is_regular_file(path: Path) -> bool:
    """Whether a regular file, or a link to one, is there and may be seen.

    `Path.is_file` raises in another user's private directory.
    """
    try:
        return path.is_file()
    except OSError:
        return False
