"""Whether a server runs the export that is to be measured, and how that is known.

A digest that the server names decides, whatever the paths are. Without one the paths must be equal, and the server no
older than what lies there; or the user says as what the server sees the draft, and that is recorded as the user's word.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Literal

from eagle3_export.documents.files import WEIGHTS_FILE
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import Eagle3ExportError, MeasurementError
from eagle3_export.measure.facts import ServerFacts
from eagle3_export.storage.digest import named_digest
from eagle3_export.storage.finite import digest_of_file

_CLOCK_SECONDS = 2.0  # start times are known to the second only
_WHY = "A number counts as measured only for the export that was served."


@dataclass(frozen=True, slots=True)
class Identity:
    """How it is known that a server runs an export.

    Attributes:
        by: `digest`, `path` or `user`.
        draft: the draft as the server names it; where it does not, as the user does.
    """

    by: Literal["digest", "path", "user"]
    draft: str | None


def require_speculation(facts: ServerFacts) -> int:
    """Returns the draft depth of a server.

    Raises:
        MeasurementError: it does not speculate, or not with EAGLE-3.
    """
    remedy = "Start it with the command that `eagle3-export launch` prints."
    if facts.algorithm is None or not facts.num_steps:
        raise MeasurementError(
            "The server runs without speculation.", why="There is nothing to measure.", remedy=remedy
        )
    if "EAGLE3" not in facts.algorithm.upper():
        raise MeasurementError(
            f"The server speculates with {facts.algorithm}, not with EAGLE3.", remedy=remedy
        )
    return facts.num_steps


def identify(
    facts: ServerFacts, export: Path, metadata: ExportMetadata, served_as: str | None = None
) -> Identity:
    """Returns how it is known that a server runs this export.

    Args:
        facts: of the server.
        export: the export's own directory, no pointer to it.
        metadata: of the export.
        served_as: the path or hub id under which the server sees it, where that is another one: the user's word.

    Raises:
        MeasurementError: the server runs another draft, one that cannot be told, or what lay at that path before.
    """
    running = named_digest(facts.weight_version)
    if running is not None:
        own = metadata.weights.digest or _digest(export)
        if running != own:
            raise MeasurementError(
                f"The server runs the weights {running}, as its weight_version says; {export} has {own}.",
                why=_WHY,
                remedy="Measure the export that it runs, or start a server with this one.",
            )
        return Identity("digest", facts.draft)
    if served_as is not None:
        if facts.draft is not None and facts.draft.rstrip("/") != served_as.rstrip("/"):
            raise MeasurementError(
                f"The server runs the draft {facts.draft}, not {served_as}.",
                why=_WHY,
                remedy="Give --served-as as the server names the draft, if that is this export.",
            )
        return Identity("user", facts.draft or served_as)
    _require_path(facts, export)
    if facts.updated:
        raise MeasurementError(
            f"The server's weights were updated since it started: its weight_version is {facts.weight_version}.",
            why="Its draft may no longer be the one at the path that it was started with.",
            remedy="Give the update this export's digest (weights.digest in metadata.json) as its weight_version, or"
            " vouch for it with --served-as and the path that the server names.",
        )
    _require_started_later(facts, export, metadata)
    return Identity("path", facts.draft)


def _digest(export: Path) -> str | None:
    """Of an export whose metadata has none: one of an older release."""
    try:
        return digest_of_file(export / WEIGHTS_FILE)
    except Eagle3ExportError as error:
        raise MeasurementError(f"The weights of {export} cannot be read: {error.what}") from error


def _require_path(facts: ServerFacts, export: Path) -> None:
    if facts.draft is None:
        raise MeasurementError(
            "The server does not say which draft it runs.",
            why=_WHY,
            remedy="Start vLLM with VLLM_SERVER_DEV_MODE=1, so that /server_info answers."
            if facts.kind == "vllm"
            else "",
        )
    served = Path(facts.draft)
    if _is_pointer(served):
        raise MeasurementError(
            f"The server was started with {served}, a pointer that may have moved since.",
            remedy=f"Start it with the directory itself: {export.resolve()}.",
        )
    if "\0" in facts.draft or served.resolve() != export.resolve():
        raise MeasurementError(
            f"The server runs the draft {served}, not {export.resolve()}.",
            why=_WHY,
            remedy="Measure that export, or start a server with this one. If it is this one under another path, as in"
            f" a container or on the hub, say so: --served-as {served}; or start it with --weight-version and the"
            " export's digest (weights.digest in metadata.json).",
        )


def _require_started_later(facts: ServerFacts, export: Path, metadata: ExportMetadata) -> None:
    if facts.started_at is None:
        return
    published = _published_at(export, metadata)
    if published is not None and facts.started_at + _CLOCK_SECONDS < published:
        started, since = (_utc(seconds) for seconds in (facts.started_at, published))
        raise MeasurementError(
            f"The server was started at {started}, before what lies at {export} was published ({since}).",
            why="It still runs what lay there before.",
            remedy="Start it again.",
        )


def _published_at(export: Path, metadata: ExportMetadata) -> float | None:
    """When the weights came to where they are, in seconds since 1970: made there, or copied there later."""
    times = []
    with contextlib.suppress(ValueError):
        times.append(datetime.fromisoformat(metadata.created_at).timestamp())
    with contextlib.suppress(OSError):
        times.append((export / WEIGHTS_FILE).stat().st_ctime)
    return max(times, default=None)


def _utc(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def _is_pointer(path: Path) -> bool:
    try:
        return path.is_symlink()
    except (OSError, ValueError):  # such as a name that is too long for a file
        return False
