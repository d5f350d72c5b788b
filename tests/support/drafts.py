"""Small speculators checkpoints made by hand, in the form that speculators 0.9.0 writes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any

import numpy as np

CONFIG: dict[str, Any] = {
    "architectures": ["Eagle3DraftModel"],
    "auto_map": {"": "config.Eagle3SpeculatorConfig"},
    "draft_vocab_size": 24,
    "dtype": "bfloat16",
    "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
    "embed_requires_grad": False,
    "fc_norm": False,
    "norm_before_fc": True,
    "norm_before_residual": False,
    "norm_output": True,
    "speculators_config": {
        "algorithm": "eagle3",
        "default_proposal_method": "greedy",
        "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
        "verifier": {"architectures": ["LlamaForCausalLM"], "name_or_path": "no/such-verifier"},
    },
    "speculators_model_type": "eagle3",
    "speculators_version": "0.9.0",
    "target_hidden_size": None,
    "tie_word_embeddings": False,
    "transformer_layer_config": {
        "attention_bias": False,
        "head_dim": 4,
        "hidden_act": "silu",
        "hidden_size": 16,
        "initializer_range": 0.02,
        "intermediate_size": 32,
        "layer_types": ["full_attention"],
        "max_position_embeddings": 512,
        "mlp_bias": False,
        "model_type": "llama",
        "num_attention_heads": 4,
        "num_hidden_layers": 1,
        "num_key_value_heads": 2,
        "rms_norm_eps": 1e-06,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "vocab_size": 40,
    },
    "transformers_version": "5.19.0",
}
TARGET_IDS = [i for i in range(40) if i % 5 in (0, 2, 3)]  # the 24 tokens of the draft's vocabulary
SIZES = {"BF16": 2, "F16": 2, "F32": 4, "I64": 8, "BOOL": 1}

Tensor = tuple[str, tuple[int, ...], bytes]

# The names that speculators 0.9.0 writes for one Llama layer with its default flags, and their shapes here.
SHAPES: Mapping[str, tuple[int, ...]] = {
    "embed_tokens.weight": (40, 16),
    "fc.weight": (16, 48),
    "input_norm.weight": (48,),
    "layers.0.hidden_norm.weight": (16,),
    "layers.0.input_layernorm.weight": (16,),
    "layers.0.mlp.down_proj.weight": (16, 32),
    "layers.0.mlp.gate_proj.weight": (32, 16),
    "layers.0.mlp.up_proj.weight": (32, 16),
    "layers.0.post_attention_layernorm.weight": (16,),
    "layers.0.self_attn.k_proj.weight": (8, 32),
    "layers.0.self_attn.o_proj.weight": (16, 16),
    "layers.0.self_attn.q_proj.weight": (16, 32),
    "layers.0.self_attn.v_proj.weight": (8, 32),
    "lm_head.weight": (24, 16),
    "norm.weight": (16,),
}

# What SGLang 0.5.23 loads of a one-layer draft (`models/llama_eagle3.py`), written out by hand.
RENAMED = {
    "layers.0.hidden_norm.weight": "midlayer.hidden_norm.weight",
    "layers.0.input_layernorm.weight": "midlayer.input_layernorm.weight",
    "layers.0.mlp.down_proj.weight": "midlayer.mlp.down_proj.weight",
    "layers.0.mlp.gate_proj.weight": "midlayer.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight": "midlayer.mlp.up_proj.weight",
    "layers.0.post_attention_layernorm.weight": "midlayer.post_attention_layernorm.weight",
    "layers.0.self_attn.k_proj.weight": "midlayer.self_attn.k_proj.weight",
    "layers.0.self_attn.o_proj.weight": "midlayer.self_attn.o_proj.weight",
    "layers.0.self_attn.q_proj.weight": "midlayer.self_attn.q_proj.weight",
    "layers.0.self_attn.v_proj.weight": "midlayer.self_attn.v_proj.weight",
}


def draft_tensors(dtype: str = "BF16", seed: int = 0) -> dict[str, Tensor]:
    """Finite, all different, in the order of a speculators file: widest dtype first, then by name."""
    generator = np.random.default_rng(seed)
    offsets = np.array(TARGET_IDS, dtype="<i8") - np.arange(len(TARGET_IDS))
    mask = np.zeros(40, dtype="|u1")
    mask[TARGET_IDS] = 1
    tensors: dict[str, Tensor] = {"d2t": ("I64", (24,), offsets.tobytes())}
    for name, shape in SHAPES.items():
        values = generator.standard_normal(shape).astype("<f4") / 8
        wide = values.view("<u4")
        data = (wide >> 16).astype("<u2").tobytes() if dtype == "BF16" else values.astype("<f4").tobytes()
        tensors[name] = (dtype, shape, data)
    tensors["t2d"] = ("BOOL", (40,), mask.tobytes())
    return tensors


def safetensors_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def write_checkpoint(
    directory: Path,
    *,
    edit_config: Callable[[dict[str, Any]], object] = lambda config: None,
    edit_tensors: Callable[[dict[str, Tensor]], object] = lambda tensors: None,
    training_state: Mapping[str, Any] | None = None,
    val_metrics: Mapping[str, Any] | None = None,
    shards: int = 1,
    seed: int = 0,
) -> Path:
    """A checkpoint directory; `edit_*` change the config and the tensors in place before they are written."""
    config, tensors = deepcopy(CONFIG), draft_tensors(seed=seed)
    edit_config(config)
    edit_tensors(tensors)
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(config, indent=2))
    if shards == 1:
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors))
    else:
        _write_shards(directory, tensors, shards)
    if training_state is not None:
        (directory / "training_state.json").write_text(json.dumps(training_state))
    if val_metrics is not None:
        (directory / "val_metrics.json").write_text(json.dumps(val_metrics))
    return directory


def _write_shards(directory: Path, tensors: Mapping[str, Tensor], shards: int) -> None:
    names = list(tensors)
    weight_map = {}
    for shard in range(shards):
        file_name = f"model-{shard + 1:05}-of-{shards:05}.safetensors"
        mine = names[shard::shards]
        (directory / file_name).write_bytes(safetensors_bytes({name: tensors[name] for name in mine}))
        weight_map.update(dict.fromkeys(mine, file_name))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def read_tensors(path: Path) -> dict[str, Tensor]:
    """Reads a file with the format's own definition, independently of the package under test."""
    content = path.read_bytes()
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    header.pop("__metadata__", None)
    data = content[8 + size :]
    return {
        name: (entry["dtype"], tuple(entry["shape"]), data[slice(*entry["data_offsets"])])
        for name, entry in header.items()
    }


END_OF_EPOCH = {"epoch": 1, "local_step": 0, "global_step": 200}
METRICS = {
    "loss_epoch": 1.5,
    "full_acc_0_epoch": 0.8,
    "full_acc_1_epoch": 0.6,
    "full_acc_2_epoch": 0.4,
    "cond_acc_0_epoch": 0.8,
    "cond_acc_1_epoch": 0.75,
    "cond_acc_2_epoch": 2 / 3,
}
