"""speculators' own converter reads an export back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.export import export_checkpoint
from tests.support.drafts import draft_tensors, read_tensors, write_checkpoint

# Stands in the converter's result only, and only because that tool adds it.
FROM_THE_VERIFIER = {"verifier_lm_head.weight", "verifier_norm.weight"}


@pytest.mark.slow
def test_speculators_converter_gives_the_checkpoint_again(tmp_path: Path) -> None:
    """speculators 0.9.0, `Eagle3Converter.convert`. Its draft class has no `input_norm`, so the flag is off here."""
    pytest.importorskip("speculators")
    from speculators.convert.eagle.eagle3_converter import Eagle3Converter

    def without_input_norm(config: dict[str, Any]) -> None:
        config["norm_before_fc"] = False

    checkpoint = write_checkpoint(
        tmp_path / "1",
        edit_config=without_input_norm,
        edit_tensors=lambda tensors: tensors.pop("input_norm.weight"),
    )
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    (verifier / "config.json").write_text(
        json.dumps({"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 40})
    )
    export_checkpoint(checkpoint, tmp_path / "export")

    Eagle3Converter().convert(
        tmp_path / "export", tmp_path / "back", str(verifier), validate=False, norm_output=True
    )

    source = {name: tensor for name, tensor in draft_tensors().items() if name != "input_norm.weight"}
    back = read_tensors(tmp_path / "back" / "model.safetensors")
    assert {name: tensor for name, tensor in back.items() if name not in FROM_THE_VERIFIER} == source
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config["transformer_layer_config"]["num_key_value_heads"] == 2
    assert config["draft_vocab_size"] == 24
    assert config["norm_output"] is True
