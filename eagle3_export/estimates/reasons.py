"""Why a number is missing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def explained(
    values: Mapping[str, Any], because: Mapping[str, str | None], default: str = ""
) -> dict[str, str]:
    """Returns the reason of every value that is null, by the value's name.

    Args:
        values: by name; those that are not None need no reason.
        because: reasons by name, known values' too.
        default: the reason of what `because` does not name.
    """
    return {name: because.get(name) or default for name, value in values.items() if value is None}
