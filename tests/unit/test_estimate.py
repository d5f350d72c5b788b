"""`estimate` as far as no draft has to run: where the number goes, and what is refused first."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml
from typer.testing import CliRunner

from eagle3_export import (
    CheckpointError,
    ExportInvalidError,
    UsageError,
    estimate_checkpoint,
    export_checkpoint,
)
from eagle3_export.cli import app
from eagle3_export.estimate import export_of
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from tests.support.drafts import save_epoch


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    return save_epoch(tmp_path / "run" / "checkpoints" / "3", epoch=3)


def test_the_export_lies_beside_the_save_path(checkpoint: Path) -> None:
    assert export_of(read_checkpoint(checkpoint), None) is None
    export = export_checkpoint(checkpoint, checkpoint.parent.with_name("checkpoints-sglang") / "3").directory
    assert export_of(read_checkpoint(checkpoint), None) == export


@pytest.mark.parametrize("relative", [True, False])
def test_the_export_lies_where_the_run_exports_to(checkpoint: Path, tmp_path: Path, relative: bool) -> None:
    export = export_checkpoint(checkpoint, tmp_path / "run" / "served" / "3").directory
    settings = {
        "train": {"trainer": {"save_path": "checkpoints"}},
        "sglang_export": {"output_dir": "served" if relative else str(export.parent)},
    }
    (checkpoint.parent / "run.yaml").write_text(yaml.safe_dump(settings))
    found = export_of(read_checkpoint(checkpoint), None)
    assert found is not None and found.resolve() == export


def test_an_export_of_an_earlier_save_is_not_its_export(checkpoint: Path) -> None:
    export = export_checkpoint(checkpoint, checkpoint.parent.with_name("checkpoints-sglang") / "3").directory
    save_epoch(checkpoint, 1, epoch=3)
    assert export_of(read_checkpoint(checkpoint), None) is None
    with pytest.raises(ExportInvalidError, match="an earlier save of") as refused:
        export_of(read_checkpoint(checkpoint), export)
    assert "--overwrite" in refused.value.remedy


def test_an_export_of_another_checkpoint_is_refused_and_not_to_be_replaced(
    checkpoint: Path, tmp_path: Path
) -> None:
    other = save_epoch(checkpoint.with_name("4"), 2, epoch=4)
    export = export_checkpoint(other, tmp_path / "export").directory
    with pytest.raises(ExportInvalidError, match=f"of {other}, not of {checkpoint}") as refused:
        export_of(read_checkpoint(checkpoint), export)
    assert "--overwrite" not in refused.value.remedy


def test_a_pointer_is_followed(checkpoint: Path, tmp_path: Path) -> None:
    export = export_checkpoint(checkpoint, tmp_path / "exports" / "3").directory
    (tmp_path / "exports" / "best").symlink_to("3")
    assert export_of(read_checkpoint(checkpoint), tmp_path / "exports" / "best") == export


@pytest.mark.parametrize("options", [{"num_steps": 0}, {"num_steps": 65}, {"limit": 0}])
def test_numbers_out_of_range(checkpoint: Path, options: dict[str, int]) -> None:
    with pytest.raises(UsageError):
        estimate_checkpoint(checkpoint, **options)


def test_without_the_trainer(checkpoint: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "speculators", None)
    monkeypatch.setitem(sys.modules, "speculators.train.trainer", None)
    done = CliRunner().invoke(app, ["estimate", str(checkpoint)])
    assert done.exit_code == 2
    assert "pip install 'eagle3-export[train]'" in done.stderr


def test_what_is_no_checkpoint(checkpoint: Path, tmp_path: Path) -> None:
    export = export_checkpoint(checkpoint, tmp_path / "exports" / "3").directory
    done = CliRunner().invoke(app, ["estimate", str(export)])
    assert done.exit_code == 2
    assert "is an export already" in done.stderr
    with pytest.raises(CheckpointError, match="neither a directory nor in the local Hugging Face cache"):
        estimate_checkpoint("org/nowhere")
    with pytest.raises(CheckpointError, match=r"has no config\.json") as refused:
        estimate_checkpoint(checkpoint.parent)
    assert str(checkpoint) in refused.value.remedy
