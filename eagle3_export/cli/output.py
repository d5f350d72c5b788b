"""How answers, findings and errors are printed: answers to stdout, all else to stderr."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_export.errors import Eagle3ExportError, IncompatibleDraftError, UsageError

if TYPE_CHECKING:
    from eagle3_export.compatibility.findings import Finding
    from eagle3_export.convert import Conversion

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON on stdout.")]


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Turns our own errors into a message and an exit status; nothing else is caught."""
    try:
        yield
    except Eagle3ExportError as error:
        if as_json:
            print_json({"error": error_as_dict(error)})
        else:
            echo_error(error)
        raise typer.Exit(2 if isinstance(error, UsageError) else 1) from None


def error_as_dict(error: Eagle3ExportError) -> dict[str, Any]:
    """What, why and remedy, and the findings of a refusal."""
    content: dict[str, Any] = {
        "type": type(error).__name__,
        "what": error.what,
        "why": error.why,
        "remedy": error.remedy,
    }
    if isinstance(error, IncompatibleDraftError):
        content["findings"] = [finding.as_dict() for finding in error.findings]
    return content


def print_json(answer: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2, allow_nan=False))


def echo(message: str, *, color: str | None = None) -> None:
    typer.secho(message, err=True, fg=color)


def echo_error(error: Eagle3ExportError) -> None:
    if isinstance(error, IncompatibleDraftError):
        echo("error: this draft cannot be served as trained; nothing was written.", color="red")
        echo_findings(error.findings)
        return
    echo(f"error: {error.what}", color="red")
    for label, text in (("why", error.why), ("do", error.remedy)):
        if text:
            echo(f"  {label}: {text}")


def echo_findings(findings: Iterable[Finding]) -> None:
    colors = {"info": None, "inexact": "yellow", "incompatible": "red"}
    for finding in findings:
        echo(f"{finding.level} [{finding.id}]: {finding.cause}", color=colors[finding.level])
        echo(f"  do: {finding.remedy}")


class ConversionEcho:
    """Prints what became of one checkpoint after the other; findings already printed are named only."""

    def __init__(self) -> None:
        self._printed: set[Finding] = set()

    def __call__(self, conversion: Conversion) -> None:
        if conversion.error is not None:
            echo(f"{conversion.checkpoint}: not exported")
            echo_error(conversion.error)
        elif conversion.result is None:
            echo(f"{conversion.checkpoint}: {conversion.directory} exists, left as it is")
        else:
            echo(f"{conversion.checkpoint}: exported to {conversion.directory}")
            findings = conversion.result.findings
            echo_findings(found for found in findings if found not in self._printed)
            if again := [f"{found.level} [{found.id}]" for found in findings if found in self._printed]:
                echo(f"as above: {', '.join(again)}")
            self._printed.update(findings)
