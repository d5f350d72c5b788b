"""Typed access to a decoded JSON document, with errors that name the file and the key."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError, Eagle3ExportError, ExportInvalidError
from eagle3_export.storage.regular_file import read_regular_file

_MOST = 2**40  # far above any real size; keeps products of sizes small integers
_MAX_DOCUMENT_BYTES = 64 * 2**20
_MISSING: Any = object()


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose files are read: decides which error a fault raises and what to do about it.

    Attributes:
        error: class of the error.
        remedy: what to do about any fault; empty where that depends on the fault.
    """

    error: type[Eagle3ExportError]
    remedy: str = ""

    def fault(self, what: str, *, why: str = "", remedy: str = "") -> Eagle3ExportError:
        """The error to raise; `remedy` counts where the origin has none of its own."""
        return self.error(what, why=why, remedy=self.remedy or remedy)


CHECKPOINT = Origin(CheckpointError)
EXPORT = Origin(ExportInvalidError, "Export the checkpoint again.")


def read_json_object(
    path: Path, *, most_bytes: int = _MAX_DOCUMENT_BYTES, origin: Origin = CHECKPOINT
) -> dict[str, Any]:
    """Reads a JSON file that holds an object.

    Args:
        path: the file.
        most_bytes: a larger file is refused.
        origin: whose file it is.

    Raises:
        CheckpointError: missing, unreadable, larger than `most_bytes`, or not a JSON object; `origin` may name
            another error.
    """
    try:
        content = read_regular_file(path, most_bytes + 1)
    except OSError as error:
        raise origin.fault(
            f"{path} cannot be read: {error.strerror or error}.", remedy="Check the path and its permissions."
        ) from error
    if len(content) > most_bytes:
        raise origin.fault(
            f"{path} is larger than {most_bytes} bytes.", why="No config of a draft is that large."
        )
    try:
        document = json.loads(content)
        if b"\\ud" in content.lower():  # half a surrogate pair can neither be printed nor written again
            json.dumps(document, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise origin.fault(
            f"{path} is not valid JSON: {error}.",
            why="It may be truncated, or still being written.",
            remedy="Wait until the save has finished, or save the checkpoint again.",
        ) from error
    if not isinstance(document, dict):
        raise origin.fault(
            f"{path} holds a JSON {type(document).__name__}, not an object.",
            remedy="Save the checkpoint again.",
        )
    return document


class Fields:
    """One JSON object, read key by key.

    Every getter raises the origin's error, naming the key, where the value is of the wrong type or out of range.

    Attributes:
        where: what messages call the object, usually the path of its file.
        origin: whose file it is.
    """

    def __init__(self, values: Mapping[str, Any], where: str, origin: Origin = CHECKPOINT) -> None:
        self._values = values
        self.where = where
        self.origin = origin

    def get(self, key: str) -> Any:
        """The value as it stands, None where the key is absent."""
        return self._values.get(key)

    def size(self, key: str, *, default: int = _MISSING, most: int = _MOST) -> int:
        """A positive integer."""
        value = self._values.get(key, default)
        if value is _MISSING:
            raise self._wrong(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            raise self._wrong(key, f"is {abridged(value)}, not an integer from 1 to {most}")
        return value

    def optional_size(self, key: str) -> int | None:
        """A positive integer; absent and null mean None."""
        return None if self._values.get(key) is None else self.size(key)

    def number(self, key: str, *, default: float = _MISSING) -> float:
        """A finite, positive number."""
        value = self._values.get(key, default)
        if value is _MISSING:
            raise self._wrong(key, "is missing")
        if isinstance(value, bool) or not isinstance(value, (int, float)):
            raise self._wrong(key, f"is {abridged(value)}, not a number")
        if not (abs(value) < _MOST and math.isfinite(value) and value > 0):
            raise self._wrong(key, f"is {abridged(value)}, not a positive number")
        return float(value)

    def flag(self, key: str) -> bool:
        """A boolean; absent and null mean False, as in every speculators release."""
        value = self._values.get(key)
        if value is None:
            return False
        if not isinstance(value, bool):
            raise self._wrong(key, f"is {abridged(value)}, not true or false")
        return value

    def text(self, key: str, *, default: str = _MISSING) -> str:
        """A string."""
        value = self._values.get(key, default)
        if value is _MISSING:
            raise self._wrong(key, "is missing")
        if not isinstance(value, str):
            raise self._wrong(key, f"is {abridged(value)}, not a string")
        return value

    def mapping(self, key: str, *, default: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        """An object; absent and null mean the default, where there is one."""
        value = self._values.get(key)
        if value is None and default is not None:
            return default
        if not isinstance(value, Mapping):
            raise self._wrong(
                key, f"is {abridged(value)}, not an object" if key in self._values else "is missing"
            )
        return value

    def optional_ids(self, key: str) -> tuple[int, ...] | None:
        """A list of layer ids; absent, null and the empty list mean None."""
        value = self._values.get(key)
        if value is None or value == []:
            return None
        if not isinstance(value, list) or len(value) > 4096:
            raise self._wrong(key, f"is {abridged(value)}, not a list of layer ids")
        for item in value:
            if isinstance(item, bool) or not isinstance(item, int) or not 0 <= item < 2**31:
                raise self._wrong(key, f"holds {abridged(item)}, which is no layer id")
        return tuple(value)

    def _wrong(self, key: str, problem: str) -> Eagle3ExportError:
        return self.origin.fault(
            f"{self.where}.{key} {problem}.",
            why="The draft cannot be described without it.",
            remedy="Save the checkpoint again, or correct its config.json.",
        )


def abridged(value: Any) -> str:
    """The value for messages, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
