"""The minimum release of a plan takes every flag of its command line, and computes what the plan says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from packaging.version import Version

from eagle3_export.compatibility.plan import plan_serving
from eagle3_export.sglang.capabilities import RELEASES
from eagle3_export.sglang.target import ServingTarget
from eagle3_export.speculators_format.checkpoint import Checkpoint
from eagle3_export.speculators_format.draft import parse_draft
from eagle3_export.speculators_format.tensors import expected_shapes
from eagle3_export.speculators_format.verifier import parse_verifier
from tests.support.drafts import CONFIG

# The release whose `server_args.py` first has the flag (the wheels; tests/unit/sglang/test_capabilities.py).
FLAGS = {
    "--speculative-algorithm": "0.4.10",
    "--speculative-num-steps": "0.4.10",
    "--speculative-eagle-topk": "0.4.10",
    "--speculative-num-draft-tokens": "0.4.10",
    "--context-length": "0.4.10",
    "--dtype": "0.4.10",
    "--speculative-draft-model-quantization": "0.5.7",
    "--speculative-draft-window-size": "0.5.12",
}
DRAFTS = st.fixed_dictionaries(
    {
        "norm_before_fc": st.booleans(),
        "norm_output": st.booleans(),
        "norm_before_residual": st.booleans(),
        "embed_requires_grad": st.booleans(),
        "attention_bias": st.booleans(),
        "layer_arch": st.sampled_from(["llama", "qwen3"]),
        "aux_layer_ids": st.sampled_from([None, (4,), (2, 4, 5), (1, 2, 4, 6)]),
        "sliding_windows": st.sampled_from([(None,), (64,), (2,), (64, 64), (None, 64)]),
        "ttt_steps": st.none() | st.integers(1, 64),
    }
)
VERIFIERS = st.fixed_dictionaries(
    {
        "architectures": st.sampled_from(
            [["LlamaForCausalLM"], ["DeepseekV3ForCausalLM"], ["Qwen3ForCausalLM"]]
        ),
        "num_hidden_layers": st.just(8),
        "hidden_size": st.just(16),
        "vocab_size": st.just(40),
        "max_position_embeddings": st.sampled_from([512, 4096]),
        "quantization_config": st.sampled_from([None, {"quant_method": "fp8"}]),
        "dtype": st.sampled_from(["bfloat16", "float16"]),
    }
)


def checkpoint(values: dict[str, Any]) -> Checkpoint:
    draft = replace(parse_draft(CONFIG, "config.json"), num_layers=len(values["sliding_windows"]), **values)
    tensors: dict[str, Any] = dict.fromkeys(expected_shapes(draft))
    return Checkpoint(directory=None, draft=draft, tensors=tensors, training_state=None, val_metrics=None)  # type: ignore[arg-type]


@settings(max_examples=300)
@given(DRAFTS, st.none() | VERIFIERS, st.sampled_from(RELEASES), st.sampled_from(["auto", "stock", "exact"]))
def test_the_minimum_release_takes_the_whole_command(
    values: dict[str, Any], verifier: dict[str, Any] | None, release: str, runtime: Any
) -> None:
    served = parse_verifier(verifier) if verifier is not None else None
    plan = plan_serving(checkpoint(values), ServingTarget(release, runtime, served))
    minimum = plan.minimum_sglang_version
    if plan.incompatible:
        assert minimum is None
        return
    assert plan.launch_arguments[2:4] == ["--speculative-num-steps", str(values["ttt_steps"] or 3)]
    flags = [argument for argument in plan.launch_arguments if argument.startswith("--")]
    if minimum is None:
        # Served with a finding of level "inexact" that this very release has and says.
        assert any(finding.level == "inexact" for finding in plan.findings)
        return
    assert Version(minimum) <= Version(release)
    assert {flag: FLAGS[flag] for flag in flags if Version(FLAGS[flag]) > Version(minimum)} == {}
    assert plan_serving(checkpoint(values), ServingTarget(minimum, runtime, served)).incompatible == ()
