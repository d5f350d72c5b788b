"""What a finding is. Which findings there are, and their words, stand in the rules."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Literal

Level = Literal["info", "inexact", "incompatible"]


@dataclass(frozen=True, slots=True)
class Finding:
    """Something to know before serving a draft.

    Attributes:
        id: its name, explained in the README.
        level: "info": served as trained, given the remedy; "inexact": stock SGLang serves it slightly
            differently; "incompatible": not exported.
        cause: what was found and what it does.
        remedy: what to do about it.

    Example:
        >>> for finding in verify_export("output/sglang/latest").findings:
        ...     print(finding.level, finding.id)
        info verifier-unknown
    """

    id: str
    level: Level
    cause: str
    remedy: str

    def as_dict(self) -> dict[str, str]:
        """For `--json`."""
        return asdict(self)


def incompatible(findings: Iterable[Finding]) -> tuple[Finding, ...]:
    """Those that forbid an export."""
    return tuple(finding for finding in findings if finding.level == "incompatible")
