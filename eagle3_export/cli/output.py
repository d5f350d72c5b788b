"""How answers, findings and errors are printed: answers to stdout, all else to stderr."""

from __future__ import annotations

import codecs
import errno
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from eagle3_export.errors import Eagle3ExportError, IncompatibleDraftError, StorageError, UsageError

if TYPE_CHECKING:
    from rich.console import RenderableType

    from eagle3_export.compatibility.findings import Finding
    from eagle3_export.convert import Conversion

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON on stdout.")]

COLORS = {"info": None, "inexact": "yellow", "incompatible": "red"}


def make_streams_take_any_text() -> None:
    """Lets stdout and stderr print paths that are not UTF-8 and, in a terminal of few characters, all others too."""
    codecs.register_error("eagle3_export", _as_bytes_or_escaped)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="eagle3_export")


def _as_bytes_or_escaped(error: UnicodeError) -> tuple[str | bytes, int]:
    try:
        return codecs.lookup_error("surrogateescape")(error)
    except UnicodeError:
        return codecs.lookup_error("backslashreplace")(error)


@contextmanager
def reporting(as_json: bool) -> Iterator[None]:
    """Turns our own errors, and those of the operating system, into a message and an exit status."""
    try:
        yield
    except Eagle3ExportError as error:
        _end_with(error, as_json)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # click ends the command quietly
        from eagle3_export.storage.faults import storage_error

        name = error.filename if isinstance(error.filename, str | bytes) else "a file"
        _end_with(storage_error(error, "Reading or writing", Path(os.fsdecode(name))), as_json)


def _end_with(error: Eagle3ExportError, as_json: bool) -> None:
    if as_json:
        with suppress(StorageError):  # stdout may be what failed
            print_json({"error": error.as_dict()})
            raise typer.Exit(_status(error)) from None
    echo_error(error)
    raise typer.Exit(_status(error)) from None


@contextmanager
def interruptible(lost: str) -> Iterator[None]:
    """Ends the command with status 130 on Ctrl+C.

    Args:
        lost: what that costs, for the message.
    """
    try:
        yield
    except KeyboardInterrupt:
        echo(f"\ninterrupted: {lost}; nothing is half-written.")
        raise typer.Exit(130) from None


def _status(error: Eagle3ExportError) -> int:
    return 2 if isinstance(error, UsageError) else 1


def answer(text: str, *, newline: bool = True) -> None:
    """Prints an answer on stdout.

    Raises:
        StorageError: it could not be written.
    """
    try:
        typer.echo(text, nl=newline)
    except OSError as error:
        if error.errno == errno.EPIPE:
            raise  # click ends the command quietly
        raise StorageError(f"The answer could not be written: {error.strerror or error}.") from error


def answer_drawn(drawing: RenderableType) -> None:
    """Prints an answer that rich draws, as wide as the terminal.

    Raises:
        StorageError: it could not be written.
    """
    from rich.console import Console

    console = Console()
    with console.capture() as capture:
        console.print(drawing, crop=False)  # a command is one line, to be copied
    answer(capture.get(), newline=False)


def print_json(content: Mapping[str, Any]) -> None:
    """Prints an answer as JSON on stdout."""
    answer(json.dumps(content, indent=2, allow_nan=False))


def echo(message: str, *, color: str | None = None) -> None:
    """Prints a line on stderr, in color if that is a terminal."""
    typer.secho(message, err=True, fg=color)


def echo_error(error: Eagle3ExportError) -> None:
    """Prints what happened, why it matters and what to do, on stderr."""
    if isinstance(error, IncompatibleDraftError):
        echo("error: this draft cannot be served as trained; nothing was written.", color="red")
        echo_findings(error.findings)
        return
    echo(f"error: {error.what}", color="red")
    for label, text in (("why", error.why), ("do", error.remedy)):
        if text:
            echo(f"  {label}: {text}")


def echo_findings(findings: Iterable[Finding]) -> None:
    """Prints findings with cause and remedy, as where an export is made."""
    for finding in findings:
        echo(f"{finding.level} [{finding.id}]: {finding.cause}", color=COLORS[finding.level])
        echo(f"  do: {finding.remedy}")


def echo_findings_briefly(findings: Sequence[Finding], export: Path) -> None:
    """Prints one line for each finding that stands in the export's model card, and the others in full.

    Args:
        findings: what to print.
        export: the directory of the export that they are about.
    """
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.storage.faults import shown

    with suppress(Eagle3ExportError):  # verify reports unreadable metadata itself
        recorded = {found.id for found in read_metadata(export).sglang.findings}
        known = [found for found in findings if found.id in recorded]
        for found in known:
            echo(f"{found.level} [{found.id}]: {first_sentence(found.cause)}", color=COLORS[found.level])
        if known:
            echo(f"  in full, with what to do: {shown(export / 'README.md')}")
        echo_findings(found for found in findings if found not in known)
        return
    echo_findings(findings)


def first_sentence(text: str) -> str:
    """Returns a text up to its first full stop before a new sentence."""
    return re.split(r"(?<=[.!?])\s+(?=[A-Z])", text, maxsplit=1)[0]


class ConversionEcho:
    """Prints what became of one checkpoint after the other; findings already printed are named only."""

    def __init__(self) -> None:
        self._printed: set[tuple[str, str]] = set()

    def __call__(self, conversion: Conversion) -> None:
        if conversion.error is not None:
            echo(f"{conversion.checkpoint}: not exported")
            echo_error(conversion.error)
        elif conversion.result is None:
            echo(f"{conversion.checkpoint}: {conversion.directory} exists, left as it is")
        else:
            echo(f"{conversion.checkpoint}: exported to {conversion.directory}")
            self._echo_new(conversion.result.findings)
        if conversion.directory is not None:
            _echo_missing_estimate(conversion.directory)

    def _echo_new(self, findings: Iterable[Finding]) -> None:
        """By level and id: the causes of two checkpoints may differ in a path only."""
        named = list(findings)
        echo_findings(found for found in named if (found.level, found.id) not in self._printed)
        again = [(found.level, found.id) for found in named if (found.level, found.id) in self._printed]
        if again:
            echo(f"as above: {', '.join(f'{level} [{name}]' for level, name in dict.fromkeys(again))}")
        self._printed.update((found.level, found.id) for found in named)


def _echo_missing_estimate(directory: Path) -> None:
    """Says why an export has no estimated acceptance length, and so can never be the best."""
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.report.missing import estimate_command

    with suppress(Eagle3ExportError, OSError):  # one left as it is may be damaged; verify says so
        metadata = read_metadata(directory)
        if metadata.estimated_acceptance_length is None:
            echo(f"  no estimate: {metadata.reasons['estimated_acceptance_length']}")
            echo(f"  to get one: {estimate_command(metadata, directory)}")
