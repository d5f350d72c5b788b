"""Rotary position embeddings as a draft was trained with them, in one notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.fields import Fields

DEFAULT_THETA = 10000.0


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of a draft.

    Attributes:
        type: "default", "linear", "dynamic", "yarn", "longrope" or "llama3" (or what the config names).
        theta: base of the frequencies.
        parameters: all other fields of the type, as the config has them (factor, beta_fast, ...).
        partial_rotary_factor: share of head_dim that is rotated.
        mrope_section: channels per position axis (temporal, height, width) in multimodal configs, else None.
    """

    type: str
    theta: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    partial_rotary_factor: float = 1.0
    mrope_section: tuple[int, ...] | None = None


def parse_rope(layer_config: Mapping[str, Any], head_dim: int, where: str) -> Rope:
    """Reads either notation: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Nested per layer type, `sliding_attention` counts, as in training (speculators 0.9.0,
    `models/utils.py:flatten_rope_parameters`).

    Raises:
        CheckpointError: a field has the wrong type.
    """
    parameters = layer_config.get("rope_parameters")
    scaling = layer_config.get("rope_scaling")
    notation = "rope_parameters" if parameters else "rope_scaling"
    raw = parameters or scaling or {}
    if not isinstance(raw, Mapping):
        raise CheckpointError(
            f"{where}.{notation} is not an object.",
            why="The positions would be computed differently.",
            remedy="Save the checkpoint again, or correct its config.json.",
        )
    if isinstance(raw.get("sliding_attention"), Mapping):
        raw = raw["sliding_attention"]
    values = dict(raw)
    fields = Fields(values, f"{where}.{notation}")
    outer = Fields(layer_config, where)
    rope_type = values.pop("rope_type", None) or values.pop("type", None) or "default"
    values.pop("type", None)
    if not isinstance(rope_type, str):
        raise CheckpointError(f"{where}.{notation}.rope_type is not a string.", remedy="Correct config.json.")
    theta = fields.number("rope_theta", default=outer.number("rope_theta", default=DEFAULT_THETA))
    values.pop("rope_theta", None)
    factor = fields.number(
        "partial_rotary_factor", default=outer.number("partial_rotary_factor", default=1.0)
    )
    values.pop("partial_rotary_factor", None)
    section = values.pop("mrope_section", None)
    if section is not None and not (
        isinstance(section, list) and all(isinstance(item, int) for item in section)
    ):
        raise CheckpointError(f"{where}.{notation}.mrope_section is no list of sizes.", remedy="Correct it.")
    values.pop("mrope_interleaved", None)
    return Rope(rope_type, theta, values, factor, tuple(section) if section is not None else None)
