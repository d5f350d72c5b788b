"""Arguments and printing, nothing else. Answers go to stdout, all else to stderr.

Exit status: 0 done, 1 it found or met a problem, 2 wrong usage or configuration.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from eagle3_export import __version__
from eagle3_export.errors import Eagle3ExportError, IncompatibleDraftError, UsageError

if TYPE_CHECKING:
    from eagle3_export.convert import Conversion
    from eagle3_export.findings import Finding

app = typer.Typer(
    name="eagle3-export",
    help="Publishes EAGLE-3 drafts trained with speculators so that SGLang serves them as trained.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

Json = Annotated[bool, typer.Option("--json", help="Print the answer as JSON on stdout.")]
SglangVersion = Annotated[
    Optional[str],  # noqa: UP045 (typer on Python 3.10 reads this form)
    typer.Option("--sglang-version", help="The SGLang release that will serve. [default: 0.5.23]"),
]
RuntimeChoice = Annotated[
    Literal["auto", "stock", "exact"],
    typer.Option("--runtime", help="auto: stock SGLang where it loads the draft whole. stock: refuse what stock does "
                 "not compute exactly. exact: name the plugin's class wherever stock is inexact."),
]  # fmt: skip
EmbedTokens = Annotated[
    Literal["keep", "drop"],
    typer.Option("--embed-tokens", help="drop: leave the embedding out; SGLang uses the target's anyway."),
]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace exports that exist.")]


def main() -> None:
    """Entry point of the command `eagle3-export`."""
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):  # paths need not be UTF-8
            stream.reconfigure(errors="surrogateescape")
    app()


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    if version:
        typer.echo(f"eagle3-export {__version__}")
        raise typer.Exit


@app.command(
    context_settings={"allow_extra_args": True, "ignore_unknown_options": True, "help_option_names": []},
    add_help_option=False,
)
def train(context: typer.Context) -> None:
    """`speculators train` with every save exported: --config run.yaml and any flag of it, and --sglang-export.*"""
    from eagle3_export.train import main as train_main

    raise typer.Exit(train_main(context.args))


@app.command()
def convert(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint directory, a link to one, or a cached hub id; "
                                              "with --all the save_path of a run.")],
    out: Annotated[Path, typer.Argument(help="The directory the export becomes; with --all, where exports go.")],
    sglang_version: SglangVersion = None,
    runtime: RuntimeChoice = "auto",
    embed_tokens: EmbedTokens = "keep",
    overwrite: Overwrite = False,
    whole_run: Annotated[bool, typer.Option("--all", help="Every checkpoint of a run; those exported stay.")] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Export a checkpoint that exists, or with --all a whole run."""
    with _reporting(as_json):
        from eagle3_export.config import DEFAULT_SGLANG_VERSION, ExportConfig
        from eagle3_export.convert import convert_checkpoint, convert_run

        config = ExportConfig(
            sglang_version=sglang_version or DEFAULT_SGLANG_VERSION, runtime=runtime, embed_tokens=embed_tokens
        )
        if whole_run:
            conversions = convert_run(checkpoint, out, config, overwrite=overwrite, report=_echo_conversion)
        else:
            conversions = [convert_checkpoint(checkpoint, out, config, overwrite=overwrite)]
            _echo_conversion(conversions[0])
        if as_json:
            answer = [conversion.as_dict() for conversion in conversions]
            _print_json({"exports": answer} if whole_run else answer[0])
        else:
            for conversion in conversions:
                if conversion.directory is not None:
                    typer.echo(os.fspath(conversion.directory))
        if any(conversion.error is not None for conversion in conversions):
            raise typer.Exit(1)


@app.command()
def verify(
    export: Annotated[Path, typer.Argument(help="An export, or a pointer to one such as latest.")],
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--source", help="The checkpoint it came from: compares every byte."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check an export again: names, shapes, dtypes, finite values, vocabulary map, config, metadata, bytes."""
    with _reporting(as_json):
        from eagle3_export.verify import verify_export

        report = verify_export(export, source=source)
        if as_json:
            _print_json(report.as_dict())
        else:
            _echo_findings(report.findings)
            for check, problem in report.problems:
                _echo(f"problem ({check}): {problem}", color="red")
            count = len(report.problems)
            typer.echo(f"{export}: " + ("verified" if report.ok else f"{count} problem{'s' * (count != 1)}"))
        if not report.ok:
            raise typer.Exit(1)


@app.command()
def launch(
    export: Annotated[Path, typer.Argument(help="An export, or a pointer to one such as best.")],
    target: Annotated[str, typer.Option("--target", help="The model to serve: a path or a hub id.")],
    num_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--num-steps", min=1, max=64, help="Draft steps per verify step."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Print the `sglang.launch_server` command that serves a target with this draft."""
    with _reporting(as_json):
        from eagle3_export.launching import serving_command

        command = serving_command(export, target, num_steps=num_steps)
        _echo_findings(command.findings)
        if as_json:
            _print_json(command.as_dict())
        else:
            typer.echo(command.shell)


@contextmanager
def _reporting(as_json: bool) -> Iterator[None]:
    """Turns our own errors into a message and an exit status; nothing else is caught."""
    try:
        yield
    except Eagle3ExportError as error:
        if as_json:
            _print_json({"error": error_as_dict(error)})
        else:
            _echo_error(error)
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


def _print_json(answer: Mapping[str, Any]) -> None:
    typer.echo(json.dumps(answer, indent=2, allow_nan=False))


def _echo(message: str, *, color: str | None = None) -> None:
    typer.secho(message, err=True, fg=color)


def _echo_error(error: Eagle3ExportError) -> None:
    if isinstance(error, IncompatibleDraftError):
        _echo("error: this draft cannot be served as trained; nothing was written.", color="red")
        _echo_findings(error.findings)
        return
    _echo(f"error: {error.what}", color="red")
    for label, text in (("why", error.why), ("do", error.remedy)):
        if text:
            _echo(f"  {label}: {text}")


def _echo_findings(findings: Iterable[Finding]) -> None:
    colors = {"info": None, "inexact": "yellow", "incompatible": "red"}
    for finding in findings:
        _echo(f"{finding.level} [{finding.id}]: {finding.cause}", color=colors[finding.level])
        _echo(f"  do: {finding.remedy}")


def _echo_conversion(conversion: Conversion) -> None:
    if conversion.error is not None:
        _echo(f"{conversion.checkpoint}: not exported")
        _echo_error(conversion.error)
    elif conversion.result is None:
        _echo(f"{conversion.checkpoint}: {conversion.directory} exists, left as it is")
    else:
        _echo(f"{conversion.checkpoint}: exported to {conversion.directory}")
        _echo_findings(conversion.result.findings)


if __name__ == "__main__":
    main()
