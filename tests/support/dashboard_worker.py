"""Run by test_dashboards.py in a process of its own: logging set-up and the backends' runs are process-wide.

Usage: python -m tests.support.dashboard_worker DIRECTORY. Trains there with the real trainer and every logger it has.
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from eagle3_export.dashboards import METRIC_LOGGER, log_to_accelerator
from eagle3_export.documents.json_files import read_metadata
from tests.support.training.recorder import train
from tests.support.training.tiny_world import make_world

LOGGERS = "tensorboard,wandb,trackio,mlflow"


def main(directory: Path) -> None:
    world = make_world(directory / "world")
    status, records = train(
        world, directory / "run", ["--logger", LOGGERS, "--run-name", "demo"], log_dir=str(directory / "logs")
    )
    if status != 0:
        raise SystemExit("\n".join(records.messages))
    for handler in logging.getLogger(METRIC_LOGGER).handlers:
        handler.flush()
        handler.close()
    _accelerate(directory)


def _accelerate(directory: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(directory / "accelerate"))
    accelerator.init_trackers("drafts")
    log_to_accelerator(accelerator, read_metadata(directory / "run-sglang" / "0"))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
