"""Replays a checkpoint that exists: what a server would accept of a text, without the server."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eagle3_export.config import ExportConfig, parse_export_block, read_export_block
from eagle3_export.documents.files import METADATA_FILE, is_export
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import Eagle3ExportError, EstimateError, UsageError
from eagle3_export.estimates.acceptance import MAX_NUM_STEPS, AcceptanceEstimate, estimate_acceptance
from eagle3_export.late_numbers import add_estimate
from eagle3_export.locate import locate_export
from eagle3_export.published import Stamp, stamp_of
from eagle3_export.run_identity import is_export_of, require_export_of
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.run_files import RUN_FILE, places_of, run_settings
from eagle3_export.storage.faults import expanded, os_errors, shown
from eagle3_export.training.interrupts import deferred_interrupts

if TYPE_CHECKING:
    from eagle3_export.estimates.replay import ReplayedData
    from eagle3_export.training.offline_data import OfflineData
    from eagle3_export.training.replay import Replayed, ValidationReplay


@dataclass(frozen=True)
class CheckpointEstimate:
    """What a replay of a checkpoint counted.

    Attributes:
        checkpoint: its real directory.
        export: the export whose metadata hold the number now; None where there is none.
        acceptance: as an export's metadata hold it.

    Example:
        ```python
        estimate = estimate_checkpoint("output/checkpoints/3")
        print(estimate.acceptance.estimated_acceptance_length, estimate.acceptance.interval)
        ```
    """

    checkpoint: Path
    export: Path | None
    acceptance: AcceptanceEstimate

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        from pydantic import TypeAdapter

        return {
            "checkpoint": shown(self.checkpoint),
            "directory": None if self.export is None else shown(self.export),
            "status": "estimated" if self.export is None else "written",
            "estimated_acceptance_length": self.acceptance.estimated_acceptance_length,
            "acceptance": TypeAdapter(AcceptanceEstimate).dump_python(self.acceptance, mode="json"),
        }


@dataclass(frozen=True)
class Beginning:
    """What is known before the draft runs.

    Attributes:
        data: what is walked.
        why: of the choice of data, in words.
        device: that the draft runs on, as torch calls it.
        num_steps: how many steps a chain has.
        export: where the number will go; None where there is no export of the checkpoint.
    """

    data: ReplayedData
    why: str
    device: str
    num_steps: int
    export: Path | None


@dataclass(frozen=True)
class Progress:
    """How far a replay has come.

    Attributes:
        documents: done.
        total: documents in all.
        acceptance_length: of those that are done, at the trained depth; None before the first verify step.
    """

    documents: int
    total: int
    acceptance_length: float | None


def estimate_checkpoint(
    checkpoint: str | os.PathLike[str],
    data: str | os.PathLike[str] | None = None,
    *,
    export: str | os.PathLike[str] | None = None,
    num_steps: int | None = None,
    limit: int | None = None,
    begin: Callable[[Beginning], None] = lambda beginning: None,
    progress: Callable[[Progress], None] = lambda progress: None,
) -> CheckpointEstimate:
    """Replays a checkpoint on text, and writes the number into its export's metadata.

    It is the replay that the callback makes of every validation, made afterwards: with speculators' own model and
    loader, on the accelerator that torch has, else on the CPU. Of the run's own data the validation part is walked,
    and then the number is the one that the callback would have written. Nothing is written before the end.

    Args:
        checkpoint: the directory of a speculators checkpoint, a link to one, or the id of one in the hub's cache.
        data: what speculators' trainer takes as --data-path; None for the run's own, from its run.yaml.
        export: the checkpoint's export, or a pointer to it; None looks where the run exports to. Without an export
            nothing is written.
        num_steps: chains of so many drafts are computed too, from 1 to 64; None for the trained depth alone.
        limit: how many documents are walked at most; None for all.
        begin: called once, before the draft runs.
        progress: called after each batch.

    Returns:
        the estimate, and where it was written.

    Raises:
        UsageError: no such data, no data named or recorded, a depth out of range, or speculators is not installed.
        CheckpointError: the checkpoint or its verifier is missing, malformed or cannot be loaded.
        EstimateError: the data do not fit the draft, hold no response, or the draft could not be run.
        ExportInvalidError: `export` is no export of this checkpoint as it is now.
        StorageError: a document could not be replaced.

    Example:
        ```python
        estimate = estimate_checkpoint("output/checkpoints/3", "data/chat", num_steps=16, limit=500)
        print(estimate.acceptance.estimated_acceptance_length, estimate.acceptance.replay.documents)
        ```
    """
    from eagle3_export.training.saved_draft import quiet, require_trainer

    _require_in_range(num_steps, limit)
    read = read_checkpoint(expanded(checkpoint))
    saved, target = _saved(read), export_of(read, export)
    require_trainer()

    def tell(data: ReplayedData, why: str, device: str, trained: int) -> None:
        begin(Beginning(data, why, device, trained, target))

    with quiet():
        rows, metrics, replayed = _replay(
            read,
            None if data is None else expanded(data),
            num_steps,
            limit,
            tell,
            progress,
        )
    if _saved(read) != saved:
        raise EstimateError(
            f"{shown(read.directory)} was saved again while it was replayed; nothing was written.",
            why="The number is of the earlier weights.",
            remedy="Run it again, best when the training has ended.",
        )
    return _written(read, target, rows, metrics, replayed)


def _replay(
    checkpoint: Checkpoint,
    data: Path | None,
    num_steps: int | None,
    limit: int | None,
    begin: Callable[[ReplayedData, str, str, int], None],
    progress: Callable[[Progress], None],
) -> tuple[OfflineData, dict[str, float], Replayed]:
    """Runs the draft over the text; the metrics are those of the trainer's own validation."""
    from eagle3_export.training import offline_data, saved_draft

    save_path, draft = checkpoint.directory.parent, checkpoint.draft
    recorded = run_settings(save_path)
    settings, device = saved_draft.trainers_settings(recorded), saved_draft.chosen_device()
    if device.type == "cpu":
        settings["hidden_states_dtype"] = "float32"  # few CPUs are fast at anything else
    chosen = offline_data.choose_data(data, save_path, recorded, settings)
    rows = offline_data.OfflineData(chosen, draft, settings, limit)
    trained = draft.ttt_steps or int(settings["ttt_steps"])
    begin(rows.record, chosen.why, str(device), trained)
    model = saved_draft.load_draft(checkpoint, device, settings)
    dense = saved_draft.attention_on(device) != saved_draft.FLEX
    loader = rows.loader(dense_masks=dense)
    validation = saved_draft.Validation(model, loader, device, settings, trained)
    return rows, *validation.run(_epoch(checkpoint), num_steps, _Teller(loader, trained, progress))


def _saved(checkpoint: Checkpoint) -> list[Stamp]:
    """What changes when the weights are saved again."""
    paths = sorted({source.file.path for source in checkpoint.tensors.values()})
    with os_errors("Reading", checkpoint.directory):
        return [stamp_of(path.stat()) for path in paths]


def _require_in_range(num_steps: int | None, limit: int | None) -> None:
    if num_steps is not None and not 1 <= num_steps <= MAX_NUM_STEPS:
        raise UsageError(f"{num_steps} is no draft depth.", remedy=f"Name one from 1 to {MAX_NUM_STEPS}.")
    if limit is not None and limit < 1:
        raise UsageError(f"A limit of {limit} leaves no documents.", remedy="Name 1 or more.")


def _epoch(checkpoint: Checkpoint) -> int:
    """The epoch whose validation this is: the trainer packs its text otherwise in each."""
    state = checkpoint.training_state
    return state.epoch if state is not None and state.epoch is not None else 0


class _Teller:
    """Tells after each batch how many documents are done, and how long their acceptance is."""

    def __init__(self, loader: Any, num_steps: int, progress: Callable[[Progress], None]) -> None:
        self._sampler, self._num_steps, self._progress = loader.batch_sampler, num_steps, progress
        self._batches = 0

    def __call__(self, replay: ValidationReplay) -> None:
        sizes = [len(batch) for batch in self._sampler]
        self._batches += 1
        counts = replay.so_far()
        depth = counts.depths.get(self._num_steps) if counts is not None else None
        length = depth.acceptance_length if depth is not None and depth.verify_steps else None
        self._progress(Progress(sum(sizes[: self._batches]), sum(sizes), length))


def _written(
    checkpoint: Checkpoint,
    export: Path | None,
    rows: OfflineData,
    metrics: Mapping[str, Any],
    replayed: Replayed,
) -> CheckpointEstimate:
    replay = replayed.record(rows.record)
    if replay is None:
        raise EstimateError(
            f"{shown(rows.chosen.path)} could not be replayed: {replayed.reason}",
            remedy="Name data whose loss_mask marks responses.",
        )
    if export is None:
        acceptance = estimate_acceptance(metrics, source="estimate", replay=replay)
    else:
        with deferred_interrupts(every=True):
            acceptance = add_estimate(
                export, read_checkpoint(checkpoint.directory), metrics, replay
            ).acceptance
    return CheckpointEstimate(checkpoint.directory, export, acceptance)


def export_of(checkpoint: Checkpoint, named: str | os.PathLike[str] | None) -> Path | None:
    """Returns the checkpoint's export, None where there is none.

    Args:
        checkpoint: as it was read just now.
        named: an export or a pointer to one; None looks where the run exports to.

    Raises:
        ExportInvalidError: what was named is no export of this checkpoint as it is now.
    """
    if named is not None:
        export = locate_export(expanded(named))
        require_export_of(read_metadata(export), export, checkpoint)
        return export
    for directory in _output_directories(checkpoint.directory.parent):
        export = directory / checkpoint.directory.name
        if is_export(export):
            with contextlib.suppress(Eagle3ExportError):
                if is_export_of(read_metadata(export / METADATA_FILE), export, checkpoint):
                    return export
    return None


def _output_directories(save_path: Path) -> list[Path]:
    """Where a run exports to: as its run.yaml says, or beside its save_path."""
    config = ExportConfig()
    with contextlib.suppress(Eagle3ExportError):
        if (save_path / RUN_FILE).is_file():
            block = read_export_block(save_path / RUN_FILE)
            config = parse_export_block(block) if isinstance(block, dict) else config
    found = [] if config.output_dir is None else places_of(os.fspath(expanded(config.output_dir)), save_path)
    with contextlib.suppress(Eagle3ExportError):
        found.append(ExportConfig().resolve_output_dir(save_path))
    return found
