"""Rotary embeddings: written so that SGLang computes the positions of training, or refused.

Training is transformers' `LlamaRotaryEmbedding` and `Qwen3RotaryEmbedding` (5.19, `modeling_rope_utils.py`) over plain
positions; serving is SGLang's `get_rope` (0.5.23, `layers/rotary_embedding/factory.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from eagle3_export.speculators_format.draft import Draft

# The types that training and SGLang both compute.
SHARED_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")


def rope_fields(draft: Draft) -> dict[str, Any]:
    """RoPE in both notations: transformers 5 reads `rope_parameters`, earlier ones the other two."""
    served = served_parameters(draft)
    return {
        "rope_theta": draft.rope.theta,
        "rope_scaling": None if served["rope_type"] == "default" else served,
        "rope_parameters": {**served, "rope_theta": draft.rope.theta},
    }


def served_parameters(draft: Draft) -> dict[str, Any]:
    """What makes SGLang compute the trained positions, with `rope_type` and without theta."""
    rope, values = draft.rope, draft.rope.parameters
    if rope.type == "linear":
        return {"rope_type": "linear", "factor": values["factor"]}
    if rope.type == "llama3":
        keys = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
        return {"rope_type": "llama3", **{key: values[key] for key in keys}}
    if rope.type == "yarn":
        return _yarn(values, draft.max_position_embeddings)
    if rope.type == "longrope":
        return _longrope(values, draft.max_position_embeddings)
    # "default", and "dynamic", which up to max_position_embeddings is the default in transformers, while SGLang
    # stretches every position (`DynamicNTKScalingRotaryEmbedding`).
    return {"rope_type": "default"}


def _yarn(values: Mapping[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    original = values["original_max_position_embeddings"]
    factor = float(values.get("factor") or max_position_embeddings / original)
    simple = _magnitude(factor, 1.0)
    attention = values.get("attention_factor")
    if attention is None and values.get("mscale") and values.get("mscale_all_dim"):
        attention = _magnitude(factor, values["mscale"]) / _magnitude(factor, values["mscale_all_dim"])
    served = {
        "rope_type": "yarn",
        "factor": factor,
        "original_max_position_embeddings": original,
        "beta_fast": values.get("beta_fast") or 32,
        "beta_slow": values.get("beta_slow") or 1,
    }
    if values.get("truncate") is False:
        served["truncate"] = False
    if attention is not None:
        # SGLang multiplies its own magnitude by attn_factor; transformers replaces it by attention_factor.
        served |= {"attention_factor": attention, "attn_factor": attention / simple}
    return served


def _magnitude(factor: float, scale: float) -> float:
    return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0


def _longrope(values: Mapping[str, Any], max_position_embeddings: int) -> dict[str, Any]:
    original = values["original_max_position_embeddings"]
    factor = float(values.get("factor") or max_position_embeddings / original)
    attention = values.get("attention_factor")
    if attention is None:
        attention = 1.0 if factor <= 1 else math.sqrt(1 + math.log(factor) / math.log(original))
    return {
        "rope_type": "longrope",
        "factor": factor,
        "original_max_position_embeddings": original,
        "short_factor": list(values["short_factor"]),
        "long_factor": list(values["long_factor"]),
        "attention_factor": attention,
        # SGLang computes the magnitude from max_position_embeddings unless told (`Phi3LongRoPEScaledRotaryEmbedding`).
        "short_mscale": attention,
        "long_mscale": attention,
    }


def context_length(config: Mapping[str, Any]) -> int | None:
    """The context length that SGLang derives from a config (0.5.23, `utils/hf_transformers`, `get_context_length`)."""
    rope = config.get("rope_scaling") or config.get("rope_parameters")
    factor = 1.0
    if isinstance(rope, Mapping) and "original_max_position_embeddings" not in rope:
        scaled = rope.get("rope_type", rope.get("type")) != "llama3"
        value = rope.get("factor")
        factor = float(value) if scaled and isinstance(value, (int, float)) else 1.0
    keys = ("max_sequence_length", "seq_length", "max_seq_len", "model_max_length", "max_position_embeddings")
    length = next((config[key] for key in keys if isinstance(config.get(key), int)), None)
    return int(factor * length) if length is not None else None


def draft_context_length(draft: Draft) -> int:
    """The context length that SGLang derives from the config.json of this draft's export."""
    length = context_length({"max_position_embeddings": draft.max_position_embeddings, **rope_fields(draft)})
    return length if length is not None else draft.max_position_embeddings
