"""`watch` against the order in which the trainer writes, and against a real run."""

from __future__ import annotations

import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.convert import Conversion
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.errors import CheckpointError, StorageError, UsageError
from eagle3_export.output_directory import OutputDirectory
from eagle3_export.storage.lock import output_lock
from eagle3_export.verify import verify_export
from eagle3_export.watch import RunWatcher, is_complete, watch_run
from tests.support.drafts import CONFIG, draft_tensors, safetensors_bytes, save_epoch


class Trainer:
    """Writes a checkpoint step by step as speculators 0.9.0 does (`train/trainer.py`, `train/checkpointer.py`)."""

    def __init__(self, save_path: Path) -> None:
        self.save_path = save_path
        self.clock = time.time_ns()

    def put(self, path: Path, content: bytes | str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content if isinstance(content, bytes) else content.encode())
        self.clock += 1_000_000
        os.utime(path, ns=(self.clock, self.clock))

    def weights(self, name: str, seed: int) -> None:
        aside = self.save_path / name / "aside"
        self.put(aside, safetensors_bytes(draft_tensors(seed=seed), {"format": "pt"}))
        aside.rename(aside.with_name("model.safetensors"))

    def save_model(self, name: str, seed: int = 0, version: str = "0.9.0") -> list[Any]:
        """`BaseCheckpointer.save_checkpoint`, then the scheduler."""
        directory = self.save_path / name
        return [
            lambda: self.put(
                directory / "config.json", json.dumps({**CONFIG, "speculators_version": version})
            ),
            lambda: self.weights(name, seed),
            lambda: self.put(directory / "optimizer_state_dict.pt", b"not read"),
            lambda: self.put(directory / "scheduler_state_dict.pt", b"not read"),
        ]

    def link(self, name: str, epoch: int) -> None:
        for old in self.save_path.glob(f"epoch{epoch}_*"):
            old.unlink()
        (self.save_path / name).symlink_to(str(epoch))

    def save_epoch(self, epoch: int, local_step: int = 0, seed: int = 0) -> list[Any]:
        """`Trainer.maybe_save_checkpoint`."""
        state = {
            "epoch": epoch,
            "local_step": local_step,
            "global_step": 100 * epoch + (local_step or 50) + seed,
        }
        marker = f"epoch{epoch}_" + (f"step{local_step}" if local_step else "end")
        return [
            *self.save_model(str(epoch), seed),
            lambda: self.put(self.save_path / str(epoch) / "training_state.json", json.dumps(state)),
            lambda: self.link(marker, epoch),
        ]

    def update_best(self, epoch: int, accuracy: float) -> list[Any]:
        """`Trainer.maybe_update_best` after its save."""
        metrics = {"loss_epoch": 1.0, **{f"full_acc_{k}_epoch": accuracy / (k + 1) for k in range(3)}}
        best = self.save_path / "checkpoint_best"
        return [
            lambda: self.put(self.save_path / str(epoch) / "val_metrics.json", json.dumps(metrics)),
            lambda: best.unlink(missing_ok=True),
            lambda: best.symlink_to(str(epoch)),
        ]


class Watched:
    def __init__(self, tmp_path: Path, **config: Any) -> None:
        self.run, self.out = tmp_path / "run", tmp_path / "run-sglang"
        self.run.mkdir(exist_ok=True)
        self.trainer = Trainer(self.run)
        self.reports: list[Conversion] = []
        export_config = ExportConfig(**config)
        self.output = OutputDirectory(self.out, self.run, keep_last=export_config.keep_last).__enter__()
        self.watcher = RunWatcher(self.run, self.output, export_config, self.reports.append)

    def close(self) -> None:
        self.output.__exit__(None, None, None)

    def steps(self, *parts: list[Any]) -> list[list[str]]:
        """Looks after each step; the names exported there."""
        seen = []
        for step in [step for part in parts for step in part]:
            step()
            before = len(self.reports)
            assert self.watcher.look()
            seen.append([Path(report.checkpoint).name for report in self.reports[before:]])
        return seen

    def exported(self) -> list[str]:
        return sorted(
            path.name
            for path in self.out.iterdir()
            if (path / "config.json").exists() and not path.is_symlink()
        )


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    watched = Watched(tmp_path)
    yield watched
    watched.close()


def test_a_save_is_exported_after_its_last_step_and_once(watched: Watched) -> None:
    assert watched.steps(watched.trainer.save_epoch(0)) == [[], [], [], [], [], ["0"]]
    assert watched.steps([lambda: None]) == [[]]
    assert verify_export(watched.out / "0", source=watched.run / "0").ok
    assert read_metadata(watched.out / "0").global_step == 50
    assert (watched.out / "latest").resolve().name == "0"


def test_a_mid_epoch_save_over_the_same_directory_waits_for_its_own_marker(watched: Watched) -> None:
    trainer = watched.trainer
    assert watched.steps(trainer.save_epoch(0, local_step=8, seed=1))[-1] == ["0"]
    assert watched.steps(trainer.save_epoch(0, local_step=16, seed=2)) == [[], [], [], [], [], ["0"]]
    assert watched.steps(trainer.save_epoch(0, seed=3)) == [[], [], [], [], [], ["0"]]
    assert read_metadata(watched.out / "0").global_step == 53
    assert verify_export(watched.out / "0", source=watched.run / "0").ok


def test_metrics_that_come_after_the_export_are_filled_in(watched: Watched) -> None:
    trainer = watched.trainer
    watched.steps(trainer.save_epoch(0), trainer.update_best(0, 0.5), trainer.save_epoch(1, seed=1))
    assert read_metadata(watched.out / "0").full_acc_0 == 0.5
    assert read_metadata(watched.out / "1").full_acc_0 is None
    assert ((watched.out / "best").resolve().name, (watched.out / "latest").resolve().name) == ("0", "1")
    assert len(watched.reports) == 2


def test_save_best_is_followed_through_its_sweep(watched: Watched) -> None:
    trainer = watched.trainer
    seen = watched.steps(trainer.save_model("0"), trainer.update_best(0, 0.4))
    assert seen == [[], [], [], [], [], [], ["0"]]
    seen = watched.steps(trainer.save_model("3", seed=3), trainer.update_best(3, 0.6))
    assert seen == [[], [], [], [], [], [], ["3"]]
    watched.steps([lambda: shutil.rmtree(watched.run / "0")])
    assert watched.exported() == ["0", "3"]
    assert (watched.out / "best").resolve().name == "3"
    assert read_metadata(watched.out / "3").full_acc_0 == 0.6


def test_an_interrupted_save_has_no_marker_but_its_optimizer(watched: Watched) -> None:
    assert watched.steps(watched.trainer.save_model("interrupted")) == [[], [], ["interrupted"], []]


@pytest.mark.parametrize("version", ["0.3.0", "0.6.0"])
def test_releases_without_markers(watched: Watched, version: str) -> None:
    assert watched.steps(watched.trainer.save_model("0", version=version)) == [[], [], ["0"], []]


def test_numbered_checkpoints_of_later_releases_need_their_marker(watched: Watched) -> None:
    assert watched.steps(watched.trainer.save_model("0", version="0.10.1")) == [[], [], [], []]


def test_a_restarted_watch_exports_only_what_is_missing(tmp_path: Path) -> None:
    first = Watched(tmp_path)
    first.steps(first.trainer.save_epoch(0))
    for step in [*first.trainer.save_epoch(1, seed=1), *first.trainer.update_best(0, 0.7)]:
        step()
    first.close()
    second = Watched(tmp_path)
    assert second.watcher.look()
    assert [Path(report.checkpoint).name for report in second.reports] == ["1"]
    assert read_metadata(second.out / "0").full_acc_0 == 0.7


def test_a_clock_set_back_hides_no_save(watched: Watched) -> None:
    trainer = watched.trainer
    watched.steps(trainer.save_epoch(0))
    trainer.clock -= 3600 * 10**9
    watched.steps(trainer.save_epoch(1, seed=1), trainer.save_epoch(0, seed=2))
    assert watched.exported() == ["0", "1"]
    assert read_metadata(watched.out / "0").global_step == 52
    assert verify_export(watched.out / "0", source=watched.run / "0").ok


def test_retention_is_not_undone_by_the_next_look(tmp_path: Path) -> None:
    watched = Watched(tmp_path, keep_last=2)
    for epoch in range(5):
        watched.steps(watched.trainer.save_epoch(epoch, seed=epoch))
    assert watched.exported() == ["3", "4"]
    watched.close()
    again = Watched(tmp_path, keep_last=2)
    assert again.watcher.look()
    assert (again.reports, again.exported()) == ([], ["3", "4"])


def test_a_checkpoint_that_cannot_be_exported_is_reported_once_and_holds_up_no_other(
    watched: Watched,
) -> None:
    trainer = watched.trainer
    for step in trainer.save_epoch(0):
        step()
    weights = watched.run / "0" / "model.safetensors"
    status = weights.stat()
    weights.write_bytes(weights.read_bytes()[:-1])
    os.utime(weights, ns=(status.st_mtime_ns, status.st_mtime_ns))
    for step in trainer.save_epoch(1):
        step()
    assert [watched.watcher.look(), watched.watcher.look()] == [False, False]
    assert [(Path(r.checkpoint).name, r.error is None) for r in watched.reports] == [
        ("0", False),
        ("1", True),
    ]
    assert "truncated" in str(watched.reports[0].error)
    assert ["0"] in watched.steps(trainer.save_epoch(0, seed=5))


def test_storage_faults_are_tried_again(watched: Watched) -> None:
    shutil.rmtree(watched.out)
    watched.out.write_text("a file where the directory should be")
    for step in watched.trainer.save_epoch(0):
        step()
    assert [watched.watcher.look(), watched.watcher.look()] == [False, False]
    assert len(watched.reports) == 1
    assert isinstance(watched.reports[0].error, StorageError)
    watched.out.unlink()
    assert watched.watcher.look()
    assert watched.exported() == ["0"]


def test_once(tmp_path: Path) -> None:
    save_epoch(tmp_path / "run" / "0")
    (tmp_path / "run" / "0" / "optimizer_state_dict.pt").touch()
    assert watch_run(tmp_path / "run", ExportConfig(), once=True)
    assert verify_export(tmp_path / "run-sglang" / "0", source=tmp_path / "run" / "0").ok
    with pytest.raises(CheckpointError, match="cannot be listed"):
        watch_run(tmp_path / "missing", ExportConfig(), once=True)
    with pytest.raises(UsageError, match="save_path"):
        watch_run(tmp_path / "run", ExportConfig(output_dir=str(tmp_path / "run" / "out")), once=True)
    with output_lock(tmp_path / "run-sglang"), pytest.raises(StorageError, match="Another export is running"):
        watch_run(tmp_path / "run", ExportConfig(), once=True)


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, "stop file"])
def test_ends_on_request_after_a_last_look(tmp_path: Path, how: Any) -> None:
    """Started before the run exists; what is complete when the end is asked for is still exported."""
    stop_file = tmp_path / "stop"

    def later() -> None:
        save_epoch(tmp_path / "run" / "0")
        stop_file.touch() if how == "stop file" else os.kill(os.getpid(), how)

    timer = threading.Timer(0.1, later)
    handlers = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)]
    timer.start()
    assert watch_run(tmp_path / "run", ExportConfig(), stop_file=stop_file, interval=0.05)
    timer.join()
    assert (tmp_path / "run-sglang" / "0" / "config.json").exists()
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)] == handlers


def test_half_written_training_state_is_not_complete(tmp_path: Path) -> None:
    checkpoint = save_epoch(tmp_path / "run" / "0")
    assert is_complete(checkpoint)
    (checkpoint / "training_state.json").write_text('{"epoch": 0, "local')
    assert not is_complete(checkpoint)
