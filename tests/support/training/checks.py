"""What an export must hold, read with safetensors and json alone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.support.drafts import read_tensors

METRIC_PREFIX = "full_acc_"


def assert_same_weights(checkpoint: Path, export: Path) -> None:
    """The export holds the checkpoint's tensors bit for bit, under the names that SGLang's draft class reads."""
    expected = {
        name.replace("layers.0.", "midlayer.", 1): tensor
        for name, tensor in read_tensors(checkpoint / "model.safetensors").items()
    }
    assert read_tensors(export / "model.safetensors") == expected


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


def output_of(save_path: Path) -> Path:
    """The output directory that a run has unless it is told another."""
    return save_path.with_name(save_path.name + "-sglang")


def assert_mirrors(save_path: Path, names: set[str]) -> Path:
    """Checkpoints and exports are those of that name, and bitwise equal."""
    output = output_of(save_path)
    assert checkpoints(save_path) == names
    assert exports(output) == names
    for name in names:
        assert_same_weights(save_path / name, output / name)
    return output


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
