"""Run by test_dashboards.py in a process of its own: logging set-up and the backends' runs are process-wide.

Usage: python -m tests.dashboard_worker OUTPUT_DIRECTORY
"""

from __future__ import annotations

import logging
import sys
from pathlib import Path

from eagle3_export.dashboards import METRIC_LOGGER, log_export, log_failure, log_to_accelerator
from tests.test_metadata import export

FIRST = {"full_acc_0_epoch": 0.8, "full_acc_1_epoch": 0.6, "full_acc_2_epoch": 0.4}
SECOND = {"full_acc_0_epoch": 0.85, "full_acc_1_epoch": 0.7, "full_acc_2_epoch": 0.5}


def main(output: Path) -> None:
    from speculators.train.logger import setup_metric_logger

    setup_metric_logger(["tensorboard", "wandb", "trackio", "mlflow"], "demo", str(output / "logs"))
    metrics = logging.getLogger(METRIC_LOGGER)
    metrics.info({"train": {"loss": 1.0}}, extra={"step": 99})
    log_export(export("0", step=100), output / "0")
    log_export(export("0", step=100, metrics=FIRST), output / "0")
    metrics.info({"train": {"loss": 0.5}}, extra={"step": 220})
    log_export(export("1", epoch=1, step=200, metrics=SECOND), output / "1", step=220)
    log_failure("The disk is full.", step=300)
    for handler in metrics.handlers:
        handler.flush()
        handler.close()
    _accelerate(output)


def _accelerate(output: Path) -> None:
    from accelerate import Accelerator

    accelerator = Accelerator(cpu=True, log_with="tensorboard", project_dir=str(output / "accelerate"))
    accelerator.init_trackers("drafts")
    log_to_accelerator(accelerator, export("0", step=100, metrics=FIRST))
    accelerator.end_training()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
