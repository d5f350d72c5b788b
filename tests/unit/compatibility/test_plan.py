"""What stands between a draft and being served as trained: findings, their levels, and the plan."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.compatibility.findings import Finding
from eagle3_export.compatibility.plan import (
    ServingPlan,
    check_draft,
    check_training,
    plan_serving,
)
from eagle3_export.errors import IncompatibleDraftError, UsageError
from eagle3_export.sglang.capabilities import PLUGIN_PROVEN_ON, RELEASES
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint, read_checkpoint
from eagle3_export.speculators_format.draft import parse_draft
from eagle3_export.speculators_format.training_config import draft_from_training
from eagle3_export.speculators_format.verifier import Verifier, parse_verifier, read_verifier
from tests.support.drafts import CONFIG, Tensor, write_checkpoint

LLAMA = parse_verifier(
    {
        "architectures": ["LlamaForCausalLM"],
        "num_hidden_layers": 8,
        "hidden_size": 16,
        "vocab_size": 40,
        "max_position_embeddings": 512,
    }
)


def target(
    version: str = "0.5.23", runtime: Any = "auto", verifier: Verifier | None = LLAMA
) -> ServingTarget:
    return ServingTarget(version, runtime, verifier)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Checkpoint:
    """norm_before_fc and norm_output on, norm_before_residual off, full attention."""
    return read_checkpoint(write_checkpoint(tmp_path_factory.mktemp("plain") / "0"))


def changed(checkpoint: Checkpoint, **values: Any) -> Checkpoint:
    return replace(checkpoint, draft=replace(checkpoint.draft, **values))


def levels(findings: list[Finding]) -> dict[str, str]:
    return {found.id: found.level for found in findings}


def check(checkpoint: Checkpoint, where: ServingTarget) -> list[Finding]:
    return list(plan_serving(checkpoint, where).findings)


def plan(checkpoint: Checkpoint, where: ServingTarget | None = None, **options: Any) -> ServingPlan:
    return plan_serving(checkpoint, where or target(), **options)


def test_a_draft_that_stock_computes_has_no_findings(plain: Checkpoint) -> None:
    planned = plan(plain)
    assert planned.findings == ()
    assert planned.architecture == "LlamaForCausalLMEagle3"
    assert planned.runtime == "stock"
    assert planned.minimum_sglang_version == "0.5.17"  # norm_before_fc
    assert plan(plain, target(runtime="stock")).findings == ()


@pytest.mark.parametrize(
    ("runtime", "level", "architecture"),
    [
        ("auto", "inexact", "LlamaForCausalLMEagle3"),
        ("stock", "incompatible", "LlamaForCausalLMEagle3"),
        ("exact", "info", "Eagle3ExportLlamaForCausalLM"),
    ],
)
def test_norm_before_residual(plain: Checkpoint, runtime: str, level: str, architecture: str) -> None:
    planned = plan(changed(plain, norm_before_residual=True), target(runtime=runtime))
    (found,) = [f for f in planned.findings if f.id == "norm-before-residual"]
    assert found.level == level
    assert "--no-norm-before-residual" in found.remedy
    assert ("runtime: auto" in found.remedy) == (runtime == "stock")
    assert planned.architecture == architecture
    assert planned.config["norm_before_residual"] is True
    assert bool(planned.incompatible) == (level == "incompatible")


# What stock drops or computes with real damage: the plugin's class under auto and exact, refused under stock.
PLUGIN_CASES: list[tuple[str, dict[str, Any]]] = [
    ("qk-norm", {"layer_arch": "qwen3"}),
    ("attention-bias", {"attention_bias": True}),
    ("mlp-bias", {"mlp_bias": True}),
    ("trained-embeddings", {"embed_requires_grad": True}),
    ("single-aux-layer", {"aux_layer_ids": (4,)}),
    ("sliding-window-per-layer", {"num_layers": 2, "sliding_windows": (64, None)}),
    ("sliding-window-per-layer", {"num_layers": 2, "sliding_windows": (None, 64)}),
]


@pytest.mark.parametrize(("identifier", "values"), PLUGIN_CASES)
def test_what_only_the_plugin_computes(plain: Checkpoint, identifier: str, values: dict[str, Any]) -> None:
    draft = changed(plain, **values)
    for runtime in ("auto", "exact"):
        planned = plan(draft, target(runtime=runtime))
        assert levels(list(planned.findings)) == {identifier: "info", "plugin-required": "info"}
        assert planned.config["architectures"] == ["Eagle3ExportLlamaForCausalLM"]
        assert planned.config["eagle3_export"]["requires"] == [identifier]
        assert planned.runtime == "exact"
    refused = plan(draft, target(runtime="stock"))
    assert levels(list(refused.findings))[identifier] == "incompatible"
    assert refused.minimum_sglang_version is None
    with pytest.raises(IncompatibleDraftError, match=identifier):
        refused.raise_if_incompatible()
    old = plan(draft, target("0.5.11"))
    assert levels(list(old.findings)).get(identifier, "incompatible") == "incompatible"
    assert old.incompatible


def test_the_plugins_class_also_computes_norm_before_residual(plain: Checkpoint) -> None:
    planned = plan(changed(plain, layer_arch="qwen3", norm_before_residual=True))
    assert levels(list(planned.findings))["norm-before-residual"] == "info"
    assert planned.config["eagle3_export"]["requires"] == ["qk-norm", "norm-before-residual"]


def test_a_release_the_plugin_never_ran_on_is_a_finding(plain: Checkpoint) -> None:
    draft = changed(plain, layer_arch="qwen3")
    unproven = [
        release for release in RELEASES[RELEASES.index("0.5.12") :] if release not in PLUGIN_PROVEN_ON
    ]
    assert "plugin-unproven" in levels(check(draft, target(unproven[0])))
    assert "plugin-unproven" not in levels(check(draft, target(PLUGIN_PROVEN_ON[-1])))
    assert check(changed(plain, norm_before_fc=False), target(unproven[0])) == []


@pytest.mark.parametrize(
    ("version", "values", "identifier", "level"),
    [
        ("0.5.11", {"norm_before_fc": False}, "norm-output", "incompatible"),
        ("0.5.12", {"norm_before_fc": False}, "norm-output", None),
        ("0.5.11", {"norm_before_fc": False, "fc_norm": True}, "fc-norm", "incompatible"),
        ("0.5.12", {"norm_before_fc": False, "fc_norm": True}, "fc-norm", None),
        ("0.5.11", {"aux_layer_ids": (1, 2, 4, 6)}, "aux-layer-count", "incompatible"),
        ("0.5.12", {"aux_layer_ids": (1, 2, 4, 6)}, "aux-layer-count", None),
        ("0.5.11", {"num_layers": 2, "sliding_windows": (None, None)}, "multiple-layers", "incompatible"),
        ("0.5.12", {"num_layers": 2, "sliding_windows": (None, None)}, "multiple-layers", None),
        ("0.5.11", {}, "norm-before-fc", "incompatible"),
        ("0.5.16", {}, "norm-before-fc", "info"),  # the plugin brings it
        ("0.5.17", {}, "norm-before-fc", None),
        ("0.5.11", {"sliding_windows": (64,)}, "sliding-window-ignored", "inexact"),
        ("0.5.12", {"sliding_windows": (64,)}, "sliding-window-ignored", None),
        ("0.5.6.post1", {}, "rope-release", None),
        ("0.4.9", {}, "release-too-old", "incompatible"),
        ("0.6.1", {}, "release-unknown", "info"),
        ("0.5.23", {"hidden_act": "gelu"}, "activation", "incompatible"),
        ("0.5.23", {"sliding_windows": (1,)}, "sliding-window-of-one", "incompatible"),
    ],
)
def test_what_each_release_computes(
    plain: Checkpoint, version: str, values: dict[str, Any], identifier: str, level: str | None
) -> None:
    assert levels(check(changed(plain, **values), target(version))).get(identifier) == level


def test_an_unknown_newer_release_is_planned_like_the_newest_known(plain: Checkpoint) -> None:
    newest, newer = plan(plain), plan(plain, target("0.6.1"))
    assert (newer.config, newer.names, newer.launch_arguments) == (
        newest.config,
        newest.names,
        newest.launch_arguments,
    )
    with pytest.raises(UsageError, match="latest"):
        plan(plain, target("latest"))


def test_an_old_release_with_nothing_special_takes_a_plain_draft(plain: Checkpoint) -> None:
    simple = changed(plain, norm_before_fc=False, norm_output=False)
    planned = plan(simple)
    assert planned.findings == ()
    assert planned.minimum_sglang_version == "0.4.10"


def test_windows_go_into_the_launch_arguments_with_sglangs_off_by_one(plain: Checkpoint) -> None:
    planned = plan(changed(plain, sliding_windows=(2048,)))
    assert levels(list(planned.findings)) == {"sliding-window": "info"}
    at = planned.launch_arguments.index("--speculative-draft-window-size")
    assert planned.launch_arguments[at + 1] == "2047"
    assert "--speculative-draft-window-size" not in plan(plain).launch_arguments
    assert plan(changed(plain, sliding_windows=(2048,)), target("0.5.11", "stock")).incompatible


def test_a_quantised_target_needs_an_unquantised_draft_said_so(plain: Checkpoint) -> None:
    quantised = replace(LLAMA, quantization="fp8")
    planned = plan(plain, target(verifier=quantised))
    assert levels(list(planned.findings)) == {"draft-quantization": "info"}
    at = planned.launch_arguments.index("--speculative-draft-model-quantization")
    assert planned.launch_arguments[at + 1] == "unquant"
    assert "quantization_config" not in planned.config
    assert (
        "--speculative-draft-model-quantization"
        not in plan(plain, target("0.5.4", verifier=quantised)).launch_arguments
    )


def test_a_draft_in_another_dtype_than_its_verifier(plain: Checkpoint) -> None:
    assert check(plain, target(verifier=replace(LLAMA, dtype="bfloat16"))) == []
    (found,) = check(plain, target(verifier=replace(LLAMA, dtype="float16")))
    assert (found.id, found.level) == ("draft-dtype", "info")
    assert "--dtype float16" in found.remedy
    assert plan(plain, target(verifier=replace(LLAMA, dtype="float16"))).launch_arguments[-2:] == [
        "--dtype",
        "float16",
    ]
    assert "--dtype" not in plan(plain, target(verifier=replace(LLAMA, dtype="bfloat16"))).launch_arguments


def test_a_draft_with_fewer_positions_than_its_verifier(plain: Checkpoint) -> None:
    planned = plan(plain, target(verifier=replace(LLAMA, config={"max_position_embeddings": 4096})))
    assert levels(list(planned.findings)) == {"context-length": "info"}
    at = planned.launch_arguments.index("--context-length")
    assert planned.launch_arguments[at + 1] == "512"


@pytest.mark.parametrize(("field", "value"), [("hidden_size", 32), ("vocab_size", 41)])
def test_another_verifier_is_refused(plain: Checkpoint, field: str, value: int) -> None:
    found = check(plain, target(verifier=replace(LLAMA, **{field: value})))
    assert levels(found) == {"verifier-mismatch": "incompatible"}
    assert str(value) in found[0].cause


def test_an_unknown_verifier_is_said(plain: Checkpoint) -> None:
    assert levels(check(plain, target(verifier=None))) == {"verifier-unknown": "info"}


def test_a_target_class_without_aux_capture_is_refused(plain: Checkpoint) -> None:
    found = check(plain, target(verifier=replace(LLAMA, architectures=("MambaForCausalLM",))))
    assert levels(found) == {"target-class": "incompatible"}
    late = check(
        plain, target("0.5.17", verifier=replace(LLAMA, architectures=("Glm5NextForConditionalGeneration",)))
    )
    assert "the first is SGLang 0.5" in late[0].remedy


@pytest.mark.parametrize(
    "ids", [(5, 2, 4), (2, 4, 9), (2, 4, 8)], ids=["unsorted", "beyond", "final hidden state"]
)
def test_aux_layers_that_cannot_be_captured_are_refused(plain: Checkpoint, ids: tuple[int, ...]) -> None:
    found = check(changed(plain, aux_layer_ids=ids), target())
    assert levels(found) == {"aux-layers": "incompatible"}
    assert str(list(ids)) in found[0].cause


def test_embeddings(tmp_path: Path, plain: Checkpoint) -> None:
    def without(tensors: dict[str, Tensor]) -> None:
        del tensors["embed_tokens.weight"]

    absent = read_checkpoint(write_checkpoint(tmp_path / "0", edit_tensors=without))
    assert levels(check(absent, target())) == {"embeddings-absent": "info"}
    assert plan(changed(absent, embed_requires_grad=True)).incompatible
    trained = changed(plain, embed_requires_grad=True)
    assert plan(trained).config["eagle3_export"]["keep_embed_tokens"] is True
    dropped = plan(trained, keep_embed_tokens=False)
    assert "dropped-trained-embeddings" in levels(list(dropped.incompatible))
    kept_small = plan(plain, keep_embed_tokens=False)
    assert "embed_tokens.weight" not in kept_small.names
    assert kept_small.incompatible == ()


def test_drafts_of_releases_that_recorded_no_ids(plain: Checkpoint) -> None:
    """speculators 0.3 and 0.4: their own data generator captured after the layer, not before."""
    unrecorded = changed(plain, aux_layer_ids=None, speculators_version="0.4.0")
    planned = plan(unrecorded)
    assert levels(list(planned.findings)) == {"aux-layers-not-recorded": "inexact"}
    assert "eagle_aux_hidden_state_layer_ids" not in planned.config["eagle_config"]
    later = changed(plain, aux_layer_ids=None, speculators_version="0.5.0")
    assert plan(later).findings == ()


@pytest.mark.parametrize(
    ("rope", "identifier", "level"),
    [
        ({"rope_type": "dynamic", "factor": 2.0}, "dynamic-rope", "info"),
        ({"rope_type": "default", "mrope_section": [1, 1]}, "mrope", "info"),
        ({"rope_type": "default", "partial_rotary_factor": 0.5}, "partial-rotary-ignored", "info"),
        (
            {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
            "partial-rotary",
            "incompatible",
        ),
        ({"rope_type": "proportional"}, "rope-type", "incompatible"),
        ({"rope_type": "longrope", "short_factor": [1, 1], "long_factor": [2, 2]}, "longrope", "inexact"),
    ],
)
def test_rotary_embeddings(rope: dict[str, Any], identifier: str, level: str) -> None:
    layer = {**CONFIG["transformer_layer_config"], "rope_parameters": {"rope_theta": 1e4, **rope}}
    draft = parse_draft({**CONFIG, "transformer_layer_config": layer}, "config.json")
    assert levels(check_draft(draft, target())) == {identifier: level}


@pytest.mark.parametrize(
    ("trained", "configured", "minimum"),
    [
        ((2, 4, 5), [1, 3, 4], "0.5.4.post2"),  # since DeepSeek captures at all
        ((3, 4, 5), [3, 4, 5], "0.5.13"),  # shifted by one before
    ],
)
def test_the_minimum_version_is_that_of_the_exported_ids(
    plain: Checkpoint, trained: tuple[int, ...], configured: list[int], minimum: str
) -> None:
    deepseek = replace(LLAMA, architectures=("DeepseekV3ForCausalLM",))
    simple = changed(plain, norm_before_fc=False, norm_output=False, aux_layer_ids=trained)
    planned = plan(simple, target(verifier=deepseek))
    assert planned.config["eagle_config"]["eagle_aux_hidden_state_layer_ids"] == configured
    assert planned.minimum_sglang_version == minimum
    assert planned.findings == ()


def test_theta_is_lost_on_the_one_release_that_cannot_read_it(plain: Checkpoint) -> None:
    """sglang 0.5.6.post1 pins transformers 5.0.0rc0 but reads `rope_theta`, which that keeps elsewhere."""
    rope = replace(plain.draft.rope, theta=5e5)
    simple = changed(plain, norm_before_fc=False, norm_output=False, rope=rope)
    assert levels(check(simple, target("0.5.6.post1")))["rope-release"] == "incompatible"
    assert check(simple, target("0.5.6.post2")) == []
    assert plan(simple).minimum_sglang_version == "0.5.6.post2"


def test_findings_are_plain_data() -> None:
    found = Finding("some-id", "info", "cause", "remedy")
    assert found.as_dict() == {"id": "some-id", "level": "info", "cause": "cause", "remedy": "remedy"}


# Before training, from speculators' arguments.


def test_speculators_defaults_before_training() -> None:
    found = levels(check_training({"verifier_name_or_path": "some/verifier"}, target()))
    assert found == {"norm-before-residual": "inexact", "sliding-window": "info"}


@pytest.mark.parametrize(
    ("arguments", "identifier", "level"),
    [
        ({"speculator_type": "dflash"}, "not-eagle3", "incompatible"),
        ({"draft_arch": "qwen3"}, "qk-norm", "info"),
        ({"num_layers": 2, "full_attention_indices": [1]}, "sliding-window-per-layer", "info"),
        ({"target_layer_ids": [2, 4, 8]}, "aux-layers", "incompatible"),
        ({"draft_hidden_act": "gelu"}, "activation", "incompatible"),
        ({"embed_requires_grad": True}, "trained-embeddings", "info"),
        ({"from_pretrained": "/nowhere/at/all"}, "draft-unknown", "info"),
    ],
)
def test_flags_before_training(arguments: dict[str, Any], identifier: str, level: str) -> None:
    assert levels(check_training(arguments, target()))[identifier] == level


@pytest.mark.slow
@pytest.mark.training
def test_what_speculators_resolves_and_what_is_left_to_its_defaults_are_judged_alike() -> None:
    from speculators.train.config import TrainConfig

    resolved = TrainConfig(verifier={"verifier_name_or_path": "some/verifier"}).flatten()
    left_out = {"verifier_name_or_path": "some/verifier"}
    assert check_training(resolved, target()) == check_training(left_out, target())


@pytest.mark.slow
@pytest.mark.training
@pytest.mark.parametrize(
    "flags",
    [
        {},
        {"num_layers": 2, "full_attention_indices": [1], "sliding_window": 32},
        {"draft_arch": "qwen3", "norm_before_residual": False},
    ],
)
def test_the_draft_judged_before_training_is_the_one_that_speculators_builds(
    tmp_path: Path, flags: dict[str, Any]
) -> None:
    from speculators.train.cli import create_transformer_layer_config
    from transformers import LlamaConfig

    rope = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
            "original_max_position_embeddings": 128, "rope_theta": 5e5}  # fmt: skip
    LlamaConfig(
        architectures=["LlamaForCausalLM"], vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=8,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=1024, rope_parameters=rope,
    ).save_pretrained(tmp_path)  # fmt: skip
    built = create_transformer_layer_config(
        verifier_name_or_path=str(tmp_path),
        num_layers=flags.get("num_layers", 1),
        draft_arch=flags.get("draft_arch", "llama"),
        hidden_act="silu",
        sliding_window=flags.get("sliding_window", 2048),
        full_attention_indices=flags.get("full_attention_indices", []),
    )
    judged = draft_from_training(
        {"verifier_name_or_path": str(tmp_path), **flags}, read_verifier(str(tmp_path))
    ).draft
    saved = parse_draft(
        {**CONFIG, "transformer_layer_config": built.to_diff_dict(), "draft_vocab_size": 96}, "config.json"
    )
    same = ("layer_arch", "num_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "hidden_size",
            "max_position_embeddings", "vocab_size", "rope", "sliding_windows", "hidden_act",)  # fmt: skip
    assert {key: getattr(judged, key) for key in same} == {key: getattr(saved, key) for key in same}


def test_a_draft_config_before_training(tmp_path: Path) -> None:
    decoder = {**CONFIG["transformer_layer_config"], "attention_bias": True}
    path = tmp_path / "draft.json"
    path.write_text(json.dumps(decoder))
    arguments = {"draft_config": str(path), "norm_before_residual": False}
    assert levels(check_training(arguments, target())) == {
        "attention-bias": "info",
        "plugin-required": "info",
    }


# The verifier.


def test_verifier_of_a_multimodal_config(tmp_path: Path) -> None:
    config = {
        "architectures": ["Qwen3VLForConditionalGeneration"],
        "text_config": {"num_hidden_layers": 36, "hidden_size": 64, "vocab_size": 100, "dtype": "bfloat16"},
        "quantization_config": {"quant_method": "awq"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    verifier = read_verifier(str(tmp_path))
    assert verifier is not None
    assert (verifier.num_hidden_layers, verifier.hidden_size, verifier.vocab_size) == (36, 64, 100)
    assert (verifier.quantization, verifier.dtype) == ("awq", "bfloat16")
    assert verifier.architectures == ("Qwen3VLForConditionalGeneration",)


@pytest.mark.parametrize("content", [None, "{", "[]", '{"num_hidden_layers": "many", "architectures": 7}'])
def test_an_unreadable_verifier_is_unknown_not_an_error(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    verifier = read_verifier(str(tmp_path))
    assert verifier is None or (verifier.num_hidden_layers is None and verifier.architectures == ())
    assert read_verifier(None) is None
    assert read_verifier("nobody/nothing-here") is None


def test_two_counts_in_two_findings_are_each_their_own(plain: Checkpoint) -> None:
    draft = changed(plain, num_layers=2, sliding_windows=(None, None), aux_layer_ids=(1, 2, 4, 6))
    causes = {found.id: found.cause for found in check(draft, target("0.5.11"))}
    assert "has 2 decoder layers" in causes["multiple-layers"]
    assert "takes 4 aux hidden states" in causes["aux-layer-count"]
