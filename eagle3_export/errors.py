"""The only errors this package raises on purpose. Each says what happened, why it matters and what to do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_export.compatibility.findings import Finding


class Eagle3ExportError(Exception):
    """Base of every error that a user can meet.

    Attributes:
        what: what was found, naming the file, key or tensor.
        why: why it matters; may be empty.
        remedy: what to do about it; may be empty.

    Example:
        >>> try:
        ...     verify_export("nowhere")
        ... except Eagle3ExportError as error:
        ...     print(error.what)
        There is no nowhere.
    """

    def __init__(self, what: str, *, why: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.what = what
        self.why = why
        self.remedy = remedy

    def __str__(self) -> str:
        return " ".join(part for part in (self.what, self.why, self.remedy) if part)

    def as_dict(self) -> dict[str, Any]:
        """Returns the error as every `--json` answer shows it."""
        return {
            "type": type(self).__name__,
            "what": self.what,
            "why": self.why,
            "remedy": self.remedy,
            "findings": [],
        }


class UsageError(Eagle3ExportError):
    """The arguments or the configuration are wrong; exit status 2."""


class CheckpointError(Eagle3ExportError):
    """The source checkpoint is missing, malformed or contradicts itself."""


class StorageError(Eagle3ExportError):
    """Bytes could not be read, written or published."""


class ExportInvalidError(Eagle3ExportError):
    """An export does not hold what it claims."""


# What a reader of files that are a checkpoint's or an export's raises: the error's class, or a function like it.
Fault = Callable[..., Eagle3ExportError]


def invalid_export(what: str, *, why: str = "", remedy: str = "") -> ExportInvalidError:
    """Returns the error for an export's own files, with its one remedy, whatever would mend a checkpoint's."""
    return ExportInvalidError(what, why=why, remedy="Export the checkpoint again.")


class IncompatibleDraftError(Eagle3ExportError):
    """The draft cannot be served as trained by the chosen SGLang release and runtime.

    Attributes:
        findings: the findings that stand in the way, at least one.
    """

    def __init__(self, findings: Sequence[Finding]) -> None:
        self.findings = tuple(findings)
        super().__init__(
            "; ".join(f"[{finding.id}] {finding.cause}" for finding in self.findings),
            remedy=" ".join(dict.fromkeys(finding.remedy for finding in self.findings)),
        )

    def as_dict(self) -> dict[str, Any]:
        """Returns the error as every `--json` answer shows it, with its findings."""
        return {**super().as_dict(), "findings": [finding.as_dict() for finding in self.findings]}


class EstimateError(Eagle3ExportError):
    """A checkpoint could not be replayed, or the data are no text for it."""


class MeasurementError(Eagle3ExportError):
    """A server could not be measured, or what it said is no measurement of this export."""
