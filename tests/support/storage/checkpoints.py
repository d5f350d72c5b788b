"""Small speculators checkpoints without torch: config.json as speculators 0.9.0 writes it, random bf16 weights."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tests.support.storage.filesystems import safetensors_bytes


@dataclass(frozen=True)
class Sizes:
    """Of a one-layer Llama draft."""

    hidden: int = 64
    inner: int = 128
    vocabulary: int = 128
    draft_vocabulary: int = 96
    heads: int = 4
    kv_heads: int = 2
    head: int = 16

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Its trained tensors (speculators 0.9.0, `Eagle3DraftModel`)."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        return {
            "embed_tokens.weight": (self.vocabulary, self.hidden),
            "fc.weight": (self.hidden, 3 * self.hidden),
            "layers.0.hidden_norm.weight": (self.hidden,),
            "layers.0.input_layernorm.weight": (self.hidden,),
            "layers.0.mlp.down_proj.weight": (self.hidden, self.inner),
            "layers.0.mlp.gate_proj.weight": (self.inner, self.hidden),
            "layers.0.mlp.up_proj.weight": (self.inner, self.hidden),
            "layers.0.post_attention_layernorm.weight": (self.hidden,),
            "layers.0.self_attn.k_proj.weight": (key, 2 * self.hidden),
            "layers.0.self_attn.o_proj.weight": (self.hidden, query),
            "layers.0.self_attn.q_proj.weight": (query, 2 * self.hidden),
            "layers.0.self_attn.v_proj.weight": (key, 2 * self.hidden),
            "lm_head.weight": (self.draft_vocabulary, self.hidden),
            "norm.weight": (self.hidden,),
        }


TINY = Sizes()
# Of Llama-3.1-8B's draft: 2 GB.
LARGE = Sizes(4096, 14_336, 128_256, 32_000, 32, 8, 128)


def speculators_config(sizes: Sizes = TINY) -> dict[str, Any]:
    """config.json, as speculators 0.9.0 writes it."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "draft_vocab_size": sizes.draft_vocabulary,
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
            "head_dim": sizes.head,
            "hidden_act": "silu",
            "hidden_size": sizes.hidden,
            "intermediate_size": sizes.inner,
            "layer_types": ["sliding_attention"],
            "max_position_embeddings": 512,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": sizes.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": sizes.kv_heads,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "sliding_window": 2048,
            "vocab_size": sizes.vocabulary,
        },
        "transformers_version": "5.19.0",
    }


CONFIG = speculators_config()


def draft_weights(seed: int) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Finite bf16 weights and a vocabulary map that adds up."""
    random = np.random.default_rng(seed)
    tensors = {
        name: ("BF16", shape, random.integers(0x3C00, 0x3F80, int(np.prod(shape)), dtype=np.uint16).tobytes())
        for name, shape in TINY.shapes().items()
    }
    kept = np.sort(random.permutation(TINY.vocabulary)[: TINY.draft_vocabulary])
    mask = np.zeros(TINY.vocabulary, dtype=np.uint8)
    mask[kept] = 1
    offsets = (kept - np.arange(TINY.draft_vocabulary)).astype(np.int64)
    return {
        "d2t": ("I64", (TINY.draft_vocabulary,), offsets.tobytes()),
        **tensors,
        "t2d": ("BOOL", (TINY.vocabulary,), mask.tobytes()),
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


def write_sparse_checkpoint(directory: Path, sizes: Sizes) -> Path:
    """A checkpoint whose weights are all zero and take no room on the disk."""
    directory.mkdir(parents=True)
    lengths = {name: 2 * int(np.prod(shape)) for name, shape in sizes.shapes().items()}
    header: dict[str, Any] = {"d2t": {"dtype": "I64", "shape": [sizes.draft_vocabulary]}}
    header |= {name: {"dtype": "BF16", "shape": shape} for name, shape in sizes.shapes().items()}
    header["t2d"] = {"dtype": "BOOL", "shape": [sizes.vocabulary]}
    lengths |= {"d2t": 8 * sizes.draft_vocabulary, "t2d": sizes.vocabulary}
    at = 0
    for name, entry in header.items():
        entry["data_offsets"] = [at, at + lengths[name]]
        at += lengths[name]
    text = json.dumps(header).encode()
    with (directory / "model.safetensors").open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        file.seek(header["t2d"]["data_offsets"][0], os.SEEK_CUR)
        file.write(b"\1" * sizes.draft_vocabulary)
        file.truncate(8 + len(text) + at)
    (directory / "config.json").write_text(json.dumps(speculators_config(sizes)))
    return directory
