"""The flat config.json of an export.

Keys, and who reads them ("stock": sglang's `LlamaForCausalLMEagle3` and `ModelConfig`; "plugin": our classes):

- `architectures`: ["LlamaForCausalLMEagle3"], or ["Eagle3ExportLlamaForCausalLM"] for what stock does not compute.
- `model_type` "llama", `vocab_size`, `hidden_size`, `intermediate_size`, `num_hidden_layers`,
  `num_attention_heads`, `num_key_value_heads`, `head_dim`, `hidden_act`, `rms_norm_eps`, `initializer_range`,
  `max_position_embeddings`: as trained. Stock.
- `draft_vocab_size`: always an integer (absent, stock raises; null, it borrows the target's lm_head).
- `tie_word_embeddings`: false (true would make the embedding the lm_head).
- `dtype` and `torch_dtype`: equal, and equal to the file's tensors.
- `rope_parameters` and `rope_theta` + `rope_scaling`: both notations, saying the same (see `rope.py`).
- `eagle_config`: `use_aux_hidden_state` true, `eagle_aux_hidden_state_layer_ids` (encoded for the target's class,
  see `aux_layers.py`; absent: SGLang's default), `norm_before_fc`. Stock.
- `num_aux_hidden_states`: inputs of `fc`, so that it never depends on the encoding. Stock, 0.5.12 on.
- `norm_before_fc`, `fc_norm`, `norm_output`: top level. Stock from 0.5.12 (`norm_before_fc`: 0.5.17), and vLLM.
- `norm_before_residual`: top level. The plugin, and vLLM.
- `attention_bias`: biases of q/k/v/o_proj. The plugin; stock builds o_proj's only.
- `mlp_bias`: biases of gate/up/down_proj. The plugin.
- `use_qk_norm`: RMSNorm over head_dim of queries and keys before the rotation. The plugin.
- `eagle3_export`: what only the plugin reads:
    - `format`: 1.
    - `requires`: ids of the findings that made the plugin's class necessary; empty for a stock export.
    - `keep_embed_tokens`: true where the draft's embedding was trained; SGLang must not put the target's in place.
    - `sliding_window`: per layer the number of keys that a query sees, itself included, or null for all.
    - `trained_aux_layer_ids`: the ids trained on (id i: the input of layer i), null for the default.

Never written: `target_hidden_size`, `quantization_config`, `auto_map`, `layer_types`, `sliding_window`,
`mrope_section`, anything named speculators.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle3_export.sglang.rope import rope_fields
from eagle3_export.speculators_format.draft import Draft

STOCK_ARCHITECTURE = "LlamaForCausalLMEagle3"
PLUGIN_ARCHITECTURE = "Eagle3ExportLlamaForCausalLM"


def translate_config(
    draft: Draft,
    *,
    dtype: str,
    encoded_aux_layer_ids: Sequence[int] | None,
    requires: Sequence[str] = (),
) -> dict[str, Any]:
    """The config.json that SGLang's own loader accepts.

    Args:
        dtype: of the exported tensors ("bfloat16").
        encoded_aux_layer_ids: what makes SGLang capture the trained layers, None for its default.
        requires: findings that only the plugin's class resolves; any one selects that class.
    """
    eagle_config: dict[str, Any] = {"use_aux_hidden_state": True, "norm_before_fc": draft.norm_before_fc}
    if encoded_aux_layer_ids is not None:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = list(encoded_aux_layer_ids)
    config: dict[str, Any] = {
        "architectures": [PLUGIN_ARCHITECTURE if requires else STOCK_ARCHITECTURE],
        "model_type": "llama",
        "dtype": dtype,
        "torch_dtype": dtype,
        "vocab_size": draft.vocab_size,
        "draft_vocab_size": draft.draft_vocab_size,
        "hidden_size": draft.hidden_size,
        "intermediate_size": draft.intermediate_size,
        "num_hidden_layers": draft.num_layers,
        "num_attention_heads": draft.num_attention_heads,
        "num_key_value_heads": draft.num_key_value_heads,
        "head_dim": draft.head_dim,
        "hidden_act": draft.hidden_act,
        "rms_norm_eps": draft.rms_norm_eps,
        "initializer_range": draft.initializer_range,
        "max_position_embeddings": draft.max_position_embeddings,
        "attention_bias": draft.attention_bias,
        "mlp_bias": draft.mlp_bias,
        "use_qk_norm": draft.qk_norm,
        "tie_word_embeddings": False,
        "norm_before_residual": draft.norm_before_residual,
        "norm_before_fc": draft.norm_before_fc,
        "fc_norm": draft.fc_norm,
        "norm_output": draft.norm_output,
        "num_aux_hidden_states": draft.num_aux_layers,
        "eagle_config": eagle_config,
        **rope_fields(draft),
        "eagle3_export": {
            "format": 1,
            "requires": list(requires),
            "keep_embed_tokens": draft.embed_requires_grad,
            "sliding_window": list(draft.sliding_windows),
            "trained_aux_layer_ids": list(draft.aux_layer_ids) if draft.aux_layer_ids else None,
        },
    }
    return config
