"""Rotary embeddings: written so that SGLang computes the positions of training, or refused.

Training is transformers' `LlamaRotaryEmbedding` and `Qwen3RotaryEmbedding` (5.19, `modeling_rope_utils.py`) over plain
positions; serving is SGLang's `get_rope` (0.5.23, `layers/rotary_embedding/factory.py`).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from packaging.version import Version

from eagle3_export.compatibility.findings import Finding, Level, finding
from eagle3_export.sglang.capabilities import Capabilities
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.speculators_format.rope import DEFAULT_THETA

SHARED_TYPES = ("default", "linear", "dynamic", "llama3", "yarn", "longrope")
# sglang 0.5.7 on, `YaRNScalingRotaryEmbedding(truncate=...)`; before, it always truncates.
_TRUNCATE_SINCE = "0.5.7"


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


def rope_findings(draft: Draft, known: Capabilities, *, stock_only: bool) -> list[Finding]:
    """What there is to know about the positions in one release."""
    rope = draft.rope
    findings: list[Finding] = []
    if rope.type not in SHARED_TYPES:
        findings.append(finding("rope-type", "incompatible", type=rope.type))
    elif not known.reads_theta and rope.theta != DEFAULT_THETA:
        findings.append(finding("rope-release", "incompatible", version=known.version, what="the theta"))
    elif rope.parameters.get("truncate") is False and Version(known.version) < Version(_TRUNCATE_SINCE):
        findings.append(
            finding("rope-release", "incompatible", version=known.version, what="YaRN without truncation")
        )
    if rope.partial_rotary_factor != 1.0:
        # The default type ignores it in training (`compute_default_rope_parameters`): all channels rotate.
        level: Level = "info" if rope.type in ("default", "dynamic") else "incompatible"
        identifier = "partial-rotary-ignored" if level == "info" else "partial-rotary"
        findings.append(finding(identifier, level, factor=rope.partial_rotary_factor, type=rope.type))
    if rope.mrope_section is not None:
        findings.append(finding("mrope", "info"))
    if rope.type == "dynamic":
        findings.append(finding("dynamic-rope", "info", length=draft.max_position_embeddings))
    if rope.type == "longrope":
        length = rope.parameters["original_max_position_embeddings"]
        findings.append(finding("longrope", "incompatible" if stock_only else "inexact", length=length))
    return findings


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
