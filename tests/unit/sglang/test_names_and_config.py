"""Names and config.json of an export."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.errors import CheckpointError
from eagle3_export.sglang.config import translate_config
from eagle3_export.sglang.names import translate_names
from eagle3_export.sglang.server_arguments import launch_arguments, launch_command, window_argument
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.draft import Draft, parse_draft
from eagle3_export.speculators_format.tensors import expected_shapes
from tests.support.drafts import CONFIG, RENAMED, SHAPES


def draft(**values: Any) -> Draft:
    return replace(parse_draft(CONFIG, "config.json"), **values)


def test_one_layer_gets_the_names_that_every_release_loads() -> None:
    renamed = translate_names([*SHAPES, "d2t", "t2d"])
    assert renamed == {name: RENAMED.get(name, name) for name in [*SHAPES, "d2t", "t2d"]}
    # The header stays exactly as long, so no tensor moves.
    assert sum(map(len, renamed)) == sum(map(len, renamed.values()))


def test_deeper_layers_normalise_their_input_with_hidden_norm() -> None:
    renamed = translate_names(["layers.1.input_layernorm.weight", "layers.10.self_attn.q_norm.weight"])
    assert list(renamed.values()) == ["layers.1.hidden_norm.weight", "layers.10.self_attn.q_norm.weight"]


@pytest.mark.parametrize(
    "name",
    ["layers.1.hidden_norm.weight", "layers.0.extra.weight", "model.fc.weight", "fc.bias", "d2t.weight", ""],
)
def test_a_name_without_a_rule_is_quoted(name: str) -> None:
    with pytest.raises(CheckpointError) as caught:
        translate_names(["fc.weight", name])
    assert repr(name) in str(caught.value)


def test_what_is_left_out() -> None:
    names = ["fc.weight", "verifier_norm.weight", "verifier_lm_head.weight", "embed_tokens.weight"]
    assert list(translate_names(names, keep_embed_tokens=False)) == ["fc.weight"]
    assert list(translate_names(names)) == ["fc.weight", "embed_tokens.weight"]


@given(
    st.integers(1, 12), st.booleans(), st.booleans(), st.booleans(), st.sampled_from(["none", "fc", "each"]),
    st.integers(1, 5),
)  # fmt: skip
def test_every_tensor_a_draft_can_have_gets_a_name_of_its_own(
    layers: int, qwen3: bool, bias: bool, mlp_bias: bool, norm: str, aux: int
) -> None:
    some = draft(
        num_layers=layers,
        layer_arch="qwen3" if qwen3 else "llama",
        attention_bias=bias,
        mlp_bias=mlp_bias,
        norm_before_fc=norm == "fc",
        fc_norm=norm == "each",
        aux_layer_ids=tuple(range(aux)),
    )
    names = [*expected_shapes(some), "d2t", "t2d"]
    renamed = translate_names(names)
    assert list(renamed) == names
    assert len(set(renamed.values())) == len(names)


def test_the_config_is_flat_and_holds_nothing_of_training() -> None:
    config = translate_config(draft(), dtype="bfloat16", encoded_aux_layer_ids=[1, 3, 4])
    assert json.loads(json.dumps(config, allow_nan=False)) == config
    assert config["architectures"] == ["LlamaForCausalLMEagle3"]
    assert config["model_type"] == "llama"
    assert (config["dtype"], config["torch_dtype"]) == ("bfloat16", "bfloat16")
    assert config["draft_vocab_size"] == 24
    assert config["vocab_size"] == 40
    assert config["head_dim"] == 4
    assert config["tie_word_embeddings"] is False
    assert config["num_aux_hidden_states"] == 3
    assert config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == [1, 3, 4]
    assert config["norm_before_fc"] is config["eagle_config"]["norm_before_fc"] is True
    forbidden = {"target_hidden_size", "quantization_config", "auto_map", "layer_types", "sliding_window"}
    assert not forbidden & set(config)
    assert "speculators" not in json.dumps(config)


def test_a_full_vocabulary_still_names_its_size() -> None:
    config = translate_config(draft(draft_vocab_size=40), dtype="float32", encoded_aux_layer_ids=None)
    assert config["draft_vocab_size"] == 40
    assert "eagle_aux_hidden_state_layer_ids" not in config["eagle_config"]


# Windows, counted by the definitions of both systems.
@pytest.mark.parametrize("window", [2, 3, 64, 2048])
def test_the_window_argument_lets_a_query_see_the_same_keys(window: int) -> None:
    argument = window_argument((window,))
    assert argument is not None
    query = 5000
    # speculators 0.9.0, create_combined_mask_mod: q_idx >= kv_idx and kv_idx > q_idx - sliding_window
    trained = {key for key in range(query + 2) if query >= key > query - window}
    # sglang 0.5.23, torch_native_backend.py: k_pos <= q_pos and k_pos >= q_pos - sliding_window_size
    served = {key for key in range(query + 2) if query >= key >= query - argument}
    assert trained == served


def test_windows_that_one_value_cannot_say() -> None:
    assert window_argument((None,)) is None
    assert window_argument((1,)) is None
    assert window_argument((64, None)) is None
    assert window_argument((64, 64)) == 63


def test_the_launch_command_can_be_pasted() -> None:
    config = translate_config(draft(), dtype="bfloat16", encoded_aux_layer_ids=[1, 3, 4])
    arguments = launch_arguments(config, ServingTarget("0.5.23"), num_steps=5)
    command = launch_command("my exports/latest", "org/model", arguments)
    assert command == (
        "python -m sglang.launch_server --model-path org/model --speculative-draft-model-path 'my exports/latest' "
        "--speculative-algorithm EAGLE3 --speculative-num-steps 5 --speculative-eagle-topk 1 "
        "--speculative-num-draft-tokens 6"
    )
