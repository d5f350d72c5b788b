"""The same queries and keys, rotated by training's code and by SGLang's from the exported config."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest

from eagle3_export.sglang.config import translate_config
from eagle3_export.sglang.rope import context_length, served_parameters
from eagle3_export.speculators_format.draft import Draft, parse_draft
from tests.support.drafts import CONFIG
from tests.support.rope_worker import CASES, compare_in_process

HEAD_DIM, POSITIONS = 16, 128


def draft(rope: dict[str, Any], notation: str = "rope_parameters") -> Draft:
    layer = {**CONFIG["transformer_layer_config"], "max_position_embeddings": POSITIONS}
    layer.pop("rope_parameters")
    layer |= {"head_dim": HEAD_DIM, "num_attention_heads": 4, "num_key_value_heads": 2}
    if notation == "rope_parameters":
        layer["rope_parameters"] = rope
    else:
        theta = rope.get("rope_theta", 10000.0)
        layer |= {"rope_theta": theta, "rope_scaling": {k: v for k, v in rope.items() if k != "rope_theta"}}
    return parse_draft({**CONFIG, "transformer_layer_config": layer}, "config.json")


@pytest.mark.slow
@pytest.mark.sglang
def test_both_systems_rotate_alike() -> None:
    configs = []
    for rope in CASES.values():
        some = draft(rope)
        configs.append((rope, translate_config(some, dtype="float32", encoded_aux_layer_ids=None)))
    differences = compare_in_process(configs, head_dim=HEAD_DIM, positions=POSITIONS)
    assert len(differences) == 2 * len(CASES)
    assert {
        name: found for name, found in zip([*CASES, *CASES], differences, strict=True) if not found <= 1e-5
    } == {}


@pytest.mark.parametrize("name", list(CASES))
def test_both_notations_are_read_and_written_alike(name: str) -> None:
    rope = CASES[name]
    new, old = draft(rope), draft(rope, "rope_scaling")
    assert new.rope == old.rope
    config = translate_config(new, dtype="float32", encoded_aux_layer_ids=None)
    without_theta = {key: value for key, value in config["rope_parameters"].items() if key != "rope_theta"}
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == rope.get("rope_theta", 10000.0)
    assert config["rope_scaling"] == (without_theta if without_theta["rope_type"] != "default" else None)
    assert "mrope_section" not in json.dumps(config)


def test_the_magnitude_of_yarn_is_what_training_multiplies_with() -> None:
    """transformers: attention_factor as it stands. SGLang: (0.1 ln factor + 1) attn_factor."""
    served = served_parameters(draft({"rope_type": "yarn", "factor": 4.0, "attention_factor": 0.7,
                                      "original_max_position_embeddings": 32}))  # fmt: skip
    assert math.isclose((0.1 * math.log(4.0) + 1) * served["attn_factor"], 0.7)
    plain = served_parameters(
        draft({"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32})
    )
    assert "attn_factor" not in plain


@pytest.mark.parametrize(
    ("config", "length"),
    [
        ({"max_position_embeddings": 2048}, 2048),
        ({"max_position_embeddings": 2048, "rope_scaling": {"rope_type": "linear", "factor": 4.0}}, 8192),
        ({"max_position_embeddings": 2048, "rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, 4096),
        ({"max_position_embeddings": 131072, "rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, 131072),
        (
            {"max_position_embeddings": 128, "rope_scaling": {"rope_type": "yarn", "factor": 4.0,
             "original_max_position_embeddings": 32}},
            128,
        ),
        ({}, None),
    ],
)  # fmt: skip
def test_context_length_as_sglang_derives_it(config: dict[str, Any], length: int | None) -> None:
    assert context_length(config) == length
