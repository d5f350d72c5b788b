"""`watch` beside a real training run that knows nothing of it."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.convert import Conversion
from eagle3_export.verify import verify_export
from eagle3_export.watch import watch_run
from tests.support.training.checks import (
    assert_same_weights,
    checkpoints,
    exported_accuracies,
    exports,
    metadata,
)
from tests.support.training.tiny_world import TinyWorld, train_arguments

pytestmark = [pytest.mark.slow, pytest.mark.training]

# The trainer alone, and at its end the file that tells the watch that the run is over.
TRAIN = """
import sys
from pathlib import Path
from eagle3_export.training.cpu_rehearsal import enable_cpu_rehearsal
from speculators.train import cli
from speculators.train.config import TrainConfig
enable_cpu_rehearsal()
try:
    cli.main(TrainConfig.resolve(sys.argv[2:]))
finally:
    Path(sys.argv[1]).touch()
"""


def train_watched(world: TinyWorld, save_path: Path, *extra: str, **changes: object) -> list[Conversion]:
    """Trains in a process of its own while this one watches; what the watch reported."""
    stop_file = save_path.with_name("over")
    arguments = [*train_arguments(world, save_path, **changes), *extra]
    process = subprocess.Popen(
        [sys.executable, "-c", TRAIN, stop_file, *arguments], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    reports: list[Conversion] = []
    try:
        well = watch_run(save_path, ExportConfig(), stop_file=stop_file, interval=0.05, report=reports.append)
        output, _ = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, output.decode()[-2000:]
    assert well
    return reports


def test_every_save_of_a_run_is_exported_once(world: TinyWorld, save_path: Path) -> None:
    """Twice in each epoch, into the same directory, and validated in between."""
    reports = train_watched(world, save_path, "--checkpoint-freq", "0.5", epochs=2)
    output = save_path.with_name(save_path.name + "-sglang")
    assert [report.error for report in reports] == [None] * len(reports)
    assert checkpoints(save_path) == exports(output) == {"0", "1"}
    for name in ("0", "1"):
        assert verify_export(output / name, source=save_path / name).ok
        assert_same_weights(save_path / name, output / name)
        state = json.loads((save_path / name / "training_state.json").read_text())
        assert metadata(output / name)["global_step"] == state["global_step"]
    best = (save_path / "checkpoint_best").readlink().name
    validation = json.loads((save_path / best / "val_metrics.json").read_text())
    assert exported_accuracies(output / best)[0] == validation["full_acc_0_epoch"]
    assert (output / "latest").readlink().name == "1"


def test_save_best_is_followed(world: TinyWorld, save_path: Path) -> None:
    reports = train_watched(world, save_path, "--save-best", epochs=3)
    output = save_path.with_name(save_path.name + "-sglang")
    [kept] = checkpoints(save_path)
    assert kept in exports(output)
    assert_same_weights(save_path / kept, output / kept)
    validation = json.loads((save_path / kept / "val_metrics.json").read_text())
    assert exported_accuracies(output / kept)[0] == validation["full_acc_0_epoch"]
    assert len(reports) == len(exports(output))
