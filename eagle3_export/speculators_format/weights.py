"""The weight files of a checkpoint: `model.safetensors`, or shards with an index."""

from __future__ import annotations

from pathlib import Path

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.fields import Fields, read_json_object
from eagle3_export.speculators_format.run_files import WEIGHTS_FILE, WEIGHTS_INDEX_FILE
from eagle3_export.storage.safetensors_file import SafetensorsFile, TensorSource, read_safetensors

_MAX_SHARDS = 1024


def read_weights(directory: Path) -> dict[str, TensorSource]:
    """Returns where each tensor's bytes are, by its stored name. Reads headers only.

    Args:
        directory: of the checkpoint.

    Raises:
        CheckpointError: there are no weights, a header is malformed, or shards and index contradict each other.
    """
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
