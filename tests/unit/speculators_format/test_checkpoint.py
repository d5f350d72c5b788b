"""Reading what speculators saves: every release's notation, and every contradiction refused by name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from eagle3_export.errors import CheckpointError, Eagle3ExportError, ExportInvalidError, invalid_export
from eagle3_export.sglang.config import read_exported_draft, translate_config
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from eagle3_export.speculators_format.draft import parse_draft
from eagle3_export.speculators_format.run_files import find_checkpoints
from eagle3_export.speculators_format.tensors import check_layout, expected_shapes, unwrap_names
from eagle3_export.speculators_format.training_state import TrainingState
from eagle3_export.speculators_format.vocabulary import check_vocabulary
from tests.support.drafts import CONFIG, SHAPES, TARGET_IDS, Tensor, safetensors_bytes, write_checkpoint

Config = dict[str, Any]
Tensors = dict[str, Tensor]


def layer(config: Config) -> Config:
    return config["transformer_layer_config"]


def bf16(*shape: int) -> Tensor:
    return ("BF16", shape, bytes(2 * int(np.prod(shape))))


def test_a_checkpoint_of_the_training_defaults(tmp_path: Path) -> None:
    state = {"epoch": 3, "local_step": 0, "global_step": 120}
    directory = write_checkpoint(tmp_path / "3", training_state=state, val_metrics={"full_acc_0_epoch": 0.5})
    checkpoint = read_checkpoint(directory)
    draft = checkpoint.draft
    assert set(checkpoint.tensors) == {*SHAPES, "d2t", "t2d"}
    assert (draft.vocab_size, draft.draft_vocab_size, draft.hidden_size, draft.head_dim) == (40, 24, 16, 4)
    assert (draft.norm_before_fc, draft.norm_output, draft.fc_norm, draft.norm_before_residual) == (
        True,
        True,
        False,
        False,
    )
    assert draft.aux_layer_ids == (2, 4, 5)
    assert draft.dtype == "bfloat16"
    assert draft.ttt_steps == 3
    assert checkpoint.training_state == TrainingState(epoch=3, local_step=0, global_step=120)
    assert checkpoint.val_metrics == {"full_acc_0_epoch": 0.5}
    assert checkpoint.speculators_version == "0.9.0"


def test_a_symlink_is_resolved(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "1")
    (tmp_path / "checkpoint_best").symlink_to("1")
    assert read_checkpoint(tmp_path / "checkpoint_best").directory == directory.resolve()


def test_a_hub_id_is_found_in_the_local_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub import constants

    revision = "0" * 40
    repository = tmp_path / "models--me--my-draft"
    write_checkpoint(repository / "snapshots" / revision)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text(revision)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    assert read_checkpoint("me/my-draft").draft.hidden_size == 16
    with pytest.raises(CheckpointError, match=r"neither a directory nor in the local Hugging Face cache"):
        read_checkpoint("me/another-draft")


def old_notation(config: Config) -> None:
    """speculators 0.3 to 0.5 under transformers 4: `rope_theta` and `rope_scaling`, `torch_dtype`, fewer flags."""
    for key in ("norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad", "dtype"):
        config.pop(key, None)
    config |= {
        "torch_dtype": "bfloat16",
        "speculators_version": "0.3.0",
        "eagle_aux_hidden_state_layer_ids": None,
    }
    layer(config).pop("rope_parameters")
    layer(config).pop("layer_types")
    layer(config)["rope_theta"] = 500000.0
    layer(config)["rope_scaling"] = {
        "factor": 8.0,
        "high_freq_factor": 4.0,
        "low_freq_factor": 1.0,
        "original_max_position_embeddings": 64,
        "rope_type": "llama3",
    }


def test_the_notation_of_older_releases(tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path / "0",
        edit_config=old_notation,
        edit_tensors=lambda tensors: tensors.pop("input_norm.weight"),
    )
    draft = read_checkpoint(directory).draft
    assert draft.aux_layer_ids is None
    assert draft.num_aux_layers == 3
    assert (draft.rope.type, draft.rope.theta, draft.rope.parameters["factor"]) == ("llama3", 500000.0, 8.0)
    assert draft.sliding_windows == (None,)
    assert not (draft.norm_before_fc or draft.norm_output or draft.fc_norm or draft.embed_requires_grad)


@pytest.mark.parametrize(
    ("version", "windows"), [("0.6.0", (None,)), ("0.7.0", (64,)), ("0.9.0", (64,)), (None, (64,))]
)
def test_windows_count_since_training_knows_them(
    version: str | None, windows: tuple[int | None, ...]
) -> None:
    """speculators 0.6.0's `Eagle3DraftModel` never reads `layer_types`; 0.7.0's does."""
    config = {**json.loads(json.dumps(CONFIG)), "speculators_version": version}
    layer(config).update(layer_types=["sliding_attention"], sliding_window=64)
    assert parse_draft(config, "config.json").sliding_windows == windows


def test_rope_nested_per_layer_type_is_the_sliding_one() -> None:
    config = json.loads(json.dumps(CONFIG))
    layer(config)["rope_parameters"] = {
        "full_attention": {"rope_type": "default", "rope_theta": 1e6},
        "sliding_attention": {"rope_type": "linear", "rope_theta": 2e4, "factor": 2.0},
    }
    rope = parse_draft(config, "config.json").rope
    assert (rope.type, rope.theta, dict(rope.parameters)) == ("linear", 2e4, {"factor": 2.0})


def test_the_verifiers_weights_left_in_by_old_releases_are_read_but_known(tmp_path: Path) -> None:
    def add(tensors: Tensors) -> None:
        tensors["verifier_lm_head.weight"] = bf16(24, 16)

    assert (
        "verifier_lm_head.weight"
        in read_checkpoint(write_checkpoint(tmp_path / "0", edit_tensors=add)).tensors
    )


@pytest.mark.parametrize("prefix", ["module.", "_orig_mod.", "draft_model.", "module._orig_mod."])
def test_wrappers_prefixes_are_taken_off(tmp_path: Path, prefix: str) -> None:
    def wrap(tensors: Tensors) -> None:
        wrapped = {prefix + name: tensor for name, tensor in tensors.items()}
        tensors.clear()
        tensors.update(wrapped)

    checkpoint = read_checkpoint(write_checkpoint(tmp_path / "0", edit_tensors=wrap))
    assert set(checkpoint.tensors) == {*SHAPES, "d2t", "t2d"}
    assert checkpoint.tensors["fc.weight"].entry.name == prefix + "fc.weight"


def set_flag(key: str, value: Any, *, nested: bool = False) -> Callable[[Config], None]:
    def edit(config: Config) -> None:
        (layer(config) if nested else config)[key] = value

    return edit


def add_tensor(name: str, tensor: Tensor) -> Callable[[Tensors], None]:
    return lambda tensors: tensors.__setitem__(name, tensor)


def nothing(_: Any) -> None:
    return None


# What contradicts itself, and what the message must name.
CONTRADICTIONS: list[tuple[str, Callable[[Config], object], Callable[[Tensors], object], str]] = [
    ("flag without its tensor", set_flag("norm_before_fc", True), lambda t: t.pop("input_norm.weight"),
     "norm_before_fc.*input_norm.weight is missing"),
    ("tensor without its flag", set_flag("norm_before_fc", False), nothing, "input_norm.weight.*norm_before_fc"),
    ("fc_norm tensor without flag", nothing, add_tensor("fc_norm.0.weight", bf16(16)), "fc_norm.0.weight.*fc_norm"),
    ("bias without flag", nothing, add_tensor("layers.0.self_attn.q_proj.bias", bf16(16)),
     "q_proj.bias.*attention_bias"),
    ("flag without bias", set_flag("attention_bias", True, nested=True), nothing, "proj.bias is missing"),
    ("q_norm in a llama draft", nothing, add_tensor("layers.0.self_attn.q_norm.weight", bf16(4)), "q_norm.*qwen3"),
    ("heads", set_flag("num_attention_heads", 8, nested=True), nothing, "q_proj.weight has shape"),
    ("odd sharing of heads", set_flag("num_key_value_heads", 3, nested=True), nothing,
     "4 attention heads cannot share 3"),
    ("aux count", set_flag("eagle_aux_hidden_state_layer_ids", [1, 2, 3, 4]), nothing, "fc.weight has shape"),
    ("more layers than declared", nothing, add_tensor("layers.1.input_layernorm.weight", bf16(16)), "only 1 layers"),
    ("fewer layers than declared", set_flag("num_hidden_layers", 2, nested=True), nothing, "layer_types has 1 entries"),
    ("missing fc", nothing, lambda t: t.pop("fc.weight"), "fc.weight is missing"),
    ("unknown tensor", nothing, add_tensor("surprise.weight", bf16(4)), "surprise.weight"),
    ("MLA", nothing, add_tensor("layers.0.self_attn.kv_b_proj.weight", bf16(4)), "kv_b_proj.*MLA"),
    ("MoE", nothing, add_tensor("layers.0.mlp.experts.0.up_proj.weight", bf16(4)), "experts.0.*mixture of experts"),
    ("packed weights", nothing, add_tensor("layers.0.mlp.up_proj.weight_packed", ("I32", (1,), bytes(4))), "quantised"),
    ("quantised tensor", nothing, add_tensor("fc.weight", ("F8_E4M3", (16, 48), bytes(768))), "fc.weight is F8_E4M3"),
    ("too wide a dtype", nothing, add_tensor("fc.weight", ("F64", (16, 48), bytes(6144))), "fc.weight is F64"),
    ("quantization_config", set_flag("quantization_config", {"quant_method": "fp8"}), nothing, "quantised"),
    ("mixed dtypes", nothing, add_tensor("norm.weight", ("F32", (16,), bytes(64))), "mixes dtypes"),
    ("both norms", set_flag("fc_norm", True), nothing, "norm_before_fc and fc_norm"),
    ("target_hidden_size", set_flag("target_hidden_size", 32), nothing, "target_hidden_size 32"),
    ("twice the same aux layer", set_flag("eagle_aux_hidden_state_layer_ids", [2, 2, 5]), nothing, "twice"),
    ("no map", nothing, lambda t: [t.pop("d2t"), t.pop("t2d")], "24 of 40 tokens, but d2t is missing"),
    ("half a map", nothing, lambda t: t.pop("t2d"), "t2d is missing"),
    ("larger than the target", set_flag("draft_vocab_size", 48), nothing, "draft_vocab_size 48 exceeds"),
    ("two names for one tensor", nothing, add_tensor("module.fc.weight", bf16(16, 48)), "fc.weight twice"),
    ("unknown layer type", set_flag("layer_types", ["chunked_attention"], nested=True), nothing, "chunked_attention"),
    ("flag of the wrong type", set_flag("norm_output", "yes"), nothing, "norm_output is 'yes'"),
    ("rope nested otherwise", set_flag("rope_parameters", {"deep": {"rope_theta": 1.0}}, nested=True), nothing,
     "nested"),
    ("rope without its factor", set_flag("rope_parameters", {"rope_type": "linear"}, nested=True), nothing,
     "factor is missing"),
]  # fmt: skip


@pytest.mark.parametrize(("edit_config", "edit_tensors", "message"), [c[1:] for c in CONTRADICTIONS],
                         ids=[c[0] for c in CONTRADICTIONS])  # fmt: skip
def test_contradictions_are_refused_by_name(
    tmp_path: Path,
    edit_config: Callable[[Config], object],
    edit_tensors: Callable[[Tensors], object],
    message: str,
) -> None:
    directory = write_checkpoint(tmp_path / "0", edit_config=edit_config, edit_tensors=edit_tensors)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_checkpoint(directory)
    assert caught.value.why
    assert caught.value.remedy


@pytest.mark.parametrize(
    "kind", ["peagle", "dflash", "dflash2", "dspark", "xpress", "mtp", "eagle", "mlp", "unheard-of"]
)
def test_drafts_of_other_kinds_are_refused_by_name(tmp_path: Path, kind: str) -> None:
    directory = write_checkpoint(tmp_path / "0", edit_config=set_flag("speculators_model_type", kind))
    with pytest.raises(CheckpointError, match=kind):
        read_checkpoint(directory)


@pytest.mark.parametrize("model_type", ["deepseek_v3", "qwen3_moe", "llama4_text"])
def test_other_decoder_layers_are_refused_by_name(tmp_path: Path, model_type: str) -> None:
    directory = write_checkpoint(tmp_path / "0", edit_config=set_flag("model_type", model_type, nested=True))
    with pytest.raises(CheckpointError, match=model_type):
        read_checkpoint(directory)


def test_a_flat_eagle3_config_is_told_apart(tmp_path: Path) -> None:
    write_checkpoint(tmp_path / "0")
    (tmp_path / "0" / "config.json").write_text(json.dumps({"draft_vocab_size": 24, "model_type": "llama"}))
    with pytest.raises(CheckpointError, match="already describes a flat EAGLE-3 draft"):
        read_checkpoint(tmp_path / "0")


def test_a_full_vocabulary_needs_no_map(tmp_path: Path) -> None:
    def full(tensors: Tensors) -> None:
        del tensors["d2t"], tensors["t2d"]
        tensors["lm_head.weight"] = bf16(40, 16)

    directory = write_checkpoint(
        tmp_path / "0", edit_config=set_flag("draft_vocab_size", 40), edit_tensors=full
    )
    assert not read_checkpoint(directory).draft.reduced_vocabulary


def test_the_embedding_may_be_absent(tmp_path: Path) -> None:
    directory = write_checkpoint(
        tmp_path / "0", edit_tensors=lambda tensors: tensors.pop("embed_tokens.weight")
    )
    assert "embed_tokens.weight" not in read_checkpoint(directory).tensors


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda ids: ids, r"absolute ids instead of offsets"),
        (lambda ids: ids[::-1] - np.arange(24), "not strictly increasing"),
        (lambda ids: np.r_[ids[1], ids[1], ids[2:]] - np.arange(24), "not strictly increasing"),
        (lambda ids: np.r_[1, ids[1:]] - np.arange(24), "other tokens than those set in t2d"),
        (lambda ids: ids - np.arange(24) - 1, "leaves the verifier's vocabulary"),
        (lambda ids: ids + 2**60, "larger than the vocabulary"),
    ],
    ids=["absolute", "reversed", "shared", "not in t2d", "negative", "overflow"],
)
def test_vocabulary_maps_must_add_up(
    tmp_path: Path, change: Callable[[np.ndarray], np.ndarray], message: str
) -> None:
    broken = change(np.array(TARGET_IDS)).astype("<i8").tobytes()
    directory = write_checkpoint(tmp_path / "0", edit_tensors=add_tensor("d2t", ("I64", (24,), broken)))
    with pytest.raises(CheckpointError, match=message):
        read_checkpoint(directory)


@settings(max_examples=40)
@given(st.sets(st.integers(0, 39), min_size=1, max_size=39))
def test_any_map_that_adds_up_is_taken_and_no_other_mask(tmp_path_factory: Any, ids: set[int]) -> None:
    targets = np.array(sorted(ids))
    mask = np.zeros(40, dtype="|u1")
    mask[targets] = 1
    size = len(targets)

    def edit(tensors: Tensors) -> None:
        tensors["lm_head.weight"] = bf16(size, 16)
        tensors["d2t"] = ("I64", (size,), (targets - np.arange(size)).astype("<i8").tobytes())
        tensors["t2d"] = ("BOOL", (40,), mask.tobytes())

    directory = tmp_path_factory.mktemp("map") / "0"
    write_checkpoint(directory, edit_config=set_flag("draft_vocab_size", size), edit_tensors=edit)
    checkpoint = read_checkpoint(directory)
    mask[targets[0]] ^= 1
    entry = checkpoint.tensors["t2d"].entry
    with (directory / "model.safetensors").open("r+b") as file:
        file.seek(entry.offset)
        file.write(mask.tobytes())
    with pytest.raises(CheckpointError, match=r"other tokens"):
        check_vocabulary(checkpoint.draft, checkpoint.tensors, "checkpoint")


def test_shards_need_a_true_index(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "0", shards=3)
    assert set(read_checkpoint(directory).tensors) == {*SHAPES, "d2t", "t2d"}
    index_path = directory / "model.safetensors.index.json"
    index = json.loads(index_path.read_text())
    for edit, message in (
        ({"ghost.weight": "model-00001-of-00003.safetensors"}, "lists ghost.weight"),
        ({"norm.weight": "../model.safetensors"}, "no safetensors file beside it"),
        ({"norm.weight": 7}, "names no shards"),
    ):
        index_path.write_text(json.dumps({"weight_map": {**index["weight_map"], **edit}}))
        with pytest.raises(CheckpointError, match=message):
            read_checkpoint(directory)
    index["weight_map"].pop("norm.weight")
    index_path.write_text(json.dumps(index))
    with pytest.raises(CheckpointError, match=r"does not list norm\.weight"):
        read_checkpoint(directory)


def test_odd_numbers_in_val_metrics_do_not_stop_the_reading(tmp_path: Path) -> None:
    metrics = {"full_acc_0_epoch": float("nan"), "loss_epoch": 10**400, "note": "text", "ok": True}
    read = read_checkpoint(write_checkpoint(tmp_path / "0", val_metrics=metrics)).val_metrics
    assert read is not None
    assert set(read) == {"full_acc_0_epoch", "loss_epoch"}
    assert read["loss_epoch"] == float("inf")


def test_missing_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="nowhere"):
        read_checkpoint(tmp_path / "nowhere")
    directory = write_checkpoint(tmp_path / "run" / "4")
    with pytest.raises(CheckpointError, match=r"has no config.json.*4"):
        read_checkpoint(tmp_path / "run")
    (directory / "model.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"has no model.safetensors"):
        read_checkpoint(directory)
    (directory / "pytorch_model.bin").write_bytes(b"\x80")
    with pytest.raises(CheckpointError, match="pickle"):
        read_checkpoint(directory)


def test_all_checkpoints_of_a_run_in_order(tmp_path: Path) -> None:
    for name in ("10", "2", "interrupted", "0"):
        write_checkpoint(tmp_path / name)
    (tmp_path / "3").mkdir()  # being written
    (tmp_path / "logs").mkdir()
    (tmp_path / "checkpoint_best").symlink_to("2")
    assert [path.name for path in find_checkpoints(tmp_path)] == ["0", "2", "10", "interrupted"]
    with pytest.raises(CheckpointError):
        find_checkpoints(tmp_path / "absent")


@pytest.mark.slow
@pytest.mark.parametrize("model_type", ["llama", "qwen3"])
def test_keys_left_out_mean_what_transformers_makes_of_them(model_type: str) -> None:
    from transformers import AutoConfig

    theirs = AutoConfig.for_model(model_type)
    config = {
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {"model_type": model_type},
        "draft_vocab_size": 32000,
    }
    ours = parse_draft(config, "config.json")
    assert ours.num_layers == theirs.num_hidden_layers
    same = ("vocab_size", "hidden_size", "intermediate_size", "num_attention_heads", "num_key_value_heads", "head_dim",
            "max_position_embeddings", "rms_norm_eps", "initializer_range", "hidden_act", "attention_bias")  # fmt: skip
    assert {key: getattr(ours, key) for key in same} == {key: getattr(theirs, key) for key in same}
    assert ours.rope.theta == theirs.rope_parameters["rope_theta"]
    assert ours.rope.type == theirs.rope_parameters["rope_type"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda children: (
        st.lists(children, max_size=4) | st.dictionaries(st.text(max_size=8), children, max_size=4)
    ),
    max_leaves=12,
)
LAYER_KEYS = st.sampled_from(
    [*CONFIG["transformer_layer_config"], "rope_scaling", "sliding_window", "rope_theta"]
)


@given(
    st.dictionaries(st.sampled_from(sorted(CONFIG)), JSON, max_size=3),
    st.dictionaries(LAYER_KEYS, JSON, max_size=4),
)
def test_any_config_is_read_or_refused_with_our_error(top: Config, nested: Config) -> None:
    config = {**CONFIG, "transformer_layer_config": {**CONFIG["transformer_layer_config"], **nested}, **top}
    try:
        draft = parse_draft(config, "config.json")
    except CheckpointError:
        return
    assert draft.num_layers == len(draft.sliding_windows)
    assert draft.num_attention_heads % draft.num_key_value_heads == 0


ROPE_FIELDS = st.sampled_from(
    ["rope_type", "type", "rope_theta", "factor", "original_max_position_embeddings", "short_factor", "long_factor",
     "attention_factor", "mscale", "mrope_section", "partial_rotary_factor", "sliding_attention", "truncate"]
)  # fmt: skip
ROPE_VALUES = JSON | st.sampled_from(["default", "linear", "dynamic", "llama3", "yarn", "longrope", "mrope"])


FACTORS = st.lists(st.floats() | st.integers() | st.booleans(), min_size=1, max_size=3) | st.just([1.0, 2.5])
NUMBERS = st.none() | st.integers(-2, 3) | st.integers() | st.floats()
# Longrope with everything that its formulas divide by, take roots and logarithms of; the head has two frequencies.
LONGROPES = st.fixed_dictionaries(
    {"rope_type": st.just("longrope"), "short_factor": FACTORS, "long_factor": FACTORS},
    optional=dict.fromkeys(
        ("original_max_position_embeddings", "factor", "attention_factor", "rope_theta"), NUMBERS
    ),
)


@settings(max_examples=300)
@given(
    st.dictionaries(ROPE_FIELDS, ROPE_VALUES, max_size=6) | LONGROPES,
    st.sampled_from([None, 1, 2, 512]),
)
def test_any_rope_is_read_or_refused_with_our_error(rope: Config, positions: int | None) -> None:
    nested = {**CONFIG["transformer_layer_config"], "rope_parameters": rope}
    nested.pop("max_position_embeddings")
    if positions is not None:
        nested["max_position_embeddings"] = positions
    try:
        draft = parse_draft({**CONFIG, "transformer_layer_config": nested}, "config.json")
    except CheckpointError:
        return
    event(draft.rope.type)
    written = translate_config(draft, dtype="bfloat16", encoded_aux_layer_ids=None)
    json.dumps(written, allow_nan=False)
    # What is written says in full what was meant: read back, it is the same and is written the same again.
    back = read_exported_draft(written, "config.json")
    assert translate_config(back, dtype="bfloat16", encoded_aux_layer_ids=None) == written


@given(st.binary(max_size=200))
def test_any_bytes_for_config_json_are_refused_with_our_error(tmp_path_factory: Any, content: bytes) -> None:
    directory = tmp_path_factory.mktemp("config")
    (directory / "config.json").write_bytes(content)
    (directory / "model.safetensors").write_bytes(safetensors_bytes({}))
    with pytest.raises(Eagle3ExportError):
        read_checkpoint(directory)


def with_rope(rope: Config, **layer_values: Any) -> Config:
    nested = {
        **CONFIG["transformer_layer_config"],
        "rope_parameters": {"rope_theta": 1e4, **rope},
        **layer_values,
    }
    return {**CONFIG, "transformer_layer_config": nested}


@pytest.mark.parametrize(
    ("rope", "message"),
    [
        ({"original_max_position_embeddings": 1}, "original_max_position_embeddings is 1, less than 2"),
        ({"short_factor": [float("nan"), 1.0]}, r"short_factor holds nan"),
        ({"long_factor": [float("inf"), 1.0]}, r"long_factor holds inf"),
        ({"long_factor": [0.0, 1.0]}, r"long_factor holds 0\.0"),
        ({"long_factor": [10**400, 1.0]}, r"long_factor holds 1000"),
        ({"long_factor": [True, 1.0]}, r"long_factor holds True"),
        ({"short_factor": [1.0]}, "short_factor does not hold one number for each of 2 frequencies"),
        ({"short_factor": [1.0] * 3}, "short_factor does not hold one number for each of 2 frequencies"),
        ({"short_factor": None}, "short_factor does not hold one number for each of 2 frequencies"),
    ],
)
def test_longrope_that_cannot_be_computed_is_refused(rope: Config, message: str) -> None:
    whole = {"rope_type": "longrope", "factor": 4.0, "original_max_position_embeddings": 256,
             "short_factor": [1.0, 1.0], "long_factor": [2.0, 2.0]}  # fmt: skip
    parse_draft(with_rope(whole), "config.json")
    with pytest.raises(CheckpointError, match=message) as refusal:
        parse_draft(with_rope({**whole, **rope}), "config.json")
    assert refusal.value.remedy


@pytest.mark.parametrize(("model_type", "positions"), [("llama", 2048), ("qwen3", 32768)])
@pytest.mark.parametrize(("given_factor", "factor"), [(None, 1.0), (4.0, 4.0)])
def test_yarn_starts_from_the_default_length_where_none_is_written(
    model_type: str, positions: int, given_factor: float | None, factor: float
) -> None:
    """transformers 5.19, `standardize_rope_params`: max_position_embeddings, here LlamaConfig's and Qwen3Config's."""
    rope = {"rope_type": "yarn", **({"factor": given_factor} if given_factor else {})}
    config = with_rope(rope, model_type=model_type)
    del config["transformer_layer_config"]["max_position_embeddings"]
    draft = parse_draft(config, "config.json")
    assert draft.rope.parameters["original_max_position_embeddings"] == positions
    written = translate_config(draft, dtype="bfloat16", encoded_aux_layer_ids=None)
    assert written["rope_parameters"]["original_max_position_embeddings"] == positions
    assert written["rope_parameters"]["factor"] == factor


@pytest.mark.parametrize("twice", [False, True])
def test_the_work_for_odd_names_grows_with_their_number(twice: bool) -> None:
    """20,000 tensors of other kinds are refused with about ten times the work of 2,000, not with a hundred times."""

    def work(count: int) -> float:
        """Processor time in seconds, the least of three."""
        names = [f"layers.0.odd_{index}.weight" for index in range(count)]
        tensors: Any = dict.fromkeys(names + [f"module.{name}" for name in names] * twice)
        draft = parse_draft(CONFIG, "config.json")
        taken = []
        for _ in range(3):
            started = time.process_time()
            with pytest.raises(CheckpointError):
                check_layout(draft, dict.fromkeys(unwrap_names(tensors, "checkpoint")), "checkpoint")  # type: ignore[arg-type]
            taken.append(time.process_time() - started)
        return min(taken)

    assert work(20_000) < 40 * work(2_000)


def test_an_export_is_not_called_a_checkpoint(tmp_path: Path) -> None:
    directory = write_checkpoint(tmp_path / "0")
    checkpoint = read_checkpoint(directory)
    entries = {name: source.entry for name, source in checkpoint.tensors.items()}
    del entries["fc.weight"]
    with pytest.raises(ExportInvalidError, match=r"fc\.weight is missing") as refusal:
        check_layout(checkpoint.draft, entries, "export", invalid_export)
    assert refusal.value.remedy == "Export the checkpoint again."
    tensors = {name: source for name, source in checkpoint.tensors.items() if name != "t2d"}
    with pytest.raises(ExportInvalidError, match="t2d is missing"):
        check_vocabulary(checkpoint.draft, tensors, "export", invalid_export)


def test_the_table_of_tensors_is_what_speculators_writes() -> None:
    assert expected_shapes(parse_draft(CONFIG, "config.json")) == SHAPES
