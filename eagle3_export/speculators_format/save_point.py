"""Which save of a run a checkpoint is, and which validation belongs to it, read from its own files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.documents.schema import CheckpointKind
from eagle3_export.speculators_format.checkpoint import Checkpoint
from eagle3_export.speculators_format.run_files import INTERRUPTED, VAL_METRICS_FILE, epoch_of

NOT_WRITTEN = (
    "The checkpoint has no val_metrics.json: the trainer writes it only for an epoch that becomes the best."
    " `eagle3-export estimate` validates it afterwards."
)
OLDER_THAN_WEIGHTS = "val_metrics.json is older than the weights: it belongs to an earlier save."
MID_EPOCH = "Saved in the middle of an epoch: the trainer validates at its end."
INTERRUPTED_RUN = "Saved when the run was interrupted: this state was not validated."


@dataclass(frozen=True, slots=True)
class SavePoint:
    """One save of the trainer.

    Attributes:
        epoch: counted from 0, None where the checkpoint does not say.
        local_step: batches done in an unfinished epoch, 0 at its end.
        global_step: optimizer steps since the run began.
    """

    kind: CheckpointKind
    epoch: int | None
    local_step: int | None
    global_step: int | None


def save_point(checkpoint: Checkpoint) -> SavePoint:
    """Reads it from `training_state.json` and the directory's name.

    With `--save-best` the trainer writes no `training_state.json` (speculators 0.9.0,
    `Trainer.maybe_update_best`): then the epoch is the directory's name.
    """
    name, state = checkpoint.directory.name, checkpoint.training_state
    if name == INTERRUPTED:
        return SavePoint("interrupted", None, None, None)
    if state is not None:
        kind: CheckpointKind = "mid_epoch" if state.local_step else "end_of_epoch"
        return SavePoint(kind, state.epoch, state.local_step, state.global_step)
    return SavePoint("best" if checkpoint.val_metrics else "unknown", epoch_of(name), None, None)


def validation_metrics(checkpoint: Checkpoint) -> tuple[Mapping[str, Any] | None, str | None]:
    """The metrics of exactly these weights, or None and why.

    A run that starts afresh in an old `save_path` overwrites the weights and leaves the old metrics beside
    them; those are never used.
    """
    point = save_point(checkpoint)
    if point.kind == "interrupted":
        return None, INTERRUPTED_RUN
    if point.kind == "mid_epoch":
        return None, MID_EPOCH
    if checkpoint.val_metrics is None:
        return None, NOT_WRITTEN
    if _is_older_than_weights(checkpoint):
        return None, OLDER_THAN_WEIGHTS
    return checkpoint.val_metrics, None


def _is_older_than_weights(checkpoint: Checkpoint) -> bool:
    if checkpoint.directory.parent.name == "snapshots":  # the hub cache keeps no order of time
        return False
    metrics_time = _modified(checkpoint.directory / VAL_METRICS_FILE)
    files = {source.file.path for source in checkpoint.tensors.values()}
    return any(metrics_time < _modified(path) for path in files)


def _modified(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:
        return 0
