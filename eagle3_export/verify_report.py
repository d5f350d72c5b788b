"""What a verification found, check by check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

from eagle3_export.compatibility.findings import Finding
from eagle3_export.errors import Eagle3ExportError, UsageError
from eagle3_export.storage.faults import os_errors

Found = TypeVar("Found")


@dataclass
class VerifyReport:
    """What a verification found.

    Attributes:
        export: the directory that was checked; where a pointer such as `latest` was given, the one it led to.
        checks: names of the checks that were asked for, in order.
        problems: (name of the check, what is wrong). A check that could not run has one too, "not checked: ...".
        findings: what the serving side should know, as at export.
        numeric: what the comparison with speculators' model gave, None where it did not run.
        digest: of the weights as they are now; None where they could not be read or are not finite.

    Example:
        >>> report = verify_export("output/sglang/latest")
        >>> "finite values" in report.checks, report.problems
        (True, [])
    """

    export: Path
    checks: list[str] = field(default_factory=list)
    problems: list[tuple[str, str]] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)
    numeric: dict[str, Any] | None = None
    digest: str | None = None

    @property
    def ok(self) -> bool:
        """Whether every check ran and found nothing wrong."""
        return not self.problems

    def as_dict(self) -> dict[str, Any]:
        """Returns the answer of `verify --json`."""
        return {
            "export": str(self.export),
            "ok": self.ok,
            "checks": self.checks,
            "problems": [{"check": check, "problem": problem} for check, problem in self.problems],
            "findings": [finding.as_dict() for finding in self.findings],
            "numeric": self.numeric,
            "digest": self.digest,
        }

    def run(self, check: str, action: Callable[[], Found]) -> Outcome[Found]:
        """Runs one check; an error of ours becomes a problem of the report.

        Args:
            check: its name; several actions may share one.
            action: does the check and returns what later checks need. It reads what earlier checks found from
                their `Outcome.value`, so that it is not run where they failed.
        """
        if check not in self.checks:
            self.checks.append(check)
        try:
            with os_errors("Reading", self.export):
                return Outcome(check, (action(),))
        except UsageError:
            raise
        except _NotCheckedError as missing:
            problem = (check, f"not checked: the check of {missing} failed.")
        except Eagle3ExportError as error:
            problem = (check, str(error))
        if problem not in self.problems:
            self.problems.append(problem)
        return Outcome(check)


class _NotCheckedError(Exception):
    """An earlier check, named, did not deliver what this one needs."""


@dataclass(frozen=True)
class Outcome(Generic[Found]):
    """What a check found.

    Attributes:
        check: its name.
        found: a tuple of one value, or an empty one where it failed.
    """

    check: str
    found: tuple[Found, ...] = ()

    @property
    def value(self) -> Found:
        """What it found, for the checks that need it; they are not run where it failed."""
        if not self.found:
            raise _NotCheckedError(self.check)
        return self.found[0]
