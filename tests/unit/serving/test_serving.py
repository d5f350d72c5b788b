"""The plugin's own parts, and a sample of the numeric proof."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import sys
from collections.abc import Iterable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.errors import UsageError
from eagle3_export.export import export_checkpoint
from eagle3_export.numeric import compare as numeric
from eagle3_export.serving import keys, plugin
from tests.support import drafts
from tests.support.sglang_cpu.proof import assert_exact, needs_sglang, window_flag

# --- the plugin's parts that need no SGLang -------------------------------------------------------------

PARAMETERS = (
    "model.embed_tokens.weight",
    "model.fc.weight",
    "model.layers.0.self_attn.qkv_proj.weight",
    "model.layers.0.mlp.gate_up_proj.bias",
    "model.layers.1.hidden_norm.weight",
    "lm_head.weight",
)
KEYS = (
    "embed_tokens.weight",
    "fc.weight",
    "midlayer.self_attn.q_proj.weight",
    "midlayer.self_attn.k_proj.weight",
    "midlayer.self_attn.v_proj.weight",
    "midlayer.mlp.gate_proj.bias",
    "midlayer.mlp.up_proj.bias",
    "layers.1.hidden_norm.weight",
    "lm_head.weight",
)


def refuse(names: Iterable[str], *, vocabulary_map: bool = False, embedding: bool = True) -> None:
    keys.refuse_unless_complete(list(names), PARAMETERS, vocabulary_map=vocabulary_map, embedding=embedding)


def test_complete_weights_pass() -> None:
    refuse(KEYS)
    refuse([*KEYS, "d2t", "t2d"], vocabulary_map=True)


@pytest.mark.parametrize("lost", KEYS)
def test_a_missing_tensor_is_named(lost: str) -> None:
    with pytest.raises(ValueError, match="missing") as refusal:
        refuse(key for key in KEYS if key != lost)
    assert lost.replace("midlayer", "layers.0") in str(refusal.value)


def test_an_unknown_tensor_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown: layers\.0\.self_attn\.q_norm\.weight"):
        refuse([*KEYS, "midlayer.self_attn.q_norm.weight"])


def test_scales_come_from_no_checkpoint() -> None:
    assert keys.expected_keys(["model.layers.0.self_attn.qkv_proj.weight_scale"]) == set()


def test_only_a_trained_embedding_must_be_there() -> None:
    without = [key for key in KEYS if key != "embed_tokens.weight"]
    refuse(without, embedding=False)
    with pytest.raises(ValueError, match=r"missing: embed_tokens\.weight"):
        refuse(without)


def test_a_reduced_vocabulary_needs_its_map() -> None:
    with pytest.raises(ValueError, match="missing: d2t"):
        refuse(KEYS, vocabulary_map=True)


def test_activation_leaves_the_import_to_the_registry(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "sglang.srt.models.registry", raising=False)
    monkeypatch.delenv(plugin.EXTERNAL_PACKAGE_VARIABLE, raising=False)
    before = {name for name in sys.modules if name.startswith("sglang")}
    plugin.activate()
    plugin.activate()
    assert os.environ[plugin.EXTERNAL_PACKAGE_VARIABLE] == "eagle3_export.serving"
    assert {name for name in sys.modules if name.startswith("sglang")} == before


@pytest.mark.parametrize("missing", [["sglang"], ["speculators"], ["speculators", "sglang"]])
def test_numeric_check_names_what_is_missing(missing: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *more: None if name in missing else find_spec(name, *more)
    )
    with pytest.raises(UsageError) as refusal:
        numeric.verify_numeric("export", "source")
    assert all(name in str(refusal.value) for name in missing)


# --- the numeric proof ----------------------------------------------------------------------------------


def write_defaults(config: dict[str, Any], tensors: dict[str, drafts.Tensor]) -> None:
    """What speculators' default flags train, with a window short enough to matter."""
    config["norm_before_residual"] = True
    config["transformer_layer_config"] |= {"sliding_window": 8, "layer_types": ["sliding_attention"]}


def write_norm_per_aux_layer(config: dict[str, Any], tensors: dict[str, drafts.Tensor]) -> None:
    """fc_norm, and positions scaled by YaRN."""
    config |= {"norm_before_fc": False, "fc_norm": True}
    data = tensors.pop("input_norm.weight")[2]
    for index in range(3):
        tensors[f"fc_norm.{index}.weight"] = ("BF16", (16,), data[32 * index : 32 * (index + 1)])
    yarn = {"rope_type": "yarn", "rope_theta": 5e5, "factor": 4.0, "original_max_position_embeddings": 128}
    config["transformer_layer_config"]["rope_parameters"] = yarn


def write_qk_norms(config: dict[str, Any], tensors: dict[str, drafts.Tensor]) -> None:
    """qwen3-style attention, which only the plugin's class computes."""
    config["transformer_layer_config"]["model_type"] = "qwen3"
    for norm in "qk":
        tensors[f"layers.0.self_attn.{norm}_norm.weight"] = ("BF16", (4,), tensors["norm.weight"][2][:8])


@needs_sglang
@pytest.mark.slow
@pytest.mark.sglang
def test_sampled_drafts_are_computed_as_trained(tmp_path: Path) -> None:
    """And one whose config says something else is found out."""
    requests = []
    for write in (write_defaults, write_norm_per_aux_layer, write_qk_norms):
        config: dict[str, Any] = deepcopy(drafts.CONFIG)
        tensors = drafts.draft_tensors()
        write(config, tensors)
        source = drafts.write_checkpoint(
            tmp_path / write.__name__,
            edit_config=lambda old, new=config: old.update(new),
            edit_tensors=lambda old, new=tensors: (old.clear(), old.update(new)),
        )
        embedding = "drop" if write is write_qk_norms else "keep"
        result = export_checkpoint(
            source, tmp_path / f"{write.__name__}-export", ExportConfig(embed_tokens=embedding)
        )
        requests.append(
            numeric.NumericCase(
                str(result.directory), str(source), True, window_flag(result.directory), context=16
            )
        )
    wrong = tmp_path / "wrong"
    shutil.copytree(requests[0].export, wrong)
    config = json.loads((wrong / "config.json").read_text())
    (wrong / "config.json").write_text(json.dumps(config | {"norm_output": not config["norm_output"]}))
    *reports, refuted = numeric.compare([*requests, replace(requests[0], export=str(wrong))])
    for request, report in zip(requests, reports, strict=True):
        assert_exact(report, request.source)
    assert refuted.problem is None and not refuted.ok
    # the first draft step does not depend on what is fed back
    assert refuted.per_step[0] <= numeric.TOLERANCE < refuted.per_step[1]
