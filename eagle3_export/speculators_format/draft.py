"""What an EAGLE-3 draft computes, in neutral words, read from the config.json that speculators saves."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.fields import Fields, abridged
from eagle3_export.speculators_format.rope import Rope, parse_rope

# Decoder defaults where a saved config leaves a key out (`PretrainedConfig.to_diff_dict` may): transformers,
# `LlamaConfig` and `Qwen3Config`, the only two layer types that speculators trains EAGLE-3 drafts with
# (speculators 0.9.0, `models/eagle3/model_definitions.py`, `model_classes`).
_DEFAULTS: Mapping[str, Mapping[str, Any]] = MappingProxyType(
    {
        "llama": {
            "vocab_size": 32000,
            "hidden_size": 4096,
            "intermediate_size": 11008,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": None,
            "head_dim": None,
            "max_position_embeddings": 2048,
        },
        "qwen3": {
            "vocab_size": 151936,
            "hidden_size": 4096,
            "intermediate_size": 22016,
            "num_hidden_layers": 32,
            "num_attention_heads": 32,
            "num_key_value_heads": 32,
            "head_dim": 128,
            "max_position_embeddings": 32768,
        },
    }
)

MAX_TTT_STEPS = 64  # more draft steps than anyone trains or serves

_OTHER_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "peagle": "a parallel-drafting P-EAGLE draft",
        "dflash": "a DFlash block-diffusion draft",
        "dflash2": "a DFlash2 block-diffusion draft",
        "dspark": "a DSpark block-diffusion draft",
        "xpress": "an XPress draft",
        "mtp": "a multi-token-prediction (MTP) head",
        "eagle": "an EAGLE-1/2 or HASS draft",
        "mlp": "an MLP speculator",
        "independent": "an independent draft model",
    }
)


@dataclass(frozen=True, slots=True)
class Draft:
    """What a draft computes; sizes in elements, layer ids 0-based.

    Attributes:
        layer_arch: decoder layer type, "llama" or "qwen3" (which has q/k norms).
        vocab_size: rows of the draft's embedding, which is the verifier's vocabulary.
        draft_vocab_size: rows of the draft's lm_head.
        norm_before_residual: layer 0 takes its residual after `hidden_norm` instead of before.
        norm_before_fc: one RMSNorm (`input_norm`) over the concatenated aux hidden states.
        fc_norm: one RMSNorm per aux hidden state.
        norm_output: the hidden state handed to the next TTT step is the normalised one.
        embed_requires_grad: the embedding was trained, so it may differ from the verifier's.
        aux_layer_ids: id i is the input of the verifier's layer i, the number of layers its final hidden
            state; None: the config names none, which means [2, n // 2, n - 3].
        sliding_windows: keys that a query of each layer sees, itself included; None: all.
        ttt_steps: draft steps trained (1 to 64), None when not recorded.
        dtype: dtype of the saved tensors as the config spells it ("bfloat16"), None when not recorded.
        speculators_version: the release that saved it, None when not recorded.
    """

    layer_arch: str
    vocab_size: int
    draft_vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    initializer_range: float
    hidden_act: str
    attention_bias: bool
    mlp_bias: bool
    norm_before_residual: bool
    norm_before_fc: bool
    fc_norm: bool
    norm_output: bool
    embed_requires_grad: bool
    aux_layer_ids: tuple[int, ...] | None
    rope: Rope
    sliding_windows: tuple[int | None, ...]
    verifier_name: str | None
    verifier_architectures: tuple[str, ...]
    ttt_steps: int | None
    dtype: str | None
    speculators_version: str | None = None

    @property
    def num_aux_layers(self) -> int:
        """How many aux hidden states `fc` takes (speculators 0.9.0, `Eagle3DraftModel.__init__`)."""
        return len(self.aux_layer_ids) if self.aux_layer_ids else 3

    @property
    def qk_norm(self) -> bool:
        """Whether each attention normalises its queries and keys (Qwen3 layers)."""
        return self.layer_arch == "qwen3"

    @property
    def reduced_vocabulary(self) -> bool:
        """Whether the draft can say only some of the verifier's tokens."""
        return self.draft_vocab_size != self.vocab_size


def parse_draft(config: Mapping[str, Any], where: str) -> Draft:
    """Reads a speculators config.json, of any release from 0.3 to 0.9.

    Args:
        config: the decoded document.
        where: what to call it in messages, usually its path.

    Raises:
        CheckpointError: it is of another kind, lacks a key, or a value makes no sense.
    """
    _refuse_other_kinds(config, where)
    top = Fields(config, where)
    layer_config = top.mapping("transformer_layer_config")
    layer_arch = layer_config.get("model_type", "qwen3")
    if not isinstance(layer_arch, str) or layer_arch not in _DEFAULTS:
        raise CheckpointError(
            f"{where}: transformer_layer_config.model_type is {abridged(layer_arch)}.",
            why="EAGLE-3 drafts have Llama or Qwen3 decoder layers; MLA, MoE and others compute something else.",
            remedy="Train with --draft-arch llama.",
        )
    layer_config = {**_DEFAULTS[layer_arch], **layer_config}
    layer = Fields(layer_config, f"{where}: transformer_layer_config")
    heads = layer.size("num_attention_heads")
    hidden_size = layer.size("hidden_size")
    num_layers = layer.size("num_hidden_layers", most=1024)
    vocab_size = layer.size("vocab_size")
    head_dim = layer.optional_size("head_dim") or hidden_size // heads
    aux_layer_ids = top.optional_ids("eagle_aux_hidden_state_layer_ids")
    draft = Draft(
        layer_arch=layer_arch,
        vocab_size=vocab_size,
        draft_vocab_size=top.size("draft_vocab_size", default=32000),
        hidden_size=hidden_size,
        intermediate_size=layer.size("intermediate_size"),
        num_layers=num_layers,
        num_attention_heads=heads,
        num_key_value_heads=layer.optional_size("num_key_value_heads") or heads,
        head_dim=head_dim,
        max_position_embeddings=layer.size("max_position_embeddings"),
        rms_norm_eps=layer.number("rms_norm_eps", default=1e-6),
        initializer_range=layer.number("initializer_range", default=0.02),
        hidden_act=layer.text("hidden_act", default="silu"),
        attention_bias=layer.flag("attention_bias"),
        mlp_bias=layer_arch == "llama" and layer.flag("mlp_bias"),
        norm_before_residual=top.flag("norm_before_residual"),
        norm_before_fc=top.flag("norm_before_fc"),
        fc_norm=top.flag("fc_norm"),
        norm_output=top.flag("norm_output"),
        embed_requires_grad=top.flag("embed_requires_grad"),
        aux_layer_ids=aux_layer_ids,
        rope=parse_rope(layer_config, head_dim, layer.where),
        sliding_windows=_sliding_windows(layer, num_layers, top.get("speculators_version")),
        dtype=_dtype(top, layer),
        **_provenance(top),
    )
    _check_consistency(draft, top)
    return draft


def _refuse_other_kinds(config: Mapping[str, Any], where: str) -> None:
    kind = config.get("speculators_model_type")
    if kind == "eagle3":
        return
    if isinstance(kind, str) and kind:
        raise CheckpointError(
            f"{where} describes {_OTHER_KINDS.get(kind, f'a draft of kind {kind!r}')}"
            f" (speculators_model_type {kind!r}).",
            why="Only EAGLE-3 drafts can be exported.",
            remedy="Train with --speculator-type eagle3.",
        )
    if "draft_vocab_size" in config and "transformer_layer_config" not in config:
        raise CheckpointError(
            f"{where} already describes a flat EAGLE-3 draft, not one that speculators saved.",
            why="Its names and its layer ids follow another convention.",
            remedy="Serve it as it is, or name the speculators checkpoint it came from.",
        )
    raise CheckpointError(
        f"{where} has no speculators_model_type.",
        why="Without it this is not a draft that speculators saved.",
        remedy="Name a checkpoint directory that `speculators train` wrote.",
    )


def _sliding_windows(layer: Fields, num_layers: int, saved_by: Any) -> tuple[int | None, ...]:
    """Per layer, as `Eagle3DraftModel.__init__` decides it (speculators 0.9.0): only `layer_types` counts.

    speculators 0.3 to 0.6 train with full attention whatever the config says.
    """
    layer_types = layer.get("layer_types")
    if layer_types is None or (isinstance(saved_by, str) and re.match(r"0\.[0-6]\.", saved_by)):
        return (None,) * num_layers
    if not isinstance(layer_types, list) or not all(
        t in ("full_attention", "sliding_attention") for t in layer_types
    ):
        raise CheckpointError(
            f"{layer.where}.layer_types is {abridged(layer_types)}.",
            why="Only full_attention and sliding_attention are known.",
            remedy="Train the draft with full or sliding-window attention.",
        )
    if len(layer_types) != num_layers:
        raise CheckpointError(
            f"{layer.where}.layer_types has {len(layer_types)} entries for {num_layers} layers.",
            why="It is unclear which layers use a sliding window.",
            remedy="Save the checkpoint again, or correct its config.json.",
        )
    window = layer.optional_size("sliding_window")
    # A sliding layer without a window sees everything: `create_combined_mask_mod(sliding_window=None)`.
    return tuple(window if t == "sliding_attention" else None for t in layer_types)


def _dtype(top: Fields, layer: Fields) -> str | None:
    for source in (top, layer):
        for key in ("dtype", "torch_dtype"):
            value = source.get(key)
            if isinstance(value, str):
                return value.removeprefix("torch.")
    return None


def _provenance(top: Fields) -> dict[str, Any]:
    speculators_config = top.mapping("speculators_config", default={})
    verifier = Fields(speculators_config, f"{top.where}: speculators_config").mapping("verifier", default={})
    name = verifier.get("name_or_path")
    architectures = verifier.get("architectures")
    proposals = speculators_config.get("proposal_methods")
    steps = None
    for proposal in proposals if isinstance(proposals, list) else ():
        tokens = proposal.get("speculative_tokens") if isinstance(proposal, Mapping) else None
        if type(tokens) is int and 1 <= tokens <= MAX_TTT_STEPS:
            steps = tokens
    version = top.get("speculators_version")
    return {
        "speculators_version": version if isinstance(version, str) else None,
        "verifier_name": name if isinstance(name, str) and name else None,
        "verifier_architectures": tuple(a for a in architectures if isinstance(a, str))
        if isinstance(architectures, list)
        else (),
        "ttt_steps": steps,
    }


def _check_consistency(draft: Draft, top: Fields) -> None:
    target_size = top.get("target_hidden_size")
    problems = {
        "norm_before_fc and fc_norm are both set, and they exclude each other": draft.norm_before_fc
        and draft.fc_norm,
        f"{draft.num_attention_heads} attention heads cannot share {draft.num_key_value_heads} key/value heads": (
            draft.num_attention_heads % draft.num_key_value_heads != 0
        ),
        f"draft_vocab_size {draft.draft_vocab_size} exceeds vocab_size {draft.vocab_size}": (
            draft.draft_vocab_size > draft.vocab_size
        ),
        f"target_hidden_size {abridged(target_size)} differs from hidden_size {draft.hidden_size}": (
            target_size not in (None, draft.hidden_size)
        ),
        "the weights are quantised (quantization_config)": top.get("quantization_config") is not None,
        "eagle_aux_hidden_state_layer_ids names a layer twice": (
            draft.aux_layer_ids is not None and len(set(draft.aux_layer_ids)) != len(draft.aux_layer_ids)
        ),
    }
    for problem, found in problems.items():
        if found:
            raise CheckpointError(
                f"{top.where}: {problem}.",
                why="No served model could compute what this config says.",
                remedy="Save the checkpoint again with the speculators release that trained it.",
            )
