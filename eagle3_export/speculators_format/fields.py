"""Typed access to a decoded JSON document, with errors that name the file and the key."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import CheckpointError, Eagle3ExportError, Fault

_MOST = 2**40  # far above any real size; keeps products of sizes small integers
_MISSING: Any = object()


class Fields:
    """One JSON object, read key by key.

    Every getter raises `fault`, naming the key, where the value is of the wrong type or out of range.

    Attributes:
        where: what messages call the object, usually the path of its file.
        fault: the error to raise.
    """

    def __init__(self, values: Mapping[str, Any], where: str, fault: Fault = CheckpointError) -> None:
        self._values = values
        self.where = where
        self.fault = fault

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
        return self.fault(
            f"{self.where}.{key} {problem}.",
            why="The draft cannot be described without it.",
            remedy="Save the checkpoint again, or correct its config.json.",
        )


def abridged(value: Any) -> str:
    """The value for messages, cut where it is long."""
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
