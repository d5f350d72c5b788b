"""Reads an exported config.json back into what the draft computes: `config.translate_config` inverted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.sglang.config import PLUGIN_ARCHITECTURE, STOCK_ARCHITECTURE
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.fields import Fields
from eagle3_export.speculators_format.rope import parse_rope

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


def read_exported_draft(config: Mapping[str, Any], where: str) -> Draft:
    """What an export computes, according to its config.json.

    Raises:
        CheckpointError: the config is not one that this package writes and SGLang reads.
    """
    _require_draft_class(config, where)
    top = Fields(config, where)
    eagle = top.mapping("eagle_config")
    ours = top.mapping("eagle3_export")
    if config.get("dtype") != config.get("torch_dtype") or not isinstance(config.get("dtype"), str):
        raise _wrong(where, "dtype and torch_dtype differ or are missing")
    if config.get("tie_word_embeddings") is not False:
        raise _wrong(where, "tie_word_embeddings is not false, so SGLang would use the embedding as lm_head")
    if bool(config.get("norm_before_fc")) != bool(eagle.get("norm_before_fc")):
        raise _wrong(where, "norm_before_fc and eagle_config.norm_before_fc differ")
    trained_ids = Fields(ours, where, parent="eagle3_export").optional_ids("trained_aux_layer_ids")
    num_aux = top.size("num_aux_hidden_states")
    if num_aux != (len(trained_ids) if trained_ids else 3):
        raise _wrong(where, f"num_aux_hidden_states is {num_aux}, but the ids are {trained_ids}")
    num_layers = top.size("num_hidden_layers")
    head_dim = top.size("head_dim")
    rope = parse_rope({**config, "rope_scaling": None}, head_dim, where)
    if rope != parse_rope({**config, "rope_parameters": None}, head_dim, where):
        raise _wrong(where, "rope_parameters and rope_theta with rope_scaling differ")
    return Draft(
        layer_arch="qwen3" if top.flag("use_qk_norm") else "llama",
        vocab_size=top.size("vocab_size"),
        draft_vocab_size=top.size("draft_vocab_size"),
        hidden_size=top.size("hidden_size"),
        intermediate_size=top.size("intermediate_size"),
        num_layers=num_layers,
        num_attention_heads=top.size("num_attention_heads"),
        num_key_value_heads=top.size("num_key_value_heads"),
        head_dim=head_dim,
        max_position_embeddings=top.size("max_position_embeddings"),
        rms_norm_eps=top.number("rms_norm_eps"),
        initializer_range=top.number("initializer_range"),
        hidden_act=top.text("hidden_act", default="silu"),
        attention_bias=top.flag("attention_bias"),
        mlp_bias=top.flag("mlp_bias"),
        norm_before_residual=top.flag("norm_before_residual"),
        norm_before_fc=top.flag("norm_before_fc"),
        fc_norm=top.flag("fc_norm"),
        norm_output=top.flag("norm_output"),
        embed_requires_grad=Fields(ours, where, parent="eagle3_export").flag("keep_embed_tokens"),
        aux_layer_ids=trained_ids,
        rope=rope,
        sliding_windows=_windows(ours, num_layers, where),
        verifier_name=None,
        verifier_architectures=(),
        ttt_steps=None,
        dtype=config["dtype"],
    )


def _require_draft_class(config: Mapping[str, Any], where: str) -> None:
    if config.get("architectures") not in ([STOCK_ARCHITECTURE], [PLUGIN_ARCHITECTURE]):
        raise _wrong(where, f"architectures is {config.get('architectures')!r}, no EAGLE-3 draft class")
    if config.get("model_type") != "llama":
        raise _wrong(where, f"model_type is {config.get('model_type')!r}, not 'llama'")
    left = [key for key in FORBIDDEN_KEYS if key in config]
    if left:
        raise _wrong(where, f"it holds {', '.join(left)}")


def _windows(ours: Mapping[str, Any], num_layers: int, where: str) -> tuple[int | None, ...]:
    windows = ours.get("sliding_window")
    if not isinstance(windows, list) or len(windows) != num_layers:
        raise _wrong(where, "eagle3_export.sliding_window does not list one window per layer")
    for window in windows:
        if window is not None and (isinstance(window, bool) or not isinstance(window, int) or window < 1):
            raise _wrong(where, f"eagle3_export.sliding_window holds {window!r}")
    return tuple(windows)


def _wrong(where: str, problem: str) -> CheckpointError:
    return CheckpointError(
        f"{where}: {problem}.", why="SGLang would not compute the trained draft.", remedy="Export it again."
    )
