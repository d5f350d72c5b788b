"""A saved draft in speculators' own model, filled tensor by tensor from safetensors; nothing of it is executed."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from eagle3_export.speculators_format.checkpoint import Checkpoint


def trained_model(checkpoint: Checkpoint, attention: str, *, verifier: str | None = None) -> Any:
    """Returns speculators' `Eagle3DraftModel` in float32, with the checkpoint's tensors.

    Args:
        checkpoint: that was read and checked.
        attention: as speculators calls it: simple_flex_attention, sdpa or eager.
        verifier: a directory or hub id, from which speculators takes the verifier's head and norm, and an embedding
            that the checkpoint lacks. Without it these stay empty.

    Raises:
        ValueError: a weight stays unfilled, or a tensor has no place.
    """
    from safetensors import safe_open
    from speculators import SpeculatorModelConfig
    from speculators.models.eagle3 import Eagle3DraftModel

    config: Any = SpeculatorModelConfig.from_pretrained(os.fspath(checkpoint.directory))
    config.transformer_layer_config._attn_implementation = attention
    if verifier is not None:
        config.speculators_config.verifier.name_or_path = verifier
    model = Eagle3DraftModel(config).float().eval()
    state = {}
    for name, tensor in checkpoint.tensors.items():
        with safe_open(os.fspath(tensor.file.path), framework="pt") as file:
            state[name] = file.get_tensor(tensor.entry.name)
    missing, unexpected = model.load_state_dict(state, strict=False)
    given = ("verifier_",) if verifier is None else ("verifier_", "embed_tokens.")
    unfilled = [name for name in missing if not name.startswith(given)]
    if unfilled or unexpected:
        raise ValueError(f"the checkpoint leaves {unfilled} unfilled and has unknown {list(unexpected)}")
    if verifier is not None:
        model.load_verifier_weights()
    return model
