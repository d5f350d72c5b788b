"""Verification: what is not as exported is found, and what could not be checked is never called verified."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3_export import verify as verify_module
from eagle3_export.errors import StorageError
from eagle3_export.export import export_checkpoint
from eagle3_export.numeric.compare import NumericReport
from eagle3_export.storage.safetensors_file import read_safetensors
from eagle3_export.verify import verify_export
from tests.support.drafts import write_checkpoint

ALL_CHECKS = [
    "weights",
    "config",
    "metadata",
    "model card",
    "names, shapes and dtypes",
    "vocabulary map",
    "finite values",
    "findings",
    "source",
]


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return write_checkpoint(tmp_path / "run" / "1")


@pytest.fixture
def export(checkpoint: Path, tmp_path: Path) -> Path:
    return export_checkpoint(checkpoint, tmp_path / "out" / "1").directory


def test_a_good_export_passes_every_check(export: Path, checkpoint: Path) -> None:
    report = verify_export(export, source=checkpoint)
    assert (report.problems, report.checks, report.export) == ([], ALL_CHECKS, export)


# Which checks need the file that is missing or says nothing, so that they cannot run.
NEEDS: dict[str, list[str]] = {
    "config.json": ["names, shapes and dtypes", "vocabulary map", "metadata", "findings", "source"],
    "metadata.json": ["findings"],
    "model.safetensors": [
        "names, shapes and dtypes",
        "vocabulary map",
        "finite values",
        "metadata",
        "source",
    ],
}


@pytest.mark.parametrize("content", ["{}", "[]", "null", '""', "0", "", "no JSON", None])
@pytest.mark.parametrize("name", NEEDS)
def test_what_could_not_be_checked_is_a_problem(
    export: Path, checkpoint: Path, name: str, content: str | None
) -> None:
    """Whatever is wrong with a file: its own check fails, and each check that needs it says that it did not run."""
    (export / name).unlink()
    if content is not None:
        (export / name).write_text(content)
    report = verify_export(export, source=checkpoint)
    unchecked = {check for check, problem in report.problems if problem.startswith("not checked: ")}
    assert unchecked >= set(NEEDS[name]) - {"metadata"}
    assert not report.ok
    assert {check for check, _ in report.problems} >= set(NEEDS[name])
    assert report.checks == ALL_CHECKS


def test_weights_are_read_for_infinite_values_whatever_the_config_says(
    export: Path, checkpoint: Path
) -> None:
    weights = export / "model.safetensors"
    norm = read_safetensors(weights).tensors["norm.weight"]
    content = bytearray(weights.read_bytes())
    content[norm.offset : norm.offset + 2] = b"\x80\x7f"  # bfloat16 infinity
    weights.write_bytes(content)
    (export / "config.json").write_text("{}")
    assert "finite values" in dict(verify_export(export).problems)


def test_a_pointer_is_followed_once(
    export: Path, checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run moves `latest` on between the reading of the weights and that of the config."""
    other = write_checkpoint(tmp_path / "run" / "2", seed=5, edit_config=_other_eps)
    export_checkpoint(other, tmp_path / "out" / "2")
    latest = tmp_path / "out" / "latest"
    latest.symlink_to("1")
    read_safetensors = verify_module.read_safetensors

    def read_and_move_on(path: Path) -> Any:
        file = read_safetensors(path)
        latest.unlink()
        latest.symlink_to("2")
        return file

    monkeypatch.setattr(verify_module, "read_safetensors", read_and_move_on)
    report = verify_export(latest, source=checkpoint)
    assert (report.problems, report.export) == ([], export)


def _other_eps(config: dict[str, Any]) -> None:
    config["transformer_layer_config"]["rms_norm_eps"] = 0.01


def test_a_source_that_may_not_be_read_is_named(
    export: Path, checkpoint: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: object) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(verify_module, "read_checkpoint", refuse)
    with pytest.raises(StorageError, match=rf"Reading {checkpoint} failed: Permission denied"):
        verify_export(export, source=checkpoint)


@pytest.mark.parametrize("value", [[], ["x"], ["-7"], ["1e3"]])
def test_a_window_that_is_no_number_is_a_problem(export: Path, checkpoint: Path, value: list[str]) -> None:
    metadata = json.loads((export / "metadata.json").read_text())
    metadata["sglang"]["launch_arguments"] += ["--speculative-draft-window-size", *value]
    (export / "metadata.json").write_text(json.dumps(metadata))
    report = verify_export(export, source=checkpoint, numeric=True)
    assert [check for check, _ in report.problems] == ["numbers"]
    assert "--speculative-draft-window-size" in report.problems[0][1]


def test_the_comparison_gets_the_window_of_the_launch_arguments(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def window_of_eight(config: dict[str, Any]) -> None:
        config["transformer_layer_config"].update(layer_types=["sliding_attention"], sliding_window=8)

    checkpoint = write_checkpoint(tmp_path / "1", edit_config=window_of_eight)
    export = export_checkpoint(checkpoint, tmp_path / "out").directory
    asked: dict[str, Any] = {}

    def compare(directory: Path, source: Path, **options: Any) -> NumericReport:
        asked.update(options)
        return NumericReport(str(directory), str(source), per_step=[1e-6])

    monkeypatch.setattr(verify_module, "verify_numeric", compare)
    report = verify_export(export, source=checkpoint, numeric=True)
    assert report.ok, report.problems
    # SGLang does not count the query's own key.
    assert asked == {"draft_window": 7}


def test_without_metadata_the_numbers_are_not_compared_and_that_is_said(
    export: Path, checkpoint: Path
) -> None:
    (export / "metadata.json").unlink()
    problems = dict(verify_export(export, source=checkpoint, numeric=True).problems)
    assert problems["numbers"] == "not checked: the check of metadata failed."


def test_the_digest_is_that_of_every_copy_and_tells_a_changed_weight(
    export: Path, checkpoint: Path, tmp_path: Path
) -> None:
    recorded = json.loads((export / "metadata.json").read_text())["weights"]["digest"]
    copy = shutil.copytree(export, tmp_path / "elsewhere" / "renamed")
    assert (verify_export(copy).digest, verify_export(copy).problems) == (recorded, [])
    again = export_checkpoint(checkpoint, tmp_path / "out" / "again").metadata
    assert again.weights.digest == recorded
    weights = bytearray((copy / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    report = verify_export(copy)
    assert report.digest not in (recorded, None)
    assert any("not those that were exported" in problem for _, problem in report.problems)
