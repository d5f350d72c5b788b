"""The flat config.json of an export, written and read back.

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

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from eagle3_export.errors import Eagle3ExportError, invalid_export
from eagle3_export.sglang.rope import rope_fields
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.fields import Fields
from eagle3_export.speculators_format.rope import parse_rope

STOCK_ARCHITECTURE = "LlamaForCausalLMEagle3"
PLUGIN_ARCHITECTURE = "Eagle3ExportLlamaForCausalLM"

# Key at the top level of config.json, the attribute of `Draft` that it holds, and how it is read back. What needs
# more than one key, or a second look, stands in the two functions below.
_KEYS: tuple[tuple[str, str, Callable[[Fields, str], Any]], ...] = (
    ("vocab_size",               "vocab_size",               Fields.size),
    ("draft_vocab_size",         "draft_vocab_size",         Fields.size),
    ("hidden_size",              "hidden_size",              Fields.size),
    ("intermediate_size",        "intermediate_size",        Fields.size),
    ("num_hidden_layers",        "num_layers",               Fields.size),
    ("num_attention_heads",      "num_attention_heads",      Fields.size),
    ("num_key_value_heads",      "num_key_value_heads",      Fields.size),
    ("head_dim",                 "head_dim",                 Fields.size),
    ("hidden_act",               "hidden_act",               Fields.text),
    ("rms_norm_eps",             "rms_norm_eps",             Fields.number),
    ("initializer_range",        "initializer_range",        Fields.number),
    ("max_position_embeddings",  "max_position_embeddings",  Fields.size),
    ("attention_bias",           "attention_bias",           Fields.flag),
    ("mlp_bias",                 "mlp_bias",                 Fields.flag),
    ("use_qk_norm",              "qk_norm",                  Fields.flag),
    ("norm_before_residual",     "norm_before_residual",     Fields.flag),
    ("norm_before_fc",           "norm_before_fc",           Fields.flag),
    ("fc_norm",                  "fc_norm",                  Fields.flag),
    ("norm_output",              "norm_output",              Fields.flag),
    ("num_aux_hidden_states",    "num_aux_layers",           Fields.size),
)  # fmt: skip

# What must not be left of the training side: SGLang or transformers would act on it.
FORBIDDEN_KEYS = (
    "speculators_model_type",
    "speculators_config",
    "speculators_version",
    "transformer_layer_config",
    "auto_map",
    "quantization_config",
    "target_hidden_size",
)


def translate_config(
    draft: Draft,
    *,
    dtype: str,
    encoded_aux_layer_ids: Sequence[int] | None,
    requires: Sequence[str] = (),
) -> dict[str, Any]:
    """The config.json that SGLang's own loader accepts.

    Args:
        draft: what was trained.
        dtype: of the exported tensors ("bfloat16").
        encoded_aux_layer_ids: what makes SGLang capture the trained layers, None for its default.
        requires: findings that only the plugin's class resolves; any one selects that class.
    """
    eagle_config: dict[str, Any] = {"use_aux_hidden_state": True, "norm_before_fc": draft.norm_before_fc}
    if encoded_aux_layer_ids is not None:
        eagle_config["eagle_aux_hidden_state_layer_ids"] = list(encoded_aux_layer_ids)
    return {
        "architectures": [PLUGIN_ARCHITECTURE if requires else STOCK_ARCHITECTURE],
        "model_type": "llama",
        "dtype": dtype,
        "torch_dtype": dtype,
        **{key: getattr(draft, attribute) for key, attribute, _ in _KEYS},
        "tie_word_embeddings": False,
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


def read_exported_draft(config: Mapping[str, Any], where: str) -> Draft:
    """What an export computes, according to its config.json: `translate_config` inverted.

    Args:
        config: the decoded config.json of an export.
        where: what messages call it, usually its path.

    Raises:
        ExportInvalidError: the config is not one that this package writes and SGLang reads.
    """
    _require_draft_class(config, where)
    top = Fields(config, where, invalid_export)
    ours = Fields(top.mapping("eagle3_export"), f"{where}.eagle3_export", invalid_export)
    _require_agreement(config, top, where)
    values = {attribute: read(top, key) for key, attribute, read in _KEYS}
    trained_ids = ours.optional_ids("trained_aux_layer_ids")
    num_aux = values.pop("num_aux_layers")
    if num_aux != (len(trained_ids) if trained_ids else 3):
        raise _wrong(where, f"num_aux_hidden_states is {num_aux}, but the ids are {trained_ids}")
    rope = parse_rope({**config, "rope_scaling": None}, values["head_dim"], where, invalid_export)
    if rope != parse_rope({**config, "rope_parameters": None}, values["head_dim"], where, invalid_export):
        raise _wrong(where, "rope_parameters and rope_theta with rope_scaling differ")
    return Draft(
        layer_arch="qwen3" if values.pop("qk_norm") else "llama",
        **values,
        embed_requires_grad=ours.flag("keep_embed_tokens"),
        aux_layer_ids=trained_ids,
        rope=rope,
        sliding_windows=_windows(ours, values["num_layers"], where),
        verifier_name=None,
        verifier_architectures=(),
        ttt_steps=None,
        dtype=config["dtype"],
    )


def encoded_aux_layer_ids(config: Mapping[str, Any], where: str) -> tuple[int, ...] | None:
    """The aux layer ids as an export's config.json has them for SGLang; None where it leaves SGLang's default.

    Raises:
        ExportInvalidError: they are no list of whole numbers.
    """
    key = "eagle_aux_hidden_state_layer_ids"
    ids = Fields(config, where, invalid_export).mapping("eagle_config").get(key)
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(i) is int and -1 <= i < 2**31 for i in ids):
        raise _wrong(where, f"eagle_config.{key} is no list of layer ids")
    return tuple(ids)


def _require_draft_class(config: Mapping[str, Any], where: str) -> None:
    if config.get("architectures") not in ([STOCK_ARCHITECTURE], [PLUGIN_ARCHITECTURE]):
        raise _wrong(where, f"architectures is {config.get('architectures')!r}, no EAGLE-3 draft class")
    if config.get("model_type") != "llama":
        raise _wrong(where, f"model_type is {config.get('model_type')!r}, not 'llama'")
    left = [key for key in FORBIDDEN_KEYS if key in config]
    if left:
        raise _wrong(where, f"it holds {', '.join(left)}")


def _require_agreement(config: Mapping[str, Any], top: Fields, where: str) -> None:
    """Checks what is written twice, and the one key that may only say false."""
    if config.get("dtype") != config.get("torch_dtype") or not isinstance(config.get("dtype"), str):
        raise _wrong(where, "dtype and torch_dtype differ or are missing")
    if config.get("tie_word_embeddings") is not False:
        raise _wrong(where, "tie_word_embeddings is not false, so SGLang would use the embedding as lm_head")
    if bool(config.get("norm_before_fc")) != bool(top.mapping("eagle_config").get("norm_before_fc")):
        raise _wrong(where, "norm_before_fc and eagle_config.norm_before_fc differ")


def _windows(ours: Fields, num_layers: int, where: str) -> tuple[int | None, ...]:
    windows = ours.get("sliding_window")
    if not isinstance(windows, list) or len(windows) != num_layers:
        raise _wrong(where, "eagle3_export.sliding_window does not list one window per layer")
    for window in windows:
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise _wrong(where, f"eagle3_export.sliding_window holds {window!r}")
    return tuple(windows)


def _wrong(where: str, problem: str) -> Eagle3ExportError:
    return invalid_export(f"{where}: {problem}.", why="SGLang would not compute the trained draft.")
