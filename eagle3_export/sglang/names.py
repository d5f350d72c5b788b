"""Tensor names: from speculators' to those that SGLang's draft class loads."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from types import MappingProxyType

from eagle3_export.errors import CheckpointError

# speculators' name -> SGLang's, in `re.fullmatch` patterns, first match wins. Layer 0 becomes `midlayer`, which
# every release loads (0.5.12 on maps it back to `layers.0`). Deeper layers exist from 0.5.12 on and normalise
# their input with `hidden_norm` (sglang 0.5.12 to 0.5.23, `models/llama_eagle3.py:LlamaDecoderLayer.forward`); their
# own `input_layernorm` is built there too, filled by nothing and read by nothing.
_RENAMES: tuple[tuple[str, str], ...] = (
    (r"(embed_tokens|fc|norm|lm_head|input_norm)\.weight", r"\1.weight"),
    (r"fc_norm\.(\d+)\.weight", r"fc_norm.\1.weight"),
    (r"d2t|t2d", r"\g<0>"),
    (r"layers\.0\.(hidden_norm|input_layernorm|post_attention_layernorm)\.weight", r"midlayer.\1.weight"),
    (r"layers\.0\.self_attn\.([qkvo]_proj\.(?:weight|bias)|[qk]_norm\.weight)", r"midlayer.self_attn.\1"),
    (r"layers\.0\.mlp\.((?:gate|up|down)_proj\.(?:weight|bias))", r"midlayer.mlp.\1"),
    (r"layers\.([1-9]\d*)\.input_layernorm\.weight", r"layers.\1.hidden_norm.weight"),
    (r"layers\.([1-9]\d*)\.post_attention_layernorm\.weight", r"\g<0>"),
    (r"layers\.([1-9]\d*)\.self_attn\.([qkvo]_proj\.(weight|bias)|[qk]_norm\.weight)", r"\g<0>"),
    (r"layers\.([1-9]\d*)\.mlp\.(gate|up|down)_proj\.(weight|bias)", r"\g<0>"),
)

LEFT_OUT: Mapping[str, str] = MappingProxyType(
    {
        "verifier_norm.weight": "a copy of the verifier's final norm, used in training only",
        "verifier_lm_head.weight": "a copy of the verifier's lm_head, used in training only",
    }
)
DROPPED_EMBEDDING = "left out on request: SGLang uses the target's embedding"


def translate_names(names: Iterable[str], *, keep_embed_tokens: bool = True) -> dict[str, str]:
    """Maps speculators' tensor names to SGLang's, in the given order; `LEFT_OUT` names are not in it.

    Raises:
        CheckpointError: a name that no rule knows, quoting it.
    """
    translated: dict[str, str] = {}
    for name in names:
        if name in LEFT_OUT or (name == "embed_tokens.weight" and not keep_embed_tokens):
            continue
        for pattern, replacement in _RENAMES:
            match = re.fullmatch(pattern, name)
            if match:
                translated[name] = match.expand(replacement)
                break
        else:
            raise CheckpointError(
                f"SGLang's EAGLE-3 class has no parameter for {name!r}.",
                why="It would be dropped without a word.",
                remedy="Check where this checkpoint comes from.",
            )
    if len(set(translated.values())) != len(translated):
        raise CheckpointError("Two tensors would get the same name.", remedy="Check the checkpoint's names.")
    return translated


def dropped_names(names: Iterable[str], *, keep_embed_tokens: bool = True) -> dict[str, str]:
    """The names that are not exported, each with the reason."""
    dropped = {name: LEFT_OUT[name] for name in names if name in LEFT_OUT}
    if not keep_embed_tokens and "embed_tokens.weight" in names:
        dropped["embed_tokens.weight"] = DROPPED_EMBEDDING
    return dropped
