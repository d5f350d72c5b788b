"""Exports on the dashboards a run already has.

speculators sends metrics through the standard-library logger `speculators.metrics` as nested dicts with
`extra={"step": n}`; `--logger` hangs the handlers of tensorboard, wandb, trackio and mlflow on it
(`speculators.train.logger.setup_metric_logger`). A record sent there shows up wherever the run is watched.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from eagle3_export.documents.row import export_row
from eagle3_export.documents.schema import ExportMetadata

logger = logging.getLogger(__name__)

METRIC_LOGGER = "speculators.metrics"
EXPORTED, FAILED = 1, 0
PATH_TAG = "export/path"
# What is known when an export is made, and is not shown again with the numbers of its validation.
OF_THE_COPY = ("status", "bytes", "seconds")


def export_series(metadata: ExportMetadata) -> dict[str, Any]:
    """Returns the numbers of one export by name below `export/`; what is unknown is left out, never repeated or NaN.

    `acceptance_length/depth_<K>` is the estimate for K draft steps. `status` is 1 for an export and 0 for a
    failure. Bytes are those of the tensor file; seconds are the time to write it.

    Args:
        metadata: what was exported.
    """
    return {"status": EXPORTED, **export_row(metadata).dashboard()}


def log_export(metadata: ExportMetadata, path: str | Path, *, step: int | None = None) -> None:
    """Shows a new export on the run's dashboards.

    Args:
        metadata: what was exported.
        path: the export's directory, shown as text (a tag in mlflow).
        step: the trainer's global step now; default: the checkpoint's. wandb drops a step below the last it saw,
            so an export that finishes while training goes on must not send its own.
    """
    with _without_harm_to_training():
        _send({**export_series(metadata), "path": str(path)}, metadata.global_step if step is None else step)
        _tag_mlflow_run(path)


def log_validation(metadata: ExportMetadata, *, step: int | None = None) -> None:
    """Shows on the run's dashboards what a validation says about an export that `log_export` has shown before.

    Args:
        metadata: of the export, with its numbers.
        step: the trainer's global step now; default: the checkpoint's.
    """
    numbers = {name: value for name, value in export_series(metadata).items() if name not in OF_THE_COPY}
    with _without_harm_to_training():
        _send(numbers, metadata.global_step if step is None else step)


def log_failure(message: str, *, step: int | None) -> None:
    """Shows on the run's dashboards that a checkpoint was not exported, and why.

    Args:
        message: why.
        step: the trainer's global step now.
    """
    with _without_harm_to_training():
        _send({"status": FAILED, "message": message}, step)


def log_to_accelerator(accelerator: Any, metadata: ExportMetadata, *, step: int | None = None) -> None:
    """Shows an export on the trackers of an `accelerate.Accelerator`, for scripts that have one.

    Args:
        accelerator: one whose `init_trackers` has been called.
        metadata: what was exported.
        step: default: the checkpoint's global step.
    """
    values = {f"export/{name}": value for name, value in export_series(metadata).items()}
    accelerator.log(values, step=metadata.global_step if step is None else step)


@contextmanager
def _without_harm_to_training() -> Iterator[None]:
    """Lets training go on when a dashboard cannot be reached or does not take a value, and says so in the log."""
    try:
        yield
    except Exception as error:
        logger.warning("A dashboard of the run did not take an export's numbers: %r", error)


def _send(values: dict[str, Any], step: int | None) -> None:
    logging.getLogger(METRIC_LOGGER).info({"export": values}, extra={"step": step})


def _tag_mlflow_run(path: str | Path) -> None:
    """Says in a tag of the active mlflow run where the export lies; mlflow's handler keeps numbers only."""
    mlflow = sys.modules.get("mlflow")
    run = mlflow.active_run() if mlflow is not None else None
    if mlflow is not None and run is not None:
        mlflow.MlflowClient().set_tag(run.info.run_id, PATH_TAG, str(path))
