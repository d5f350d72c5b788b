"""Arguments and printing, nothing else. Answers go to stdout, all else to stderr.

Exit status: 0 done, 1 it found or met a problem, 2 wrong usage or configuration.
"""

from __future__ import annotations

import atexit
import gc
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Optional

import typer

from eagle3_export._version import __version__
from eagle3_export.cli import estimating, numbers
from eagle3_export.cli.output import (
    ConversionEcho,
    Json,
    answer,
    echo,
    echo_findings_briefly,
    make_streams_take_any_text,
    print_json,
    reporting,
)
from eagle3_export.cli.paths import PathGroup
from eagle3_export.sglang.capabilities import DEFAULT_SGLANG_VERSION
from eagle3_export.training.interrupts import cleaning_up_on_sigterm

if TYPE_CHECKING:
    from eagle3_export.config import ExportConfig
    from eagle3_export.convert import Conversion
    from eagle3_export.verify import VerifyReport

app = typer.Typer(
    cls=PathGroup,
    name="eagle3-export",
    help="Publishes EAGLE-3 drafts trained with speculators so that SGLang serves them as trained.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

SglangVersion = Annotated[
    Optional[str],  # noqa: UP045 (typer on Python 3.10 reads this form)
    typer.Option(
        "--sglang-version", help=f"The SGLang release that will serve. [default: {DEFAULT_SGLANG_VERSION}]"
    ),
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
    # Python looks through every object once more at its end, in vain, which takes a twentieth of a second.
    atexit.register(gc.freeze)
    make_streams_take_any_text()
    try:
        app()
    except OSError as error:  # stderr cannot be written either; click handles a closed pipe itself
        with suppress(OSError):
            sys.stderr.write(f"error: {error.strerror or error}.\n")
        sys.exit(1)


def _export_config(**given: Any) -> ExportConfig:
    """Makes an `ExportConfig` of flags; one that was not given (None) has the default of the config block."""
    from eagle3_export.config import validated

    values = {key: value for key, value in given.items() if value is not None}
    return validated(
        values, origin="command line", spelling=lambda key: "--" + key.replace("_", "-"), from_text=True
    )


@app.callback(invoke_without_command=True)
def root(
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Prints the version where that is all that is asked for."""
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
    with reporting(as_json), cleaning_up_on_sigterm():
        from eagle3_export.cli.given import require_checkpoint, require_run
        from eagle3_export.convert import convert_checkpoint, convert_run

        config = _export_config(sglang_version=sglang_version, runtime=runtime, embed_tokens=embed_tokens)
        if whole_run:
            require_run(checkpoint, f"eagle3-export convert {checkpoint} {out}")
            conversions = convert_run(checkpoint, out, config, overwrite=overwrite, report=ConversionEcho())
        else:
            require_checkpoint(checkpoint)
            conversions = [convert_checkpoint(checkpoint, out, config, overwrite=overwrite)]
            ConversionEcho()(conversions[0])
        if as_json:
            exports = [conversion.as_dict() for conversion in conversions]
            print_json({"exports": exports} if whole_run else exports[0])
        else:
            for conversion in conversions:
                if conversion.directory is not None:
                    answer(os.fspath(conversion.directory))
        if any(conversion.error is not None for conversion in conversions):
            raise typer.Exit(1)


@app.command()
def watch(
    save_path: Annotated[Path, typer.Argument(help="The save_path of a run that is training.")],
    out: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Argument(help="Where exports go. [default: <save_path>-sglang]"),
    ] = None,
    sglang_version: SglangVersion = None,
    runtime: RuntimeChoice = "auto",
    embed_tokens: EmbedTokens = "keep",
    keep_last: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--keep-last", min=1, help="Exports to keep; the newest and the best always stay."),
    ] = None,
    once: Annotated[bool, typer.Option("--once", help="Export what is complete now, then end.")] = False,
    stop_file: Annotated[
        Optional[Path],  # noqa: UP045
        typer.Option("--stop-file", help="End once this file exists, after a last look."),
    ] = None,
) -> None:
    """Export each checkpoint of a running training once it is complete; ends on Ctrl+C or SIGTERM."""
    with reporting(as_json=False):
        from eagle3_export.cli.given import watch_announcement
        from eagle3_export.watch import watch_run

        config = _export_config(
            output_dir=None if out is None else os.fspath(out),
            sglang_version=sglang_version,
            runtime=runtime,
            embed_tokens=embed_tokens,
            keep_last=keep_last,
        )
        echo(watch_announcement(save_path, config, once=once, stop_file=stop_file))
        echo_export = ConversionEcho()

        def report(conversion: Conversion) -> None:
            echo_export(conversion)
            if conversion.result is not None:
                answer(os.fspath(conversion.result.directory))

        if not watch_run(save_path, config, once=once, stop_file=stop_file, report=report):
            raise typer.Exit(1)


@app.command()
def verify(
    export: Annotated[Path, typer.Argument(help="An export, or a pointer to one such as latest.")],
    source: Annotated[
        Optional[str],  # noqa: UP045
        typer.Option("--source", help="The checkpoint it came from: compares every byte."),
    ] = None,
    numeric: Annotated[
        bool,
        typer.Option("--numeric", help="Run speculators' model and SGLang's class side by side (needs both, and "
                     "--source or the checkpoint where it was)."),
    ] = False,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Check an export again: names, shapes, dtypes, finite values, vocabulary map, config, metadata, bytes."""
    with reporting(as_json):
        from eagle3_export.verify import verify_export

        report = verify_export(export, source=source, numeric=numeric)
        if as_json:
            print_json(report.as_dict())
        else:
            _print_verification(export, report)
        if not report.ok:
            raise typer.Exit(1)


def _print_verification(export: Path, report: VerifyReport) -> None:
    echo_findings_briefly(report.findings, report.export)
    for check, problem in report.problems:
        echo(f"problem ({check}): {problem}", color="red")
    if report.numeric is not None and report.ok:
        echo(_numeric_summary(report.numeric))
    pointed_to = f" -> {report.export.name}" if export.is_symlink() else ""
    count = len(report.problems)
    verdict = "verified" if report.ok else f"{count} problem{'s' * (count != 1)}"
    answer(f"{export}{pointed_to}: {verdict}")


def _numeric_summary(numeric: Mapping[str, Any]) -> str:
    steps, error = len(numeric["per_step"]), numeric["max_relative_error"]
    return (
        f"numeric: {steps} draft steps of {numeric['served_class']}, this package's plugin active, differ from"
        f" speculators' model by {error:.1e} of the logits at most"
    )


@app.command()
def launch(
    export: Annotated[Path, typer.Argument(help="An export, or a pointer to one such as best.")],
    target: Annotated[str, typer.Option("--target", help="The model to serve: a path or a hub id.")],
    num_steps: Annotated[
        Optional[int],  # noqa: UP045
        typer.Option("--num-steps", min=1, max=64, help="Draft steps per verify step."),
    ] = None,
    cost_ratio: Annotated[
        Optional[float],  # noqa: UP045
        typer.Option("--cost-ratio", min=0.0, help="Time of one draft step / time of one step without a draft; "
                     "the depth K then maximises AL(K) / (1 + K * c)."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Print the `sglang.launch_server` command that serves a target with this draft, at the depth to deploy."""
    with reporting(as_json):
        from eagle3_export.launch import serving_command
        from eagle3_export.output_directory import locate_export

        directory = locate_export(export)
        command = serving_command(directory, target, num_steps=num_steps, cost_ratio=cost_ratio)
        if as_json:
            print_json(command.as_dict())
        else:
            echo_findings_briefly(command.findings, directory)
            echo(f"{command.num_steps} draft steps: {command.reason}")
            if command.warning is not None:
                echo(f"warning: {command.warning}", color="yellow")
            answer(command.shell)


estimating.register(app)
numbers.register(app)


if __name__ == "__main__":
    main()
