"""What an export must hold, read with safetensors and json alone."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

METRIC_PREFIX = "full_acc_"


def read_raw_tensors(path: Path) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Name -> (dtype, shape, bytes), decoded by hand from the published format of safetensors."""
    content = path.read_bytes()
    (length,) = struct.unpack("<Q", content[:8])
    header = json.loads(content[8 : 8 + length])
    data = content[8 + length :]
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
        if name != "__metadata__"
    }


def assert_same_weights(checkpoint: Path, export: Path) -> None:
    """The export holds the checkpoint's tensors bit for bit, under the names that SGLang's draft class reads."""
    expected = {
        name.replace("layers.0.", "midlayer.", 1): tensor
        for name, tensor in read_raw_tensors(checkpoint / "model.safetensors").items()
    }
    assert read_raw_tensors(export / "model.safetensors") == expected


def metadata(export: Path) -> dict[str, Any]:
    return json.loads((export / "metadata.json").read_text())


def published(output_dir: Path) -> set[str]:
    """Names of the published exports."""
    children = output_dir.iterdir() if output_dir.is_dir() else ()
    return {
        c.name
        for c in children
        if not c.is_symlink() and (c / "metadata.json").is_file() and c.name[0] != "."
    }


def exports(output_dir: Path) -> set[str]:
    """Names of the published exports; after a run, nothing else but pointers and the index may lie there."""
    others = {child.name for child in output_dir.iterdir()} if output_dir.is_dir() else set()
    others -= published(output_dir)
    assert others <= {"latest", "best", "index.json"}, others
    return published(output_dir)


def checkpoints(save_path: Path) -> set[str]:
    """Names of the directories in the trainer's save path that hold weights."""
    return {
        child.name
        for child in save_path.iterdir()
        if not child.is_symlink() and (child / "model.safetensors").is_file()
    }


def accuracies(validation: dict[str, float]) -> list[float]:
    """full_acc_0, full_acc_1, … of a validation record as the trainer logs or writes it."""
    steps = sum(key.startswith(METRIC_PREFIX) for key in validation)
    return [validation[f"{METRIC_PREFIX}{step}_epoch"] for step in range(steps)]


def exported_accuracies(export: Path) -> list[float]:
    return [step["full_acc"] for step in metadata(export)["acceptance"]["steps"]]


def expected_coverage(data: Path, checkpoint: Path) -> float:
    """Share of the training data's tokens that the draft vocabulary can say."""
    import torch
    from safetensors.torch import load_file

    counts = torch.load(data / "token_freq.pt", weights_only=True)
    offsets = load_file(checkpoint / "model.safetensors")["d2t"].tolist()
    return sum(counts[i + offset] for i, offset in enumerate(offsets)) / sum(counts.values())
