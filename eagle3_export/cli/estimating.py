"""The command `estimate`. Arguments and printing, nothing else."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from eagle3_export.cli.output import Json, answer, echo, echo_findings, interruptible, print_json, reporting
from eagle3_export.cli.progress import progress_bar
from eagle3_export.training.interrupts import cleaning_up_on_sigterm

if TYPE_CHECKING:
    from eagle3_export.estimate import Beginning, CheckpointEstimate, Progress

MaybePath = Optional[Path]  # noqa: UP045 (typer on Python 3.10 reads this form)
MaybeInt = Optional[int]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Adds the command to the application."""
    app.command()(estimate)


def estimate(
    checkpoint: Annotated[str, typer.Argument(help="A checkpoint directory, a link to one, or a cached hub id.")],
    data: Annotated[
        MaybePath,
        typer.Option("--data", help="What speculators trains on, its --data-path. Of the run's own data the "
                     "validation part is replayed, of others all. [default: the run's own]"),
    ] = None,
    export: Annotated[
        MaybePath,
        typer.Option("--export", help="The export to write the number into, or a pointer to it. [default: where the "
                     "run exports to]"),
    ] = None,
    num_steps: Annotated[
        MaybeInt,
        typer.Option("--num-steps", min=1, max=64, help="Compute chains of so many drafts too, e.g. 16. "
                     "[default: the trained depth]"),
    ] = None,
    limit: Annotated[MaybeInt, typer.Option("--limit", min=1, help="The first so many documents.")] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Replay a checkpoint on text: the acceptance length a server would report, written into the export's metadata."""
    lost = "the number is written at the end only"
    with reporting(as_json), interruptible(lost), cleaning_up_on_sigterm():
        from eagle3_export.cli.given import require_checkpoint
        from eagle3_export.estimate import estimate_checkpoint

        require_checkpoint(checkpoint)
        with progress_bar() as show:

            def progress(done: Progress) -> None:
                if show is not None:
                    show(done.documents, done.total, done.acceptance_length)

            found = estimate_checkpoint(
                checkpoint,
                data,
                export=export,
                num_steps=num_steps,
                limit=limit,
                begin=lambda beginning: _announce(beginning, checkpoint),
                progress=progress,
            )
        if as_json:
            print_json(found.as_dict())
        else:
            _print(found)


def _announce(beginning: Beginning, checkpoint: str) -> None:
    """What is walked and where the number goes, before the time is spent."""
    from eagle3_export.training.offline_data import row_range

    data = beginning.data
    first = f" (the first {data.limit})" if data.limit is not None else ""
    rows = row_range(data.first_row, data.documents + data.left_out)
    echo(
        f"replaying {_counted(data.documents, 'document')}{first} of {data.path}, {rows}: {beginning.why};"
        f" {_counted(beginning.num_steps, 'draft step')}, on {beginning.device}"
    )
    if data.left_out:
        echo(f"left out: {_counted(data.left_out, 'row')} without hidden states", color="yellow")
    if beginning.export is not None:
        _announce_replacement(beginning.export, beginning)
    else:
        echo(
            "no export of this checkpoint was found, so the number is only printed. To have it written:"
            f" eagle3-export convert {checkpoint} OUT, then estimate with --export OUT",
            color="yellow",
        )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def _announce_replacement(export: Path, beginning: Beginning) -> None:
    """Says which number will be gone: one that can be compared with those of the run's other exports."""
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.estimates.acceptance import estimate_origin, other_data

    known = read_metadata(export).acceptance
    if known.estimated_acceptance_length is None or other_data(known) or beginning.data.run_validation:
        return
    echo(
        f"this takes the place of {known.estimated_acceptance_length:.4f} from {estimate_origin(known)} in {export};"
        " compared are only exports with estimates from the same text",
        color="yellow",
    )


def _print(found: CheckpointEstimate) -> None:
    from eagle3_export.compatibility.text_rules import other_text
    from eagle3_export.estimates.acceptance import estimate_origin

    acceptance, replay = found.acceptance, found.acceptance.replay
    assert replay is not None
    answer(f"{acceptance.estimated_acceptance_length:.4f}")
    interval = acceptance.interval
    spread = "no interval" if interval is None else f"95 % interval {interval.low:.3f} to {interval.high:.3f}"
    echo(
        f"tokens per verify step, bonus token included, at {acceptance.num_steps} draft steps; {spread};"
        f" from {estimate_origin(acceptance)}"
    )
    deepest = replay.at(replay.computed_steps)
    if deepest is not None and deepest.num_steps > replay.num_steps:
        echo(f"{deepest.acceptance_length:.4f} at {deepest.num_steps} draft steps")
    if "deeper" in replay.reasons:
        echo(f"not computed deeper: {replay.reasons['deeper']}", color="yellow")
    finding = other_text(replay.first_choice_share)
    echo_findings([finding] if finding is not None else [])
    if found.export is not None:
        echo(f"written into {os.fspath(found.export)}")
