"""Reads a checkpoint directory that speculators 0.3 to 0.9 saved. No weight is loaded, nothing is executed."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.draft import Draft, parse_draft
from eagle3_export.speculators_format.fields import Fields, read_json_object
from eagle3_export.speculators_format.run_files import (
    CONFIG_FILE,
    TRAINING_STATE_FILE,
    VAL_METRICS_FILE,
    WEIGHTS_FILE,
    WEIGHTS_INDEX_FILE,
    cached_snapshot,
    find_checkpoints,
    is_hub_id,
)
from eagle3_export.speculators_format.tensors import check_layout, float_dtype, unwrap_names
from eagle3_export.speculators_format.vocabulary import check_vocabulary
from eagle3_export.storage.safetensors_file import SafetensorsFile, TensorSource, read_safetensors

_MAX_SHARDS = 1024


@dataclass(frozen=True, slots=True)
class TrainingState:
    """`training_state.json` of speculators 0.5 on.

    Attributes:
        local_step: steps done in an epoch that is not finished, 0 at its end.
        global_step: optimizer steps since the run began.
    """

    epoch: int | None
    local_step: int | None
    global_step: int | None


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
    directory = _locate(path)
    config_path = directory / CONFIG_FILE
    if not config_path.exists():
        raise CheckpointError(
            f"{directory} has no {CONFIG_FILE}.",
            why="It says what the weights are.",
            remedy=_no_config_remedy(directory),
        )
    draft = parse_draft(read_json_object(config_path), str(config_path))
    stored = _read_weights(directory)
    plain = unwrap_names({name: source.entry for name, source in stored.items()}, str(directory))
    tensors = {plain[name]: source for name, source in stored.items()}
    entries = {name: source.entry for name, source in tensors.items()}
    check_layout(draft, entries, str(directory))
    check_vocabulary(draft, tensors, str(directory))
    return Checkpoint(
        directory=directory,
        draft=replace(draft, dtype=float_dtype(entries)),
        tensors=tensors,
        training_state=_read_training_state(directory),
        val_metrics=_read_val_metrics(directory),
    )


def _locate(path: str | Path) -> Path:
    local = Path(path)
    try:
        if local.is_file():
            local = local.parent
        if local.is_dir():
            return local.resolve()
    except (OSError, ValueError, RuntimeError) as error:
        raise CheckpointError(f"{str(path)[:200]} cannot be read: {error}.") from error
    cached = cached_snapshot(str(path))
    if cached is not None:
        return cached
    raise CheckpointError(
        f"{path} is neither a directory nor in the local Hugging Face cache.",
        remedy=f"Check the path, or fetch it first: hf download {path}"
        if is_hub_id(str(path))
        else "Check the path.",
    )


def _no_config_remedy(directory: Path) -> str:
    try:
        below = find_checkpoints(directory)
    except CheckpointError:
        below = []
    if below:
        return f"Name one of its checkpoints, such as {below[-1]}, or convert all of them with --all."
    return "Name a checkpoint directory that `speculators train` wrote."


def _read_weights(directory: Path) -> dict[str, TensorSource]:
    single, index = directory / WEIGHTS_FILE, directory / WEIGHTS_INDEX_FILE
    if single.exists():
        return _sources(read_safetensors(single))
    if index.exists():
        return _read_shards(directory, index)
    pickles = sorted(path.name for path in directory.glob("*.bin"))
    raise CheckpointError(
        f"{directory} has no {WEIGHTS_FILE}.",
        why=f"{pickles[0]} is a pickle, which is never opened."
        if pickles
        else "There are no weights to export.",
        remedy="Save the checkpoint as safetensors." if pickles else "Wait until the save has finished.",
    )


def _sources(file: SafetensorsFile) -> dict[str, TensorSource]:
    return {name: TensorSource(file, entry) for name, entry in file.tensors.items()}


def _read_shards(directory: Path, index: Path) -> dict[str, TensorSource]:
    weight_map = Fields(read_json_object(index), str(index)).mapping("weight_map")
    shard_names = sorted({name for name in weight_map.values() if isinstance(name, str)})
    if len(shard_names) > _MAX_SHARDS or not all(isinstance(name, str) for name in weight_map.values()):
        raise _bad_index(index, "names no shards, or too many")
    sources: dict[str, TensorSource] = {}
    for shard_name in shard_names:
        if Path(shard_name).name != shard_name or not shard_name.endswith(".safetensors"):
            raise _bad_index(index, f"names {shard_name!r}, which is no safetensors file beside it")
        for name, source in _sources(read_safetensors(directory / shard_name)).items():
            if weight_map.get(name) != shard_name:
                raise _bad_index(index, f"does not list {name}, which {shard_name} holds")
            sources[name] = source
    absent = sorted(set(weight_map) - set(sources))
    if absent:
        raise _bad_index(index, f"lists {absent[0]}, which {weight_map[absent[0]]} does not hold")
    return sources


def _bad_index(index: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{index} {problem}.",
        why="Index and shards describe two different checkpoints.",
        remedy="Copy or save the checkpoint again.",
    )


def _read_training_state(directory: Path) -> TrainingState | None:
    path = directory / TRAINING_STATE_FILE
    if not path.exists():
        return None
    document = read_json_object(path)

    def count(key: str) -> int | None:
        value = document.get(key)
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            return None
        return value

    return TrainingState(count("epoch"), count("local_step"), count("global_step"))


def _read_val_metrics(directory: Path) -> dict[str, float] | None:
    path = directory / VAL_METRICS_FILE
    if not path.exists():
        return None
    return {
        key: _as_float(value)
        for key, value in read_json_object(path).items()
        if isinstance(value, (int, float)) and not isinstance(value, bool)
    }


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf
