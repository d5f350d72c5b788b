"""The weight files of a checkpoint: `model.safetensors`, or shards with an index."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.fields import Fields
from eagle3_export.speculators_format.run_files import WEIGHTS_FILE, WEIGHTS_INDEX_FILE
from eagle3_export.storage.regular_file import read_json_object
from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors

_MAX_SHARDS = 1024


def read_weights(directory: Path) -> dict[str, TensorSource]:
    """Returns where each tensor's bytes are, by its stored name. Reads headers only.

    Args:
        directory: of the checkpoint.

    Raises:
        CheckpointError: there are no weights, a header is malformed, or shards and index contradict each other.
    """
    index = directory / WEIGHTS_INDEX_FILE
    weight_map: Mapping[str, Any] | None = None
    files = [WEIGHTS_FILE]
    # `Path.exists` raises where a disk has faults.
    if not os.path.exists(directory / WEIGHTS_FILE):  # noqa: PTH110
        if not os.path.exists(index):  # noqa: PTH110
            raise _no_weights(directory)
        weight_map = Fields(read_json_object(index), str(index)).mapping("weight_map")
        files = _shards(index, weight_map)
    sources: dict[str, TensorSource] = {}
    for name in files:
        file = read_safetensors(directory / name)
        sources.update({tensor: TensorSource(file, entry) for tensor, entry in file.tensors.items()})
        if weight_map is not None and (unlisted := [t for t in file.tensors if weight_map.get(t) != name]):
            raise _bad_index(index, f"does not list {unlisted[0]}, which {name} holds")
    if weight_map is not None and (absent := sorted(set(weight_map) - set(sources))):
        raise _bad_index(index, f"lists {absent[0]}, which {weight_map[absent[0]]} does not hold")
    return sources


def _shards(index: Path, weight_map: Mapping[str, Any]) -> list[str]:
    """The names of the files that an index names, each beside it."""
    named = list(weight_map.values())
    if not all(isinstance(name, str) for name in named) or len(set(named)) > _MAX_SHARDS:
        raise _bad_index(index, "names no shards, or too many")
    shards = sorted(set(named))
    for name in shards:
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise _bad_index(index, f"names {name!r}, which is no safetensors file beside it")
    return shards


def _no_weights(directory: Path) -> CheckpointError:
    pickles = sorted(path.name for path in directory.glob("*.bin"))
    return CheckpointError(
        f"{directory} has no {WEIGHTS_FILE}.",
        why=f"{pickles[0]} is a pickle, which is never opened."
        if pickles
        else "There are no weights to export.",
        remedy="Save the checkpoint as safetensors." if pickles else "Wait until the save has finished.",
    )


def _bad_index(index: Path, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{index} {problem}.",
        why="Index and shards describe two different checkpoints.",
        remedy="Copy or save the checkpoint again.",
    )
