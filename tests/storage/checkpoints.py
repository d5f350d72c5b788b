"""Small speculators checkpoints without torch: config.json as speculators 0.9.0 writes it, random bf16 weights."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from tests.storage.conftest import safetensors_bytes

HIDDEN, INNER, VOCABULARY, DRAFT_VOCABULARY, HEADS, KV_HEADS, HEAD = 64, 128, 128, 96, 4, 2, 16

SHAPES: dict[str, tuple[int, ...]] = {
    "embed_tokens.weight": (VOCABULARY, HIDDEN),
    "fc.weight": (HIDDEN, 3 * HIDDEN),
    "layers.0.hidden_norm.weight": (HIDDEN,),
    "layers.0.input_layernorm.weight": (HIDDEN,),
    "layers.0.mlp.down_proj.weight": (HIDDEN, INNER),
    "layers.0.mlp.gate_proj.weight": (INNER, HIDDEN),
    "layers.0.mlp.up_proj.weight": (INNER, HIDDEN),
    "layers.0.post_attention_layernorm.weight": (HIDDEN,),
    "layers.0.self_attn.k_proj.weight": (KV_HEADS * HEAD, 2 * HIDDEN),
    "layers.0.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
    "layers.0.self_attn.q_proj.weight": (HEADS * HEAD, 2 * HIDDEN),
    "layers.0.self_attn.v_proj.weight": (KV_HEADS * HEAD, 2 * HIDDEN),
    "lm_head.weight": (DRAFT_VOCABULARY, HIDDEN),
    "norm.weight": (HIDDEN,),
}

CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "draft_vocab_size": DRAFT_VOCABULARY,
    "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": False,
    "norm_before_residual": False,
    "norm_output": False,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": None},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "head_dim": HEAD,
        "hidden_act": "silu",
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "layer_types": ["sliding_attention"],
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": HEADS,
        "num_hidden_layers": 1,
        "num_key_value_heads": KV_HEADS,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "sliding_window": 2048,
        "vocab_size": VOCABULARY,
    },
    "transformers_version": "5.19.0",
}


def draft_weights(seed: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Finite bf16 weights and a vocabulary map that adds up."""
    random = np.random.default_rng(seed)
    tensors = {
        name: ("BF16", shape, random.integers(0x3C00, 0x3F80, int(np.prod(shape)), dtype=np.uint16).tobytes())
        for name, shape in SHAPES.items()
    }
    kept = np.sort(random.permutation(VOCABULARY)[:DRAFT_VOCABULARY])
    mask = np.zeros(VOCABULARY, dtype=np.uint8)
    mask[kept] = 1
    offsets = (kept - np.arange(DRAFT_VOCABULARY)).astype(np.int64)
    return {
        "d2t": ("I64", (DRAFT_VOCABULARY,), offsets.tobytes()),
        **tensors,
        "t2d": ("BOOL", (VOCABULARY,), mask.tobytes()),
    }


def write_checkpoint(
    directory: Path, seed: int = 0, *, epoch: int = 0, config: dict[str, Any] | None = None
) -> Path:
    """A checkpoint directory as the trainer leaves it, in the trainer's order: weights by rename, marker last."""
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / "weights.tmp"
    aside.write_bytes(safetensors_bytes(draft_weights(seed), {"format": "pt"}))
    aside.rename(directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**CONFIG, **(config or {})}))
    state = {"epoch": epoch, "local_step": 0, "global_step": 100 * (epoch + 1) + seed}
    (directory / "training_state.json").write_text(json.dumps(state))
    metrics = {f"full_acc_{k}_epoch": 0.8 / (k + 1 + seed % 7) for k in range(3)}
    (directory / "val_metrics.json").write_text(json.dumps(metrics))
    marker = directory.parent / f"epoch{epoch}_end"
    if directory.name == str(epoch) and not os.path.lexists(marker):
        marker.symlink_to(directory.name)
    return directory
