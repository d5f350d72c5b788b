"""Rules about rotary embeddings. How they are written for SGLang stands in `sglang/rope.py`."""

from __future__ import annotations

from packaging.version import Version

from eagle3_export.compatibility.case import Case, Rule, When
from eagle3_export.compatibility.findings import Level
from eagle3_export.sglang.rope import SHARED_TYPES
from eagle3_export.speculators_format.rope import DEFAULT_THETA

# sglang 0.5.7 on, `YaRNScalingRotaryEmbedding(truncate=...)`; before, it always truncates.
_TRUNCATE_SINCE = Version("0.5.7")
# The default type ignores partial_rotary_factor in training (`compute_default_rope_parameters`): all channels rotate.
_ROTATE_ALL = ("default", "dynamic")


def _theta_lost(case: Case) -> bool:
    rope = case.draft.rope
    return rope.type in SHARED_TYPES and not case.known.reads_theta and rope.theta != DEFAULT_THETA


def _truncation_lost(case: Case) -> bool:
    rope = case.draft.rope
    untruncated = rope.type in SHARED_TYPES and rope.parameters.get("truncate") is False
    return untruncated and not _theta_lost(case) and Version(case.version) < _TRUNCATE_SINCE


def _partial(case: Case, *, ignored: bool) -> bool:
    rope = case.draft.rope
    return rope.partial_rotary_factor != 1.0 and (rope.type in _ROTATE_ALL) == ignored


def _longrope(case: Case) -> Level | None:
    if case.draft.rope.type != "longrope":
        return None
    return "incompatible" if case.target.runtime == "stock" else "inexact"


ROPE_RULES: tuple[Rule, ...] = (
    Rule(
        "rope-type",
        When("incompatible", lambda case: case.draft.rope.type not in SHARED_TYPES),
        "The draft's rotary embedding is of type {case.draft.rope.type}, which training and SGLang do not both "
        "compute.",
        "Train with a --draft-config whose rope_type is default, linear, dynamic, llama3, yarn or longrope.",
    ),
    Rule(
        "rope-release",
        When("incompatible", _theta_lost),
        "SGLang {case.version} does not read the theta of the draft's rotary embedding.",
        "Serve with SGLang 0.5.10 or later.",
    ),
    Rule(
        "rope-release",
        When("incompatible", _truncation_lost),
        "SGLang {case.version} does not read YaRN without truncation, which is the draft's rotary embedding.",
        "Serve with SGLang 0.5.10 or later.",
    ),
    Rule(
        "partial-rotary-ignored",
        When("info", lambda case: _partial(case, ignored=True)),
        "partial_rotary_factor is {case.draft.rope.partial_rotary_factor}; training ignores it for rope_type "
        "{case.draft.rope.type} and rotates all channels, so the export leaves it out and SGLang rotates all of them "
        "too.",
        "Nothing.",
    ),
    Rule(
        "partial-rotary",
        When("incompatible", lambda case: _partial(case, ignored=False)),
        "partial_rotary_factor is {case.draft.rope.partial_rotary_factor} for rope_type {case.draft.rope.type}; which "
        "channels training rotated is not recorded.",
        "Train with full rotary embeddings (the default --draft-mrope-full-head-hack, or a --draft-config).",
    ),
    Rule(
        "mrope",
        When("info", lambda case: case.draft.rope.mrope_section is not None),
        "The rotary embedding has mrope_section. Training used plain positions, so the export leaves it out and "
        "SGLang uses plain positions too.",
        "Nothing.",
    ),
    Rule(
        "dynamic-rope",
        When("info", lambda case: case.draft.rope.type == "dynamic"),
        "The draft's rotary embedding is dynamic. Up to {case.draft.max_position_embeddings} positions training "
        "computes the default one, SGLang never does; so the export says default.",
        "Serve with --context-length {case.draft.max_position_embeddings}, or less.",
    ),
    Rule(
        "longrope",
        _longrope,
        "The draft's rotary embedding is longrope. Beyond "
        "{case.draft.rope.parameters[original_max_position_embeddings]} positions training rotates a whole sequence "
        "by the long factors, SGLang each key by those of the time when it was cached.",
        "Serve with --context-length {case.draft.rope.parameters[original_max_position_embeddings]}, up to which both "
        "compute the same.",
    ),
)
