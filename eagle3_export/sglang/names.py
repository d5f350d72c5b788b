"""Tensor names: from speculators' to those that SGLang's draft class loads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.tensors import EMBEDDING, TRAINING_ONLY

# speculators' name -> SGLang's. `*` stands for a number, which stays. Layer 0 becomes `midlayer`, which every release
# loads (0.5.12 on maps it back to `layers.0`).
_RENAMES: Mapping[str, str] = MappingProxyType({
    "embed_tokens.weight":                       "embed_tokens.weight",
    "fc.weight":                                 "fc.weight",
    "input_norm.weight":                         "input_norm.weight",
    "fc_norm.*.weight":                          "fc_norm.*.weight",
    "layers.0.hidden_norm.weight":               "midlayer.hidden_norm.weight",
    "layers.0.input_layernorm.weight":           "midlayer.input_layernorm.weight",
    "layers.0.post_attention_layernorm.weight":  "midlayer.post_attention_layernorm.weight",
    "layers.0.self_attn.q_proj.weight":          "midlayer.self_attn.q_proj.weight",
    "layers.0.self_attn.k_proj.weight":          "midlayer.self_attn.k_proj.weight",
    "layers.0.self_attn.v_proj.weight":          "midlayer.self_attn.v_proj.weight",
    "layers.0.self_attn.o_proj.weight":          "midlayer.self_attn.o_proj.weight",
    "layers.0.self_attn.q_norm.weight":          "midlayer.self_attn.q_norm.weight",
    "layers.0.self_attn.k_norm.weight":          "midlayer.self_attn.k_norm.weight",
    "layers.0.self_attn.q_proj.bias":            "midlayer.self_attn.q_proj.bias",
    "layers.0.self_attn.k_proj.bias":            "midlayer.self_attn.k_proj.bias",
    "layers.0.self_attn.v_proj.bias":            "midlayer.self_attn.v_proj.bias",
    "layers.0.self_attn.o_proj.bias":            "midlayer.self_attn.o_proj.bias",
    "layers.0.mlp.gate_proj.weight":             "midlayer.mlp.gate_proj.weight",
    "layers.0.mlp.up_proj.weight":               "midlayer.mlp.up_proj.weight",
    "layers.0.mlp.down_proj.weight":             "midlayer.mlp.down_proj.weight",
    "layers.0.mlp.gate_proj.bias":               "midlayer.mlp.gate_proj.bias",
    "layers.0.mlp.up_proj.bias":                 "midlayer.mlp.up_proj.bias",
    "layers.0.mlp.down_proj.bias":               "midlayer.mlp.down_proj.bias",
    "norm.weight":                               "norm.weight",
    "lm_head.weight":                            "lm_head.weight",
    "d2t":                                       "d2t",
    "t2d":                                       "t2d",
})  # fmt: skip
# Deeper layers exist from 0.5.12 on and keep their names, but for one: they normalise their input with `hidden_norm`
# (sglang 0.5.12 to 0.5.23, `models/llama_eagle3.py:LlamaDecoderLayer.forward`). The `input_layernorm` that SGLang
# builds there too is filled by nothing and read by nothing.
_DEEPER_RENAMES: Mapping[str, str] = MappingProxyType(
    {
        name.replace("layers.0.", "layers.*."): name.replace("layers.0.", "layers.*.")
        for name in _RENAMES
        if name.startswith("layers.0.") and name != "layers.0.hidden_norm.weight"
    }
    | {"layers.*.input_layernorm.weight": "layers.*.hidden_norm.weight"}
)


def translate_names(names: Iterable[str], *, keep_embed_tokens: bool = True) -> dict[str, str]:
    """Maps speculators' tensor names to SGLang's, in the given order, without those of `TRAINING_ONLY`.

    Args:
        names: speculators' names.
        keep_embed_tokens: False leaves the embedding out too.

    Raises:
        CheckpointError: a name that the tables do not have, quoting it.
    """
    left_out = TRAINING_ONLY if keep_embed_tokens else (*TRAINING_ONLY, EMBEDDING)
    return {name: _translated(name) for name in names if name not in left_out}


def _translated(name: str) -> str:
    if name in _RENAMES and "*" not in name:
        return _RENAMES[name]
    numbered = re.fullmatch(r"(layers|fc_norm)\.(0|[1-9]\d*)\.(.+)", name)
    if numbered:
        table = _DEEPER_RENAMES if numbered[1] == "layers" and numbered[2] != "0" else _RENAMES
        renamed = table.get(f"{numbered[1]}.*.{numbered[3]}")
        if renamed is not None:
            return renamed.replace("*", numbered[2])
    raise CheckpointError(
        f"SGLang's EAGLE-3 class has no parameter for {name!r}.",
        why="SGLang would drop the tensor, and no error would appear.",
        remedy="Check where this checkpoint comes from.",
    )
