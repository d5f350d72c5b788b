"""Small speculators checkpoints made by hand, in the form that speculators 0.9.0 writes."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

Tensor = tuple[str, tuple[int, ...], bytes]
"""Dtype as a safetensors header names it, shape, bytes."""

SIZES = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8}


@dataclass(frozen=True)
class Sizes:
    """Of a one-layer Llama draft with a norm on its inputs.

    Attributes:
        hidden: hidden size, of the verifier too.
        inner: of the MLP.
        vocabulary: tokens of the verifier.
        draft_vocabulary: tokens that the draft can say.
        heads: of attention.
        kv_heads: heads of keys and values.
        head: size of one head.
    """

    hidden: int = 16
    inner: int = 32
    vocabulary: int = 40
    draft_vocabulary: int = 24
    heads: int = 4
    kv_heads: int = 2
    head: int = 4

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """What `Eagle3DraftModel` of speculators 0.9.0 saves of its weights."""
        query, key = self.heads * self.head, self.kv_heads * self.head
        return {
            "embed_tokens.weight": (self.vocabulary, self.hidden),
            "fc.weight": (self.hidden, 3 * self.hidden),
            "input_norm.weight": (3 * self.hidden,),
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

    def target_ids(self) -> list[int]:
        """The verifier's tokens that the draft can say, spread over the vocabulary."""
        step = self.vocabulary / self.draft_vocabulary
        return [int(i * step + 0.5) for i in range(self.draft_vocabulary)]


SMALL = Sizes()
# Large enough for a filesystem to notice: 150 kB.
MEDIUM = Sizes(64, 128, 128, 96, 4, 2, 16)
# A 1 B verifier's draft, Llama-3.1-8B's (2 GB), Kimi-K2.5's (5 GB).
SIZES_OF_1B = Sizes(1024, 2816, 32_000, 8_000, 16, 8, 64)
SIZES_OF_8B = Sizes(4096, 14_336, 128_256, 32_000, 32, 8, 128)
SIZES_OF_KIMI = Sizes(7168, 18_432, 163_840, 32_000, 64, 64, 128)


def speculators_config(sizes: Sizes = SMALL) -> dict[str, Any]:
    """config.json, as speculators 0.9.0 writes it."""
    return {
        "architectures": ["Eagle3DraftModel"],
        "auto_map": {"": "config.Eagle3SpeculatorConfig"},
        "draft_vocab_size": sizes.draft_vocabulary,
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
            "head_dim": sizes.head,
            "hidden_act": "silu",
            "hidden_size": sizes.hidden,
            "initializer_range": 0.02,
            "intermediate_size": sizes.inner,
            "layer_types": ["full_attention"],
            "max_position_embeddings": 512,
            "mlp_bias": False,
            "model_type": "llama",
            "num_attention_heads": sizes.heads,
            "num_hidden_layers": 1,
            "num_key_value_heads": sizes.kv_heads,
            "rms_norm_eps": 1e-06,
            "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
            "vocab_size": sizes.vocabulary,
        },
        "transformers_version": "5.19.0",
    }


CONFIG = speculators_config()
SHAPES: Mapping[str, tuple[int, ...]] = SMALL.shapes()
TARGET_IDS = SMALL.target_ids()

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


def draft_tensors(sizes: Sizes = SMALL, *, dtype: str = "BF16", seed: int = 0) -> dict[str, Tensor]:
    """Finite, all different, in the order of a speculators file: widest dtype first, then by name."""
    generator = np.random.default_rng(seed)
    target_ids = np.array(sizes.target_ids(), dtype="<i8")
    offsets = target_ids - np.arange(len(target_ids))
    mask = np.zeros(sizes.vocabulary, dtype="|u1")
    mask[target_ids] = 1
    tensors: dict[str, Tensor] = {"d2t": ("I64", offsets.shape, offsets.tobytes())}
    for name, shape in sizes.shapes().items():
        values = generator.standard_normal(shape).astype("<f4") / 8
        wide = values.view("<u4")
        data = (wide >> 16).astype("<u2").tobytes() if dtype == "BF16" else values.astype("<f4").tobytes()
        tensors[name] = (dtype, shape, data)
    tensors["t2d"] = ("BOOL", mask.shape, mask.tobytes())
    return tensors


def safetensors_bytes(
    tensors: Mapping[str, Tensor], metadata: Mapping[str, str] | None = None, pad: int = 8
) -> bytes:
    """A safetensors file made by hand, its header padded to a multiple of `pad` bytes."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    return _header_bytes(header, pad) + b"".join(data for _, _, data in tensors.values())


def _header_bytes(header: Mapping[str, Any], pad: int = 8) -> bytes:
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-(8 + len(text)) % pad)
    return len(text).to_bytes(8, "little") + text


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
        (directory / "model.safetensors").write_bytes(safetensors_bytes(tensors, {"format": "pt"}))
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
        mine = {name: tensors[name] for name in names[shard::shards]}
        (directory / file_name).write_bytes(safetensors_bytes(mine, {"format": "pt"}))
        weight_map.update(dict.fromkeys(mine, file_name))
    index = {"metadata": {}, "weight_map": weight_map}
    (directory / "model.safetensors.index.json").write_text(json.dumps(index))


def save_epoch(
    directory: Path, seed: int = 0, *, epoch: int = 0, config: Mapping[str, Any] | None = None
) -> Path:
    """Saves a `MEDIUM` checkpoint over what `directory` holds, in the trainer's order: weights by rename, marker last.

    Args:
        directory: of the checkpoint, in a run's save path.
        seed: tells one state of the weights from another, and its step and metrics with them.
        epoch: whose end this is.
        config: keys of config.json to replace.
    """
    directory.mkdir(parents=True, exist_ok=True)
    aside = directory / "weights.tmp"
    aside.write_bytes(safetensors_bytes(draft_tensors(MEDIUM, seed=seed), {"format": "pt"}))
    aside.rename(directory / "model.safetensors")
    (directory / "config.json").write_text(json.dumps({**speculators_config(MEDIUM), **(config or {})}))
    state = {"epoch": epoch, "local_step": 0, "global_step": 100 * (epoch + 1) + seed}
    (directory / "training_state.json").write_text(json.dumps(state))
    metrics = {f"full_acc_{k}_epoch": 0.8 / (k + 1 + seed % 7) for k in range(3)}
    (directory / "val_metrics.json").write_text(json.dumps(metrics))
    marker = directory.parent / f"epoch{epoch}_end"
    if directory.name == str(epoch) and not os.path.lexists(marker):
        marker.symlink_to(directory.name)
    return directory


def write_large_checkpoint(directory: Path, sizes: Sizes, noise: bytes = b"") -> Path:
    """A checkpoint of any size.

    Args:
        directory: to be made.
        sizes: of the draft.
        noise: repeated to fill the weights; without it they are zero and take no room on the disk.
    """
    directory.mkdir(parents=True)
    (directory / "config.json").write_text(json.dumps(speculators_config(sizes)))
    header: dict[str, Any] = {"d2t": {"dtype": "I64", "shape": [sizes.draft_vocabulary]}}
    header |= {name: {"dtype": "BF16", "shape": shape} for name, shape in sizes.shapes().items()}
    header["t2d"] = {"dtype": "BOOL", "shape": [sizes.vocabulary]}
    at = 0
    for entry in header.values():
        entry["data_offsets"] = [at, at := at + SIZES[entry["dtype"]] * int(np.prod(entry["shape"]))]
    with (directory / "model.safetensors").open("wb") as file:
        file.write(_header_bytes({"__metadata__": {"format": "pt"}, **header}))
        # d2t of zeros: the first tokens of the vocabulary.
        file.seek(8 * sizes.draft_vocabulary, os.SEEK_CUR)
        for name in sizes.shapes():
            start, end = header[name]["data_offsets"]
            if not noise:
                file.seek(end - start, os.SEEK_CUR)
            for position in range(start, end if noise else start, len(noise) or 1):
                file.write(noise[: end - position])
        file.write(b"\1" * sizes.draft_vocabulary + bytes(sizes.vocabulary - sizes.draft_vocabulary))
    return directory


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
