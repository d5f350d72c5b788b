"""The tensors that a draft must consist of: names, shapes and dtypes, checked against its config."""

from __future__ import annotations

import re
from collections.abc import Mapping

from eagle3_export.errors import CheckpointError
from eagle3_export.speculators_format.draft import Draft
from eagle3_export.storage.safetensors_file import TensorEntry

Shape = tuple[int, ...]

FLOAT_DTYPES: Mapping[str, str] = {
    "BF16": "bfloat16",
    "F16": "float16",
    "F32": "float32",
}
INTEGER_DTYPES = ("I64", "I32")
MASK_DTYPES = ("BOOL", "U8")

# Training-time copies of the verifier's weights. speculators leaves them out since 0.4
# (`Eagle3DraftModel._keys_to_ignore_on_save`); serving never reads them.
TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight")

# Wrappers put these around names: DDP, torch.compile, FSDP 1, activation checkpointing.
_WRAPPER_SEGMENTS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WRAPPER_PREFIXES = ("module.", "draft_model.")

# Names that give away another kind of decoder layer.
_FOREIGN_LAYERS: tuple[tuple[str, str], ...] = (
    (r"\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj|q_b_proj|fused_qkv_a_proj)", "multi-head latent attention (MLA)"),
    (r"\.mlp\.(experts|gate\.|router|shared_expert)|\.(block_sparse_moe|feed_forward)\.", "mixture of experts"),
    (r"\.(linear_attn|mamba|mixer)\.", "linear attention or state-space layers"),
    (r"(^|\.)(weight_packed|weight_scale(_inv)?|qweight|qzeros|scales|input_scale|g_idx)$", "quantised weights"),
    (r"(^|\.)mtp(\.|_)", "multi-token prediction"),
    (r"^(mask_embedding|mask_hidden|markov|confidence)", "another drafting algorithm"),
)  # fmt: skip


def unwrap_names(names: Mapping[str, TensorEntry], where: str) -> dict[str, str]:
    """Maps each stored name to the name without the prefixes of training wrappers.

    Raises:
        CheckpointError: two tensors get the same name.
    """
    plain: dict[str, str] = {}
    for name in names:
        bare = name
        for segment in _WRAPPER_SEGMENTS:
            bare = bare.replace(segment, "")
        while bare.startswith(_WRAPPER_PREFIXES):
            bare = bare.split(".", 1)[1]
        plain[name] = bare
    if len(set(plain.values())) != len(plain):
        twice = sorted({bare for bare in plain.values() if list(plain.values()).count(bare) > 1})
        raise CheckpointError(
            f"{where} holds {', '.join(twice[:5])} twice, with and without a wrapper's prefix.",
            why="It is unclear which of them was trained.",
            remedy="Save the unwrapped model.",
        )
    return plain


def expected_shapes(draft: Draft) -> dict[str, Shape]:
    """Name and shape of every trained tensor of `draft`, in speculators' names (without d2t and t2d).

    Source: speculators 0.9.0, `Eagle3DraftModel.__init__` and `Eagle3FirstLayerMixin`.
    """
    hidden, aux = draft.hidden_size, draft.num_aux_layers
    shapes: dict[str, Shape] = {
        "embed_tokens.weight": (draft.vocab_size, hidden),
        "fc.weight": (hidden, aux * hidden),
        "norm.weight": (hidden,),
        "lm_head.weight": (draft.draft_vocab_size, hidden),
    }
    if draft.norm_before_fc:
        shapes["input_norm.weight"] = (aux * hidden,)
    if draft.fc_norm:
        shapes.update({f"fc_norm.{index}.weight": (hidden,) for index in range(aux)})
    for index in range(draft.num_layers):
        shapes.update({f"layers.{index}.{name}": shape for name, shape in _layer_shapes(draft, index)})
    return shapes


def _layer_shapes(draft: Draft, index: int) -> list[tuple[str, Shape]]:
    hidden, inner = draft.hidden_size, draft.intermediate_size
    attention_in = 2 * hidden if index == 0 else hidden
    q_size = draft.num_attention_heads * draft.head_dim
    kv_size = draft.num_key_value_heads * draft.head_dim
    shapes: list[tuple[str, Shape]] = [
        ("input_layernorm.weight", (hidden,)),
        ("post_attention_layernorm.weight", (hidden,)),
        ("self_attn.q_proj.weight", (q_size, attention_in)),
        ("self_attn.k_proj.weight", (kv_size, attention_in)),
        ("self_attn.v_proj.weight", (kv_size, attention_in)),
        ("self_attn.o_proj.weight", (hidden, q_size)),
        ("mlp.gate_proj.weight", (inner, hidden)),
        ("mlp.up_proj.weight", (inner, hidden)),
        ("mlp.down_proj.weight", (hidden, inner)),
    ]
    if index == 0:
        shapes.append(("hidden_norm.weight", (hidden,)))
    if draft.qk_norm:
        shapes += [(f"self_attn.{name}.weight", (draft.head_dim,)) for name in ("q_norm", "k_norm")]
    if draft.attention_bias:
        sizes = {"q_proj": q_size, "k_proj": kv_size, "v_proj": kv_size, "o_proj": hidden}
        shapes += [(f"self_attn.{name}.bias", (size,)) for name, size in sizes.items()]
    if draft.mlp_bias:
        sizes = {"gate_proj": inner, "up_proj": inner, "down_proj": hidden}
        shapes += [(f"mlp.{name}.bias", (size,)) for name, size in sizes.items()]
    return shapes


# Tensors whose presence a flag decides: pattern, flag, what the flag says.
_FLAGGED: tuple[tuple[str, str], ...] = (
    (r"input_norm\.weight", "norm_before_fc"),
    (r"fc_norm\.\d+\.weight", "fc_norm"),
    (r"layers\.\d+\.self_attn\.[qkvo]_proj\.bias", "transformer_layer_config.attention_bias"),
    (r"layers\.\d+\.mlp\.\w+_proj\.bias", "transformer_layer_config.mlp_bias"),
    (r"layers\.\d+\.self_attn\.[qk]_norm\.weight", "transformer_layer_config.model_type qwen3"),
)


def check_layout(draft: Draft, tensors: Mapping[str, TensorEntry], where: str) -> None:
    """Compares the tensors with what the config says the draft is.

    `embed_tokens.weight` may be absent: SGLang takes the target's (0.5.23, `LlamaForCausalLM.set_embed`).

    Raises:
        CheckpointError: a tensor is missing, unknown, of the wrong shape, or not in a floating-point dtype.
    """
    expected = expected_shapes(draft)
    for name in tensors:
        if name not in expected and name not in (*TRAINING_ONLY, "d2t", "t2d"):
            raise _unexpected(name, draft, where)
    for name, shape in expected.items():
        entry = tensors.get(name)
        if entry is None:
            if name != "embed_tokens.weight":
                raise _missing(name, where)
        elif entry.shape != shape:
            raise CheckpointError(
                f"{where}: {name} has shape {list(entry.shape)}, its config makes it {list(shape)}.",
                why="Tensors and config describe two different drafts.",
                remedy=_shape_remedy(name),
            )
    _check_dtypes(tensors, expected, where)


def _unexpected(name: str, draft: Draft, where: str) -> CheckpointError:
    for pattern, kind in _FOREIGN_LAYERS:
        if re.search(pattern, name):
            return CheckpointError(
                f"{where} holds {name}: {kind}.",
                why="Only dense EAGLE-3 drafts with Llama or Qwen3 layers can be exported.",
                remedy="Train an EAGLE-3 draft with --draft-arch llama, unquantised.",
            )
    for pattern, flag in _FLAGGED:
        if re.fullmatch(pattern, name):
            return CheckpointError(
                f"{where} holds {name}, but its config does not set {flag}.",
                why="The server would drop a trained tensor.",
                remedy="Save the checkpoint again, or correct its config.json.",
            )
    layer = re.match(r"layers\.(\d+)\.", name)
    if layer and int(layer[1]) >= draft.num_layers:
        return CheckpointError(
            f"{where} holds {name}, but its config has only {draft.num_layers} layers.",
            why="The server would drop the layers that the config does not count.",
            remedy="Correct num_hidden_layers in its config.json.",
        )
    return CheckpointError(
        f"{where} holds {name}, which no EAGLE-3 draft of speculators 0.3 to 0.9 has.",
        why="SGLang drops a tensor it does not know without a word.",
        remedy="Check where this checkpoint comes from; save it again with speculators.",
    )


def _missing(name: str, where: str) -> CheckpointError:
    flag = next(
        (f"its config sets {flag}, but " for pattern, flag in _FLAGGED if re.fullmatch(pattern, name)), ""
    )
    return CheckpointError(
        f"{where}: {flag}{name} is missing.",
        why="SGLang would leave that parameter uninitialised and accept next to nothing.",
        remedy="Save the checkpoint again, or correct its config.json.",
    )


def _shape_remedy(name: str) -> str:
    if name in ("fc.weight", "input_norm.weight"):
        return (
            "Correct eagle_aux_hidden_state_layer_ids in its config.json: fc takes one hidden state per id."
        )
    return "Correct its config.json, or save the checkpoint again."


def _check_dtypes(tensors: Mapping[str, TensorEntry], expected: Mapping[str, Shape], where: str) -> None:
    seen: dict[str, str] = {}
    for name in expected:
        entry = tensors.get(name)
        if entry is None:
            continue
        if entry.dtype not in FLOAT_DTYPES:
            raise CheckpointError(
                f"{where}: {name} is {entry.dtype}.",
                why="SGLang serves drafts in bfloat16, float16 or float32; quantised ones are not exported.",
                remedy="Export the unquantised checkpoint in one of these.",
            )
        seen.setdefault(entry.dtype, name)
    if len(seen) > 1:
        listed = ", ".join(f"{name} is {dtype}" for dtype, name in seen.items())
        raise CheckpointError(
            f"{where} mixes dtypes: {listed}.",
            why="SGLang would convert every tensor to one of them, and the draft would no longer be the one trained.",
            remedy="Save the checkpoint in one dtype.",
        )


def float_dtype(tensors: Mapping[str, TensorEntry]) -> str:
    """The one dtype of the trained tensors, as a config spells it ("bfloat16"). Call after `check_layout`."""
    return FLOAT_DTYPES[tensors["fc.weight"].dtype]
