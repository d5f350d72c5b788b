"""The model card, read by the hub's own parser."""

from __future__ import annotations

import re

import pytest
from huggingface_hub import ModelCard
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.documents.metadata import with_measurement
from eagle3_export.documents.model_card import render_model_card
from eagle3_export.documents.schema import Serving, Source
from eagle3_export.estimates.acceptance import Coverage
from tests.support.documents import GOOD, export, measurement


def source(verifier):
    reasons = {"digest": "Not computed."} | ({} if verifier else {"verifier": "Not recorded."})
    return Source(
        checkpoint="checkpoints/0",
        kind="end_of_epoch",
        local_step=0,
        speculators_version="0.9.0",
        verifier=verifier,
        size=1,
        reasons=reasons,
    )


def serving(**changes):
    values = {
        "runtime": "stock",
        "version": "0.5.23",
        "minimum_version": "0.5.12",
        "architecture": "LlamaForCausalLMEagle3",
        "launch_arguments": ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"],
    }
    return Serving(**(values | changes))


class TestFrontMatter:
    def test_the_hub_reads_base_model_tags_library_and_metrics(self):
        data = ModelCard(render_model_card(export(metrics=GOOD))).data
        assert data.base_model == "org/verifier"
        assert data.library_name == "sglang"
        assert {"eagle3", "speculative-decoding"} <= set(data.tags)
        values = {result.metric_type: result.metric_value for result in data.eval_results}
        assert values == {"full_acc_0": 0.8, "estimated_acceptance_length": pytest.approx(2.8)}

    def test_without_metrics_there_are_none(self):
        data = ModelCard(render_model_card(export(metrics=None))).data
        assert data.eval_results is None

    def test_a_local_path_is_no_base_model(self):
        card = render_model_card(export(source=source("/models/verifier")))
        assert ModelCard(card).data.base_model is None
        assert "--model-path /models/verifier" in card


class TestBody:
    def test_a_length_never_stands_without_its_terms(self):
        card = render_model_card(export(metrics=GOOD))
        assert "**2.80** tokens per verify step (3 draft steps, bonus token included, cumulative" in card
        geometric = render_model_card(export(metrics={"full_acc_0": 0.747}))
        assert "**2.95** tokens per verify step (geometric, without bonus token" in geometric

    def test_an_unknown_number_is_a_reason(self):
        card = render_model_card(export(metrics_missing_reason="Validation is running."))
        assert "No estimate: Validation is running." in card

    def test_the_launch_command_quotes_what_a_shell_would_split(self):
        card = render_model_card(export(source=source("my models/verifier"), sglang=serving()))
        assert "--model-path 'my models/verifier' --speculative-draft-model-path" in card
        assert "--speculative-num-steps 3" in card

    def test_measurement_coverage_and_findings_are_shown(self):
        finding = {"id": "norm-before-residual", "level": "inexact", "cause": "Cause.", "remedy": "Remedy."}
        described = export(
            metrics=GOOD,
            coverage=Coverage(100, 90, 0.9, "token_freq.pt"),
            sglang=serving(runtime="exact", findings=[finding]),
        )
        card = render_model_card(with_measurement(described, measurement(acceptance_length=2.47)))
        for text in ("90.00%", "| 3 | 2.47 | 50.0 |", "**norm-before-residual** (inexact): Cause. Remedy."):
            assert text in card
        assert "pip install eagle3-export" in card

    def test_a_measurement_stands_with_its_conditions(self):
        odd = measurement(
            concurrency=64, hardware="H200", differences=["The server quantises the draft (fp8)."]
        )
        card = render_model_card(with_measurement(export(metrics=GOOD), odd))
        assert "| 3 | 2.50 | 50.0 | 64 | 8 from prompts.txt | sglang 0.5.23 | H200 |" in card
        assert "- At 3 draft steps: The server quantises the draft (fp8)." in card


@given(st.text(max_size=40), st.text(max_size=40))
def test_text_from_a_checkpoint_cannot_break_the_card(verifier, cause):
    finding = {"id": "x", "level": "info", "cause": cause, "remedy": cause}
    card = render_model_card(export(source=source(verifier or None), sglang=serving(findings=[finding])))
    ModelCard(card)
    assert card.count("```") == 2
    body = re.sub(r"```bash.*?\n```\n", "", card.split("---\n", 2)[2], flags=re.DOTALL)
    assert "<" not in body
    assert [line for line in body.split("\n") if line.startswith("# ")] == [body.split("\n")[1]]
