"""The validations that a run logged, written by the writer that speculators' own handler uses."""

from __future__ import annotations

import logging
import sys
from pathlib import Path

import pytest

from eagle3_export.export import export_checkpoint
from tests.support.drafts import write_checkpoint

pytest.importorskip("tensorboard")
logger_module = pytest.importorskip("speculators.train.logger")


def logged(directory: Path, *records: tuple[int, dict]) -> None:
    handler = logger_module.TensorBoardHandler(run_name="x", log_dir=directory)
    for step, values in records:
        record = logging.makeLogRecord({"msg": values, "step": step})
        handler.emit(record)
    handler._tboard_writer.close()


def validation(*full: float) -> dict[str, float]:
    return {f"full_acc_{k}_epoch": value for k, value in enumerate(full)} | {"loss_epoch": 1.0}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    state = {"epoch": 0, "local_step": 0, "global_step": 100}
    checkpoint = write_checkpoint(tmp_path / "run" / "0", training_state=state)
    (checkpoint.parent / "run.yaml").write_text(
        f"train:\n  logging:\n    logger: tensorboard,wandb\n    log_dir: {tmp_path / 'logs'}\n"
    )
    return checkpoint


def test_a_validation_that_only_the_log_has_is_filled_in_and_its_file_named(
    run: Path, tmp_path: Path
) -> None:
    logged(
        tmp_path / "logs",
        (90, {"train": {"loss": 2.0}, "epoch": 0}),
        (100, {"val": validation(0.8, 0.6, 0.4), "epoch": 0}),
        (200, {"val": validation(0.9, 0.8, 0.7), "epoch": 1}),
    )
    document = export_checkpoint(run, tmp_path / "out").metadata
    assert document.estimated_acceptance_length == pytest.approx(2.8)
    assert (document.acceptance.method, document.acceptance.source) == ("cumulative", "validation")
    assert str(tmp_path / "logs") in document.acceptance.assumptions[0]


@pytest.mark.parametrize(("step", "epoch"), [(101, 0), (100, 1)], ids=["another step", "another epoch"])
def test_step_and_epoch_are_those_of_the_checkpoint(run: Path, tmp_path: Path, step: int, epoch: int) -> None:
    logged(tmp_path / "logs", (step, {"val": validation(0.8, 0.6, 0.4), "epoch": epoch}))
    document = export_checkpoint(run, tmp_path / "out").metadata
    assert document.estimated_acceptance_length is None
    assert "holds no validation of epoch 0 at step 100" in document.reasons["estimated_acceptance_length"]


def test_a_validation_of_which_a_part_is_logged_is_not_taken(run: Path, tmp_path: Path) -> None:
    logged(
        tmp_path / "logs", (100, {"val": validation(0.8, 0.6)}), (100, {"train": {"loss": 1.0}, "epoch": 0})
    )
    assert export_checkpoint(run, tmp_path / "out").metadata.estimated_acceptance_length is None


def test_the_logs_of_several_runs_decide_nothing(run: Path, tmp_path: Path) -> None:
    for name, share in (("one", 0.8), ("other", 0.7)):
        logged(tmp_path / "logs" / name, (100, {"val": validation(share, 0.6, 0.4), "epoch": 0}))
    document = export_checkpoint(run, tmp_path / "out").metadata
    assert document.estimated_acceptance_length is None
    assert "logs of several runs" in document.reasons["estimated_acceptance_length"]


def test_what_the_checkpoint_has_is_never_replaced(run: Path, tmp_path: Path) -> None:
    logged(tmp_path / "logs", (100, {"val": validation(0.8, 0.6, 0.4), "epoch": 0}))
    (run / "val_metrics.json").write_text('{"full_acc_0_epoch": 0.5, "full_acc_1_epoch": 0.2}')
    assert export_checkpoint(run, tmp_path / "out").metadata.estimated_acceptance_length == pytest.approx(1.7)


def test_without_tensorboard_it_is_named(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logged(tmp_path / "logs", (100, {"val": validation(0.8, 0.6, 0.4), "epoch": 0}))
    monkeypatch.setitem(sys.modules, "tensorboard.backend.event_processing.event_file_loader", None)
    document = export_checkpoint(run, tmp_path / "out").metadata
    assert "pip install tensorboard" in document.reasons["estimated_acceptance_length"]
