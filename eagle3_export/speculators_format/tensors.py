"""The tensors that a draft must consist of: names, shapes and dtypes, checked against its config."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3_export.errors import CheckpointError, Eagle3ExportError, Fault
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


@dataclass(frozen=True, slots=True)
class TensorRow:
    """One line of the table below.

    Attributes:
        name: speculators' name; `*` stands for a layer, or for one aux hidden state.
        shape: keys of `_sizes`.
        flag: attribute of `Draft` that decides whether the tensor exists; empty: every draft has it.
    """

    name: str
    shape: tuple[str, ...]
    flag: str = ""


# Source: speculators 0.9.0, `Eagle3DraftModel.__init__` and `Eagle3FirstLayerMixin`. The embedding is the one tensor
# that a checkpoint may lack: SGLang takes the target's (0.5.23, `LlamaForCausalLM.set_embed`).
TENSORS: tuple[TensorRow, ...] = (
    TensorRow("embed_tokens.weight",                       ("vocabulary", "hidden")),
    TensorRow("fc.weight",                                 ("hidden", "all aux")),
    TensorRow("input_norm.weight",                         ("all aux",),          "norm_before_fc"),
    TensorRow("fc_norm.*.weight",                          ("hidden",),           "fc_norm"),
    TensorRow("layers.0.hidden_norm.weight",               ("hidden",)),
    TensorRow("layers.*.input_layernorm.weight",           ("hidden",)),
    TensorRow("layers.*.post_attention_layernorm.weight",  ("hidden",)),
    TensorRow("layers.*.self_attn.q_proj.weight",          ("queries", "layer input")),
    TensorRow("layers.*.self_attn.k_proj.weight",          ("keys", "layer input")),
    TensorRow("layers.*.self_attn.v_proj.weight",          ("keys", "layer input")),
    TensorRow("layers.*.self_attn.o_proj.weight",          ("hidden", "queries")),
    TensorRow("layers.*.self_attn.q_norm.weight",          ("head",),             "qk_norm"),
    TensorRow("layers.*.self_attn.k_norm.weight",          ("head",),             "qk_norm"),
    TensorRow("layers.*.self_attn.q_proj.bias",            ("queries",),          "attention_bias"),
    TensorRow("layers.*.self_attn.k_proj.bias",            ("keys",),             "attention_bias"),
    TensorRow("layers.*.self_attn.v_proj.bias",            ("keys",),             "attention_bias"),
    TensorRow("layers.*.self_attn.o_proj.bias",            ("hidden",),           "attention_bias"),
    TensorRow("layers.*.mlp.gate_proj.weight",             ("inner", "hidden")),
    TensorRow("layers.*.mlp.up_proj.weight",               ("inner", "hidden")),
    TensorRow("layers.*.mlp.down_proj.weight",             ("hidden", "inner")),
    TensorRow("layers.*.mlp.gate_proj.bias",               ("inner",),            "mlp_bias"),
    TensorRow("layers.*.mlp.up_proj.bias",                 ("inner",),            "mlp_bias"),
    TensorRow("layers.*.mlp.down_proj.bias",               ("hidden",),           "mlp_bias"),
    TensorRow("norm.weight",                               ("hidden",)),
    TensorRow("lm_head.weight",                            ("draft vocabulary", "hidden")),
)  # fmt: skip
EMBEDDING = "embed_tokens.weight"
VOCABULARY_MAPS = ("d2t", "t2d")  # checked in `vocabulary.py`; a draft of the full vocabulary has neither
# Training-time copies of the verifier's weights. speculators leaves them out since 0.4
# (`Eagle3DraftModel._keys_to_ignore_on_save`); serving never reads them.
TRAINING_ONLY = ("verifier_norm.weight", "verifier_lm_head.weight")

# What config.json calls the flags that are not at its top level under their own name.
_FLAG_IN_CONFIG: Mapping[str, str] = {
    "attention_bias": "transformer_layer_config.attention_bias",
    "mlp_bias": "transformer_layer_config.mlp_bias",
    "qk_norm": "transformer_layer_config.model_type qwen3",
}


def _sizes(draft: Draft, layer: int) -> dict[str, int]:
    """The sizes that the table names. Layer 0 reads the token's embedding beside the hidden state."""
    return {
        "vocabulary": draft.vocab_size,
        "draft vocabulary": draft.draft_vocab_size,
        "hidden": draft.hidden_size,
        "all aux": draft.num_aux_layers * draft.hidden_size,
        "layer input": draft.hidden_size * (2 if layer == 0 else 1),
        "queries": draft.num_attention_heads * draft.head_dim,
        "keys": draft.num_key_value_heads * draft.head_dim,
        "head": draft.head_dim,
        "inner": draft.intermediate_size,
    }


def expected_shapes(draft: Draft) -> dict[str, Shape]:
    """Name and shape of every trained tensor of `draft`, in speculators' names, without the vocabulary maps."""
    shapes: dict[str, Shape] = {}
    for row in TENSORS:
        if row.flag and not getattr(draft, row.flag):
            continue
        repeats = draft.num_layers if row.name.startswith("layers.*") else draft.num_aux_layers
        for index in range(repeats if "*" in row.name else 1):
            sizes = _sizes(draft, index)
            shapes[row.name.replace("*", str(index))] = tuple(sizes[size] for size in row.shape)
    return shapes


def flag_of(name: str) -> str:
    """The flag that decides whether a tensor of this name exists, as config.json spells it; "" where none does."""
    pattern = re.sub(r"^(layers|fc_norm)\.\d+\.", r"\1.*.", name)
    flag = next((row.flag for row in TENSORS if row.name == pattern), "")
    return _FLAG_IN_CONFIG.get(flag, flag)


# Wrappers put these around names: DDP, torch.compile, FSDP 1, activation checkpointing.
_WRAPPER_SEGMENTS = ("_orig_mod.", "_fsdp_wrapped_module.", "_checkpoint_wrapped_module.")
_WRAPPER_PREFIXES = re.compile(r"^(module\.|draft_model\.)+")


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
        plain[name] = _WRAPPER_PREFIXES.sub("", bare)
    if len(set(plain.values())) != len(plain):
        twice = sorted(bare for bare, count in Counter(plain.values()).items() if count > 1)
        raise CheckpointError(
            f"{where} holds {', '.join(twice[:5])} twice, with and without a wrapper's prefix.",
            why="It is unclear which of them was trained.",
            remedy="Save the unwrapped model.",
        )
    return plain


def check_layout(
    draft: Draft, tensors: Mapping[str, TensorEntry], where: str, fault: Fault = CheckpointError
) -> None:
    """Compares the tensors with what the config says the draft is.

    Args:
        draft: what the config says.
        tensors: by speculators' name.
        where: what messages call the file or directory.
        fault: the error to raise.

    Raises:
        CheckpointError: a tensor is missing, unknown, of the wrong shape, or not in a floating-point dtype; `fault`
            may name another error.
    """
    expected = expected_shapes(draft)
    known = {*expected, *TRAINING_ONLY, *VOCABULARY_MAPS}
    for name in tensors:
        if name not in known:
            raise _unexpected(name, draft, where, fault)
    for name, shape in expected.items():
        entry = tensors.get(name)
        if entry is None:
            if name != EMBEDDING:
                raise _missing(name, where, fault)
        elif entry.shape != shape:
            raise fault(
                f"{where}: {name} has shape {list(entry.shape)}, its config makes it {list(shape)}.",
                why="Tensors and config describe two different drafts.",
                remedy=_shape_remedy(name),
            )
    _check_dtypes(tensors, expected, where, fault)


# Names that give away another kind of decoder layer.
_FOREIGN_LAYERS: tuple[tuple[str, str], ...] = (
    (r"\.(kv_a_proj_with_mqa|kv_b_proj|q_a_proj|q_b_proj|fused_qkv_a_proj)", "multi-head latent attention (MLA)"),
    (r"\.mlp\.(experts|gate\.|router|shared_expert)|\.(block_sparse_moe|feed_forward)\.", "mixture of experts"),
    (r"\.(linear_attn|mamba|mixer)\.", "linear attention or state-space layers"),
    (r"(^|\.)(weight_packed|weight_scale(_inv)?|qweight|qzeros|scales|input_scale|g_idx)$", "quantised weights"),
    (r"(^|\.)mtp(\.|_)", "multi-token prediction"),
    (r"^(mask_embedding|mask_hidden|markov|confidence)", "another drafting algorithm"),
)  # fmt: skip


def _unexpected(name: str, draft: Draft, where: str, fault: Fault) -> Eagle3ExportError:
    for pattern, kind in _FOREIGN_LAYERS:
        if re.search(pattern, name):
            return fault(
                f"{where} holds {name}: {kind}.",
                why="Only dense EAGLE-3 drafts with Llama or Qwen3 layers can be exported.",
                remedy="Train an EAGLE-3 draft with --draft-arch llama, unquantised.",
            )
    layer = re.match(r"layers\.(\d{1,9})\.", name)
    if layer and int(layer[1]) >= draft.num_layers:
        return fault(
            f"{where} holds {name}, but its config has only {draft.num_layers} layers.",
            why="The server would drop the layers that the config does not count.",
            remedy="Correct num_hidden_layers in its config.json.",
        )
    if flag := flag_of(name):
        return fault(
            f"{where} holds {name}, but its config does not set {flag}.",
            why="The server would drop a trained tensor.",
            remedy="Save the checkpoint again, or correct its config.json.",
        )
    return fault(
        f"{where} holds {name}, which no EAGLE-3 draft of speculators 0.3 to 0.9 has.",
        why="SGLang drops a tensor that it does not know, and no error appears.",
        remedy="Check where this checkpoint comes from; save it again with speculators.",
    )


def _missing(name: str, where: str, fault: Fault) -> Eagle3ExportError:
    flag = flag_of(name)
    return fault(
        f"{where}: {f'its config sets {flag}, but ' if flag else ''}{name} is missing.",
        why="SGLang would leave that parameter uninitialised and accept next to nothing.",
        remedy="Save the checkpoint again, or correct its config.json.",
    )


def _shape_remedy(name: str) -> str:
    if name in ("fc.weight", "input_norm.weight"):
        return (
            "Correct eagle_aux_hidden_state_layer_ids in its config.json: fc takes one hidden state per id."
        )
    return "Correct its config.json, or save the checkpoint again."


def _check_dtypes(
    tensors: Mapping[str, TensorEntry], expected: Mapping[str, Shape], where: str, fault: Fault
) -> None:
    seen: dict[str, str] = {}
    for name in expected:
        entry = tensors.get(name)
        if entry is None:
            continue
        if entry.dtype not in FLOAT_DTYPES:
            raise fault(
                f"{where}: {name} is {entry.dtype}.",
                why="SGLang serves drafts in bfloat16, float16 or float32; quantised ones are not exported.",
                remedy="Export the unquantised checkpoint in one of these.",
            )
        seen.setdefault(entry.dtype, name)
    if len(seen) > 1:
        listed = ", ".join(f"{name} is {dtype}" for dtype, name in seen.items())
        raise fault(
            f"{where} mixes dtypes: {listed}.",
            why="SGLang would convert every tensor to one of them, and the draft would no longer be the one trained.",
            remedy="Save the checkpoint in one dtype.",
        )


def float_dtype(tensors: Mapping[str, TensorEntry]) -> str:
    """The one dtype of the trained tensors, as a config spells it ("bfloat16"). Call after `check_layout`."""
    return FLOAT_DTYPES[tensors["fc.weight"].dtype]
