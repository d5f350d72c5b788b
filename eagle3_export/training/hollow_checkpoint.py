"""Asks, before the first training step, what an export of this model would meet: the way of a real export, on a
checkpoint without weights."""

from __future__ import annotations

import json
import struct
import tempfile
from pathlib import Path
from typing import Any

from eagle3_export.compatibility.findings import Finding
from eagle3_export.compatibility.plan import plan_serving
from eagle3_export.config import ExportConfig
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.speculators_format.verifier import Verifier, find_verifier

# What the trainer saves: floating-point tensors in bfloat16 (speculators 0.9.0, `save_checkpoint(float_dtype=...)`).
SAVED_FLOAT = ("BF16", 2)
SAVED_OTHERS = {"torch.int64": ("I64", 8), "torch.int32": ("I32", 4), "torch.bool": ("BOOL", 1)}


def check_before_training(model: Any, config: ExportConfig) -> tuple[list[Finding], Verifier | None]:
    """The findings that every export of this model will have, and the verifier as they saw it.

    Args:
        model: the trainer's model (a speculators `SpeculatorModel`, also inside DDP or sharded by FSDP).
        config: the export's configuration.

    Raises:
        CheckpointError: its checkpoints are not of the kind that can be exported.
    """
    with tempfile.TemporaryDirectory(prefix="eagle3-export-") as directory:
        write_hollow_checkpoint(model, Path(directory))
        checkpoint = read_checkpoint(directory)
        search = find_verifier(checkpoint.draft.verifier_name)
        target = ServingTarget.found(config.sglang_version, config.runtime, search)
        plan = plan_serving(checkpoint, target, keep_embed_tokens=config.embed_tokens == "keep")
        return list(plan.findings), search.verifier


def write_hollow_checkpoint(model: Any, directory: Path) -> None:
    """Writes what the trainer would save of this model, with holes for weights; it takes no space on disk.

    Only the vocabulary maps `d2t` and `t2d` are real. No collective is entered: names, global shapes and dtypes
    are known on every rank.
    """
    model = getattr(model, "module", model)
    config = json.loads(model.config.to_json_string())
    config["dtype"] = "bfloat16"
    (directory / "config.json").write_text(json.dumps(config), encoding="utf-8")

    header: dict[str, Any] = {}
    maps: list[tuple[int, bytes]] = []
    offset = 0
    for name, tensor in _saved_tensors(model):
        dtype, width = SAVED_FLOAT if tensor.is_floating_point() else SAVED_OTHERS[str(tensor.dtype)]
        end = offset + tensor.numel() * width
        header[name] = {"dtype": dtype, "shape": list(tensor.shape), "data_offsets": [offset, end]}
        if not tensor.is_floating_point():
            maps.append((offset, tensor.detach().cpu().numpy().tobytes()))
        offset = end
    encoded = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(encoded)) + encoded)
        start = file.tell()
        for position, content in maps:
            file.seek(start + position)
            file.write(content)
        file.truncate(start + offset)


def _saved_tensors(model: Any) -> list[tuple[str, Any]]:
    """The entries of `model.state_dict()` that `save_pretrained` keeps (transformers 5, `modeling_utils`)."""
    left_out = set(getattr(model, "_keys_to_ignore_on_save", None) or ()) | {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules()
        for name in module._non_persistent_buffers_set
    }
    everything = [*model.named_parameters(), *model.named_buffers()]
    return [(name, tensor) for name, tensor in everything if name not in left_out]
