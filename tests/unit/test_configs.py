"""The ready configs: speculators' own parser knows every key, and what they train is what their comments say."""

from __future__ import annotations

import json
import shutil
import warnings
from pathlib import Path
from typing import Any

import pytest
import yaml

from eagle3_export.compatibility.plan import check_training
from eagle3_export.config import parse_export_block
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.verifier import read_verifier

CONFIGS = Path(__file__).parents[2] / "configs"
NAMES = sorted(path.name for path in CONFIGS.glob("*.yaml") if "sglang_export:" in path.read_text())

# What matters of the verifiers' own config.json (the demo's: scripts/demo/world.py).
VERIFIERS: dict[str, dict[str, Any]] = {
    "demo.yaml": {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "num_hidden_layers": 8,
        "hidden_size": 128,
        "intermediate_size": 384,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 1024,
        "max_position_embeddings": 1024,
    },
    "qwen3-8b-8gpu.yaml": {
        "architectures": ["Qwen3ForCausalLM"],
        "model_type": "qwen3",
        "num_hidden_layers": 36,
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "max_position_embeddings": 40960,
        "rope_theta": 1000000,
        "rms_norm_eps": 1e-6,
    },
    "kimi-k2.5.yaml": {
        "architectures": ["KimiK25ForConditionalGeneration"],
        "model_type": "kimi_k25",
        "text_config": {
            "model_type": "kimi_k2",
            "num_hidden_layers": 61,
            "hidden_size": 7168,
            "intermediate_size": 18432,
            "num_attention_heads": 64,
            "num_key_value_heads": 64,
            "vocab_size": 163840,
            "max_position_embeddings": 262144,
        },
    },
}
# Findings that change what is computed; with the plugin installed, "inexact" is served exactly all the same.
EXPECTED_FINDINGS = {
    "demo.yaml": {"norm-before-residual": "inexact"},
    "qwen3-8b-8gpu.yaml": {},
    "kimi-k2.5.yaml": {},
}


def flat_arguments(name: str) -> dict[str, Any]:
    """The `train:` block, flat as speculators' `TrainConfig.flatten` names it."""
    flat: dict[str, Any] = {}
    for key, value in yaml.safe_load((CONFIGS / name).read_text())["train"].items():
        flat.update(value if isinstance(value, dict) else {key: value})
    if flat.get("draft_config"):
        flat["draft_config"] = str(CONFIGS.parent / flat["draft_config"])
    return flat


def test_every_config_is_covered_here() -> None:
    assert set(NAMES) == set(VERIFIERS) == set(EXPECTED_FINDINGS)


@pytest.mark.parametrize("name", NAMES)
def test_export_block_is_valid_and_outside_the_save_path(name: str) -> None:
    document = yaml.safe_load((CONFIGS / name).read_text())
    assert set(document) == {"train", "sglang_export"}
    config = parse_export_block(document["sglang_export"])
    assert config.resolve_output_dir(document["train"]["trainer"]["save_path"]).name == "sglang"


@pytest.mark.parametrize("name", NAMES)
def test_what_it_trains_is_served_as_its_comments_say(name: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(VERIFIERS[name]))
    block = yaml.safe_load((CONFIGS / name).read_text())["sglang_export"]
    config = parse_export_block(block)
    target = ServingTarget(config.sglang_version, config.runtime, read_verifier(str(tmp_path)))
    findings = check_training(flat_arguments(name), target)
    assert {found.id: found.level for found in findings if found.level != "info"} == EXPECTED_FINDINGS[name]


@pytest.mark.slow
@pytest.mark.training
def test_speculators_itself_accepts_every_config(monkeypatch: pytest.MonkeyPatch) -> None:
    from speculators.train.config import TrainConfig

    monkeypatch.chdir(CONFIGS.parent)
    for name in NAMES:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # speculators only warns of keys that it does not know
            config = TrainConfig.resolve(["--config", str(CONFIGS / name)])
        given = flat_arguments(name)
        if given.get("draft_config"):
            config.draft.draft_config = given["draft_config"]
        resolved = config.flatten()
        assert {key: resolved[key] for key in given} == given, name


@pytest.mark.slow
@pytest.mark.training
def test_speculators_builds_the_decoder_of_the_kimi_draft(tmp_path: Path) -> None:
    from speculators.train.cli import load_draft_transformer_layer_config

    verifier = VERIFIERS["kimi-k2.5.yaml"]["text_config"] | {"model_type": "deepseek_v3"}
    (tmp_path / "config.json").write_text(json.dumps(verifier))
    draft = shutil.copy(CONFIGS / "kimi-k2.5-draft.json", tmp_path / "draft.json")
    decoder = load_draft_transformer_layer_config(str(draft), str(tmp_path))
    assert (decoder.hidden_size, decoder.vocab_size, decoder.head_dim) == (7168, 163840, 128)
    assert (decoder.layer_types, decoder.sliding_window) == (["sliding_attention"], 2048)
    assert decoder.rope_parameters == {"rope_type": "default", "rope_theta": 50000.0}
