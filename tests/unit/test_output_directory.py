"""A run's output directory: what a path is, whose exports lie there, and that nothing else is ever touched."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.convert import convert_run
from eagle3_export.errors import ExportInvalidError
from eagle3_export.export import prepare_export
from eagle3_export.output_directory import OutputDirectory, add_measurement, locate_export
from eagle3_export.speculators_format.checkpoint import read_checkpoint
from tests.support.documents import measurement
from tests.support.drafts import METRICS, save_epoch


@pytest.fixture
def exported(tmp_path: Path) -> Path:
    """A run of two checkpoints and its output directory `out`."""
    for epoch in (0, 1):
        save_epoch(tmp_path / "run" / str(epoch), seed=epoch, epoch=epoch)
    convert_run(tmp_path / "run", tmp_path / "out", ExportConfig())
    return tmp_path / "out"


def test_a_pointer_is_the_export_that_it_points_to_now(exported: Path) -> None:
    located = locate_export(exported / "latest")
    (exported / "latest").unlink()
    (exported / "latest").symlink_to("0")
    assert located == exported / "1"
    assert locate_export(exported / "latest") == locate_export(exported / "0") == exported / "0"


@pytest.mark.parametrize(
    ("path", "what", "remedy"),
    [
        ("run", "is the save_path of a training run", "convert --all"),
        ("run/1", "is a checkpoint, not an export", "convert"),
        ("run/checkpoint_best", "is a checkpoint, not an export", "convert"),
        ("out", "is the output directory of a run", "best"),
        ("out/index.json", "is a file", "latest"),
        ("out/7", "There is no", "latest"),
        ("out/dangling", "points to 9, which is not there", "latest"),
        ("empty", "holds no export", "latest"),
    ],
)
def test_what_is_no_export_is_called_by_its_name(
    exported: Path, tmp_path: Path, path: str, what: str, remedy: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "run" / "checkpoint_best").symlink_to("1")
    (exported / "dangling").symlink_to("9")
    with pytest.raises(ExportInvalidError) as caught:
        locate_export(tmp_path / path)
    assert what in caught.value.what
    assert remedy in caught.value.remedy


def test_a_best_that_nothing_was_rated_for_says_so(tmp_path: Path) -> None:
    checkpoint = save_epoch(tmp_path / "run" / "0")
    (checkpoint / "val_metrics.json").unlink()
    convert_run(tmp_path / "run", tmp_path / "out", ExportConfig())
    with pytest.raises(ExportInvalidError) as caught:
        locate_export(tmp_path / "out" / "best")
    assert caught.value.why == json.loads((tmp_path / "out" / "index.json").read_text())["reasons"]["best"]
    assert str(tmp_path / "out" / "0") in caught.value.remedy


def test_an_export_that_lacks_a_file_is_still_one_to_check(exported: Path) -> None:
    os.unlink(exported / "1" / "metadata.json")  # noqa: PTH108
    assert locate_export(exported / "1") == exported / "1"


def test_numbers_that_come_later_do_not_move_latest(tmp_path: Path) -> None:
    """An export whose step is not known is sorted last, and need not be the newest."""
    for name in ("0", "interrupted", "1"):
        save_epoch(tmp_path / "run" / name, epoch=1)
    (tmp_path / "run" / "interrupted" / "training_state.json").unlink()
    with OutputDirectory(tmp_path / "out", tmp_path / "run") as output:
        for name in ("interrupted", "0", "1"):
            with prepare_export(
                read_checkpoint(tmp_path / "run" / name), output.path / name, ExportConfig()
            ) as prepared:
                prepared.run(output, replace=False)
        output.add_metrics("1", METRICS)
        assert (output.path / "latest").readlink() == Path("1")
    add_measurement(tmp_path / "out" / "0", measurement())
    assert (tmp_path / "out" / "latest").readlink() == Path("1")
