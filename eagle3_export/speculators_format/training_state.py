"""What the trainer writes beside the weights: how far training was, and what its validation measured."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from eagle3_export.speculators_format.run_files import TRAINING_STATE_FILE, VAL_METRICS_FILE
from eagle3_export.storage.regular_file import read_json_object


@dataclass(frozen=True, slots=True)
class TrainingState:
    """`training_state.json` of speculators 0.5 on.

    Attributes:
        local_step: steps done in an epoch that is not finished, 0 at its end.
        global_step: optimizer steps since the run began.
    """

    epoch: int | None
    local_step: int | None
    global_step: int | None


def read_training_records(directory: Path) -> tuple[TrainingState | None, dict[str, float] | None]:
    """Reads `training_state.json` and `val_metrics.json` of a checkpoint; None for one that is not there.

    Args:
        directory: of the checkpoint.

    Returns:
        the training state, and the numbers in the validation metrics.

    Raises:
        CheckpointError: one of them is no JSON object.
    """
    state, metrics = (
        read_json_object(path) if os.path.exists(path) else None  # noqa: PTH110 (Path.exists may raise)
        for path in (directory / TRAINING_STATE_FILE, directory / VAL_METRICS_FILE)
    )
    return (
        None if state is None else TrainingState(*(_count(state, key) for key in _COUNTS)),
        None
        if metrics is None
        else {key: _as_float(value) for key, value in metrics.items() if _is_number(value)},
    )


_COUNTS = ("epoch", "local_step", "global_step")


def _count(document: dict[str, Any], key: str) -> int | None:
    value = document.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _as_float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:  # an integer of more than 308 digits
        return math.inf
