"""A run's output directory: what a path is, whose exports lie there, and that nothing else is ever touched."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.convert import convert_run
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import ExportInvalidError
from eagle3_export.estimates.replay import DepthCounts, Replay, ReplayCounts, ReplayedData, replay_record
from eagle3_export.export import export_checkpoint, prepare_export
from eagle3_export.late_numbers import add_estimate, add_measurement
from eagle3_export.output_directory import OutputDirectory, locate_export
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


def replay(accepted: int, *, digest: str = "sha256:a", of_the_run: bool = True) -> Replay:
    """Of 100 verify steps with one draft each, of which so many were right."""
    counts = ReplayCounts(1, {1: DepthCounts([100 - accepted, accepted], documents=1)}, documents=1, spans=1)
    return replay_record(counts, data=ReplayedData("/data", 0, 1, 0, None, of_the_run, digest))


def index_of(output: Path) -> dict[str, Any]:
    return json.loads((output / "index.json").read_text())


def test_an_estimate_moves_best_among_what_it_can_be_compared_with(exported: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    for name, accepted in (("0", 80), ("1", 60)):
        metadata = add_estimate(exported / name, read_checkpoint(run / name), METRICS, replay(accepted))
        assert metadata.acceptance.source == "estimate"
        assert metadata.estimated_acceptance_length == pytest.approx(1 + accepted / 100)
        assert f"**{1 + accepted / 100:.2f}**" in (exported / name / "README.md").read_text()
    assert (exported / "best").readlink() == Path("0")
    assert (index_of(exported)["best"], index_of(exported)["latest"]) == ("0", "1")
    # A third export, replayed on easier text, is not the best one.
    save_epoch(run / "2", seed=2, epoch=2)
    convert_run(run, exported, ExportConfig())
    add_estimate(
        exported / "2", read_checkpoint(run / "2"), METRICS, replay(99, digest="sha256:b", of_the_run=False)
    )
    assert index_of(exported)["best"] == "0"


def test_an_estimate_is_written_while_a_run_exports_there(exported: Path, tmp_path: Path) -> None:
    """The run holds the directory for as long as it trains; its next export refreshes the index."""
    with OutputDirectory(exported, tmp_path / "run"):
        add_estimate(exported / "0", read_checkpoint(tmp_path / "run" / "0"), METRICS, replay(80))
    assert read_metadata(exported / "0").estimated_acceptance_length == pytest.approx(1.8)
    with OutputDirectory(exported, tmp_path / "run") as output:
        output.refresh()
    assert index_of(exported)["exports"][0]["estimated_acceptance_length"] == pytest.approx(1.8)


def test_an_estimate_of_other_weights_is_refused_and_nothing_written(exported: Path, tmp_path: Path) -> None:
    before = {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()}
    with pytest.raises(ExportInvalidError, match="not of"):
        add_estimate(exported / "0", read_checkpoint(tmp_path / "run" / "1"), METRICS, replay(80))
    assert {path: path.read_bytes() for path in exported.rglob("*") if path.is_file()} == before


def test_beside_a_lone_export_no_index_appears(tmp_path: Path) -> None:
    checkpoint = save_epoch(tmp_path / "run" / "0")
    export = export_checkpoint(checkpoint, tmp_path / "exports" / "mine").directory
    add_estimate(export, read_checkpoint(checkpoint), METRICS, replay(80))
    assert [path.name for path in export.parent.iterdir()] == ["mine"]
