"""Reads a checkpoint directory that speculators 0.3 to 0.9 saved. No weight is loaded, nothing is executed."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from eagle3_export.speculators_format.draft import Draft, parse_draft
from eagle3_export.speculators_format.run_files import CONFIG_FILE, locate_checkpoint
from eagle3_export.speculators_format.tensors import check_layout, float_dtype, unwrap_names
from eagle3_export.speculators_format.training_state import TrainingState, read_training_records
from eagle3_export.speculators_format.vocabulary import check_vocabulary
from eagle3_export.speculators_format.weights import read_weights
from eagle3_export.storage.regular_file import read_json_object
from eagle3_export.storage.safetensors_file import TensorSource


@dataclass(frozen=True)
class Checkpoint:
    """One saved draft, read but not loaded.

    Attributes:
        directory: the real directory, symlinks resolved.
        draft: what it computes.
        tensors: where each tensor's bytes are, by speculators' name (wrappers' prefixes taken off).
        val_metrics: content of val_metrics.json, which the trainer writes for the best epoch only.
    """

    directory: Path
    draft: Draft
    tensors: dict[str, TensorSource]
    training_state: TrainingState | None
    val_metrics: dict[str, float] | None

    @property
    def speculators_version(self) -> str | None:
        """The release that saved it, None when not recorded."""
        return self.draft.speculators_version


def read_checkpoint(path: str | Path) -> Checkpoint:
    """Reads and checks a checkpoint.

    Args:
        path: a checkpoint directory, a symlink to one such as `checkpoint_best`, or a hub id that is already in
            the local Hugging Face cache. One `model.safetensors` or shards with an index.

    Raises:
        CheckpointError: it is missing, malformed, of another kind, or its tensors and its config contradict
            each other.
    """
    directory = locate_checkpoint(path)
    config_path = directory / CONFIG_FILE
    config = read_json_object(config_path)
    draft = parse_draft(config, str(config_path))
    stored = read_weights(directory)
    plain = unwrap_names({name: source.entry for name, source in stored.items()}, str(directory))
    tensors = {plain[name]: source for name, source in stored.items()}
    entries = {name: source.entry for name, source in tensors.items()}
    check_layout(draft, entries, str(directory))
    check_vocabulary(draft, tensors, str(directory))
    training_state, val_metrics = read_training_records(directory)
    return Checkpoint(
        directory=directory,
        draft=replace(draft, dtype=float_dtype(entries)),
        tensors=tensors,
        training_state=training_state,
        val_metrics=val_metrics,
    )
