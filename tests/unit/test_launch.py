"""The command that serves an export: the same depth everywhere, and a target that fits."""

from __future__ import annotations

import json
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.errors import ExportInvalidError, IncompatibleDraftError, UsageError
from eagle3_export.export import export_checkpoint
from eagle3_export.launch import draft_arguments, pair_with_target, serving_command
from tests.support.drafts import END_OF_EPOCH, METRICS, write_checkpoint

# The target that tests.support.drafts trains for, as its own config.json would say.
TARGET: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "num_hidden_layers": 8,
    "hidden_size": 16,
    "vocab_size": 40,
    "max_position_embeddings": 512,
    "dtype": "bfloat16",
}


def write_target(directory: Path, **changed: Any) -> str:
    directory.mkdir()
    config = {key: value for key, value in {**TARGET, **changed}.items() if value is not None}
    (directory / "config.json").write_text(json.dumps(config))
    return str(directory)


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An export whose verifier was not at hand."""
    root = tmp_path_factory.mktemp("launch")
    return export_checkpoint(write_checkpoint(root / "run" / "1"), root / "out" / "1").directory


@pytest.fixture
def target(tmp_path: Path) -> str:
    return write_target(tmp_path / "target")


def ids(found: Any) -> dict[str, str]:
    return {finding.id: finding.level for finding in found}


# One depth everywhere.

FIVE = {**METRICS, "full_acc_3_epoch": 0.3, "full_acc_4_epoch": 0.2}


@pytest.mark.parametrize("metrics", [None, FIVE], ids=["no metrics", "metrics"])
def test_card_metadata_and_launch_name_the_depth_that_was_trained(
    tmp_path: Path, target: str, metrics: dict[str, float] | None
) -> None:
    def five_steps(config: dict[str, Any]) -> None:
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = 5

    checkpoint = write_checkpoint(
        tmp_path / "run" / "1", edit_config=five_steps, training_state=END_OF_EPOCH, val_metrics=metrics
    )
    result = export_checkpoint(checkpoint, tmp_path / "out")
    wanted = "--speculative-num-steps 5 --speculative-eagle-topk 1 --speculative-num-draft-tokens 6"
    assert wanted in shlex.join(result.metadata.sglang.launch_arguments)
    card = (result.directory / "README.md").read_text()
    assert wanted in " ".join(card.replace("\\\n", " ").split())
    command = serving_command(result.directory, target)
    assert (command.num_steps, wanted in command.shell) == (5, True)


@pytest.mark.parametrize("recorded", [None, 0, -1, True, "5", 10**30])
def test_a_depth_that_makes_no_sense_is_taken_for_none(tmp_path: Path, target: str, recorded: Any) -> None:
    def odd_steps(config: dict[str, Any]) -> None:
        config["speculators_config"]["proposal_methods"][0]["speculative_tokens"] = recorded

    result = export_checkpoint(write_checkpoint(tmp_path / "1", edit_config=odd_steps), tmp_path / "out")
    assert result.metadata.sglang.launch_arguments[2:4] == ["--speculative-num-steps", "3"]
    assert serving_command(result.directory, target).num_steps == 3


# The target is checked where it is named.


def test_the_target_trained_for_is_taken_and_no_longer_unknown(export: Path, target: str) -> None:
    assert ids(pair_with_target(export, target).findings) == {}
    assert "--model-path" in serving_command(export, target).shell


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"hidden_size": 32}, "hidden_size 16, the verifier has 32"),
        ({"vocab_size": 41}, "vocab_size 40, the verifier has 41"),
        ({"num_hidden_layers": 4}, r"layers \[2, 4, 5\]"),
        # Gemma3 reads ids as Llama does; Mamba captures nothing, in no release.
        ({"architectures": ["MambaForCausalLM"]}, "MambaForCausalLM cannot capture"),
    ],
)
def test_a_target_that_does_not_fit_is_refused(
    export: Path, tmp_path: Path, changed: dict[str, Any], word: str
) -> None:
    other = write_target(tmp_path / "other", **changed)
    for ask in (lambda: serving_command(export, other), lambda: draft_arguments(export, other, 3)):
        with pytest.raises(IncompatibleDraftError, match=word) as refusal:
            ask()
        named = {finding.id for finding in refusal.value.findings}
        assert named == {"target-class" if "architectures" in changed else "verifier-mismatch"}
        assert refusal.value.remedy


def test_ids_written_for_another_class_are_refused(tmp_path: Path, target: str) -> None:
    """DeepSeek takes [3, 4, 5] as it stands from 0.5.13 on, Llama adds one to each (FACTS of the wheels)."""
    deepseek = write_target(tmp_path / "deepseek", architectures=["DeepseekV3ForCausalLM"])

    def for_deepseek(config: dict[str, Any]) -> None:
        config["eagle_aux_hidden_state_layer_ids"] = [3, 4, 5]
        config["speculators_config"]["verifier"]["name_or_path"] = deepseek

    checkpoint = write_checkpoint(tmp_path / "1", edit_config=for_deepseek)
    made = export_checkpoint(checkpoint, tmp_path / "out").directory
    assert json.loads((made / "config.json").read_text())["eagle_config"][
        "eagle_aux_hidden_state_layer_ids"
    ] == [3, 4, 5]
    assert ids(pair_with_target(made, deepseek).findings) == {}
    with pytest.raises(IncompatibleDraftError, match=r"capture \[4, 5, 6\]") as refusal:
        pair_with_target(made, target)
    assert [finding.id for finding in refusal.value.findings] == ["verifier-mismatch"]


def test_a_target_whose_config_is_not_at_hand_is_said_with_the_places(export: Path, tmp_path: Path) -> None:
    absent = tmp_path / "absent"
    (found,) = serving_command(export, str(absent)).findings
    assert (found.id, found.level) == ("verifier-unknown", "info")
    assert str(absent) in found.cause
    (found,) = serving_command(export, "some/model").findings
    assert "some/model" in found.cause
    assert "Hugging Face cache" in found.cause


def test_what_the_targets_config_leaves_open_is_said(export: Path, tmp_path: Path) -> None:
    (found,) = pair_with_target(export, write_target(tmp_path / "terse", vocab_size=None)).findings
    assert (found.id, found.level) == ("verifier-unknown", "info")
    assert "vocab_size" in found.cause


def test_what_the_target_needs_is_said_of_this_target(export: Path, tmp_path: Path) -> None:
    quantised = write_target(tmp_path / "q", quantization_config={"quant_method": "fp8"}, dtype="float16")
    pair = pair_with_target(export, quantised)
    assert ids(pair.findings) == {"draft-dtype": "info", "draft-quantization": "info"}
    assert pair.arguments(3)[-4:] == [
        "--dtype",
        "float16",
        "--speculative-draft-model-quantization",
        "unquant",
    ]


@pytest.mark.parametrize("name", ["", "  ", "--model"])
def test_a_target_without_a_name(export: Path, name: str) -> None:
    with pytest.raises(UsageError, match="names no model"):
        serving_command(export, name)


@pytest.mark.parametrize("cost_ratio", [-1.0, -1e-9, float("nan"), float("inf")])
def test_a_cost_ratio_that_is_none(export: Path, target: str, cost_ratio: float) -> None:
    with pytest.raises(UsageError, match="cost ratio"):
        serving_command(export, target, cost_ratio=cost_ratio)


@pytest.mark.parametrize(
    "damage",
    [
        lambda config: config.pop("eagle_config"),
        lambda config: config.update(architectures=["LlamaForCausalLM"]),
        lambda config: config.update(hidden_size="16"),
        lambda config: config["eagle_config"].update(eagle_aux_hidden_state_layer_ids="1,3,4"),
        lambda config: config["rope_parameters"].update(rope_theta="large"),
    ],
)
def test_a_bad_export_is_not_called_a_bad_checkpoint(
    export: Path, target: str, tmp_path: Path, damage: Any
) -> None:
    bad = shutil.copytree(export, tmp_path / "bad")
    config = json.loads((bad / "config.json").read_text())
    damage(config)
    (bad / "config.json").write_text(json.dumps(config))
    with pytest.raises(ExportInvalidError) as refusal:
        pair_with_target(bad, target)
    assert refusal.value.remedy == "Export the checkpoint again."
