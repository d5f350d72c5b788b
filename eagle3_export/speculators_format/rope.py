"""Rotary position embeddings as a draft was trained with them, in one notation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from eagle3_export.errors import CheckpointError, Eagle3ExportError, Fault
from eagle3_export.speculators_format.fields import Fields, abridged

DEFAULT_THETA = 10000.0  # transformers 5.19, `PreTrainedConfig.default_theta`

# Types whose scaling starts from the length of pretraining; transformers 5 fills it in with
# max_position_embeddings (`modeling_rope_utils.py:standardize_rope_params`).
_FROM_PRETRAINING = ("llama3", "yarn", "longrope")
_REQUIRED_NUMBERS: Mapping[str, tuple[str, ...]] = {
    "linear": ("factor",),
    "dynamic": ("factor",),
    "llama3": ("factor", "low_freq_factor", "high_freq_factor"),
}
_OPTIONAL_NUMBERS = ("factor", "attention_factor", "beta_fast", "beta_slow", "mscale", "mscale_all_dim")
_MOST_STRETCHED = 2**40  # of one frequency; keeps what is computed from it finite


@dataclass(frozen=True, slots=True)
class Rope:
    """Rotary embedding of a draft.

    Attributes:
        type: "default", "linear", "dynamic", "yarn", "longrope" or "llama3" (or what the config names).
        theta: base of the frequencies.
        parameters: all other fields of the type, as the config has them (factor, beta_fast, ...).
        partial_rotary_factor: share of head_dim that is rotated, as the config has it.
        mrope_section: channels per position axis (temporal, height, width) in multimodal configs, else None.
    """

    type: str
    theta: float
    parameters: Mapping[str, Any] = field(default_factory=dict)
    partial_rotary_factor: float = 1.0
    mrope_section: tuple[int, ...] | None = None


def parse_rope(
    layer_config: Mapping[str, Any], head_dim: int, where: str, fault: Fault = CheckpointError
) -> Rope:
    """Reads either notation: `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before).

    Where a config has both, `rope_scaling` counts, as in transformers 5.19 (`convert_rope_params_to_dict`). Nested per
    layer type, `sliding_attention` counts, as in training (speculators 0.9.0, `flatten_rope_parameters`).

    Args:
        layer_config: the decoder's config, with the defaults of its class for keys that it leaves out.
        head_dim: channels of one attention head.
        where: what messages call the config.
        fault: the error to raise.

    Raises:
        CheckpointError: a field has the wrong type or is missing; `fault` may name another error.
    """
    notation = "rope_scaling" if layer_config.get("rope_scaling") else "rope_parameters"
    where_rope = f"{where}.{notation}"
    values = _flat(layer_config.get(notation) or {}, where_rope, fault)
    legacy_type = values.pop("type", None)
    rope_type = values.pop("rope_type", None) or legacy_type or "default"
    if not isinstance(rope_type, str):
        raise _wrong(f"{where_rope}.rope_type is not a string", fault)
    if rope_type == "mrope":  # the name before transformers 4.45; positions apart, it is the default type
        rope_type = "default"
    fields, outer = Fields(values, where_rope, fault), Fields(layer_config, where, fault)
    theta = fields.number("rope_theta", default=outer.number("rope_theta", default=DEFAULT_THETA))
    factor = fields.number(
        "partial_rotary_factor", default=outer.number("partial_rotary_factor", default=1.0)
    )
    section = values.pop("mrope_section", None)
    if section is not None and not (isinstance(section, list) and all(type(item) is int for item in section)):
        raise _wrong(f"{where_rope}.mrope_section is no list of sizes", fault)
    for key in ("rope_theta", "partial_rotary_factor", "mrope_interleaved"):
        values.pop(key, None)
    if rope_type in _FROM_PRETRAINING:
        _fill_original_length(rope_type, values, fields, outer)
    _check_numbers(rope_type, values, fields)
    if rope_type == "longrope":
        _check_factors(values, fields, head_dim)
    return Rope(rope_type, theta, values, factor, tuple(section) if section is not None else None)


def _flat(raw: Any, where: str, fault: Fault) -> dict[str, Any]:
    if not isinstance(raw, Mapping):
        raise _wrong(f"{where} is not an object", fault)
    nested = {key: value for key, value in raw.items() if isinstance(value, Mapping)}
    if not nested:
        return dict(raw)
    if "sliding_attention" in nested:
        return dict(nested["sliding_attention"])
    raise _wrong(f"{where} is nested, but not per attention type", fault)


def _fill_original_length(rope_type: str, values: dict[str, Any], fields: Fields, outer: Fields) -> None:
    key = "original_max_position_embeddings"
    outside = outer.optional_size(key)
    if outside is not None:
        values[key] = outside
    elif values.get(key) is None:
        values[key] = outer.size("max_position_embeddings")
    # longrope divides by the logarithm of the length, which is 0 for a length of 1.
    least = 2 if rope_type == "longrope" else 1
    if fields.number(key) < least:
        raise _wrong(f"{fields.where}.{key} is {abridged(values[key])}, less than {least}", fields.fault)


def _check_numbers(rope_type: str, values: Mapping[str, Any], fields: Fields) -> None:
    for key in _REQUIRED_NUMBERS.get(rope_type, ()):
        fields.number(key)
    for key in _OPTIONAL_NUMBERS:
        if values.get(key) is not None:
            fields.number(key)


def _check_factors(values: Mapping[str, Any], fields: Fields, head_dim: int) -> None:
    """Checks the two lists of longrope: how far each of the head's frequencies is stretched."""
    for key in ("short_factor", "long_factor"):
        factors = values.get(key)
        if not isinstance(factors, list) or len(factors) != head_dim // 2:
            raise _wrong(
                f"{fields.where}.{key} does not hold one number for each of {head_dim // 2} frequencies",
                fields.fault,
            )
        for item in factors:
            number = isinstance(item, (int, float)) and not isinstance(item, bool)
            if not number or not 0 < item < _MOST_STRETCHED:  # NaN is in no interval
                raise _wrong(
                    f"{fields.where}.{key} holds {abridged(item)}, not a positive number", fields.fault
                )


def _wrong(problem: str, fault: Fault) -> Eagle3ExportError:
    return fault(
        f"{problem}.",
        why="The positions would be computed differently.",
        remedy="Save the checkpoint again, or correct its config.json.",
    )
