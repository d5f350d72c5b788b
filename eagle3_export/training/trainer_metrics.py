"""What a trainer's metrics leave out: the positions behind its accuracies, and a stand-in for validation.

The trainer is speculators' (0.8 and 0.9): `val_epoch` averages raw `<metric>_sum` and `<metric>_total` over
its batches and hands them to the module's `normalize_counted_metrics`, which keeps their ratio only.
"""

from __future__ import annotations

import contextlib
import logging
import re
import sys
from collections import deque
from collections.abc import Iterator, Mapping
from typing import Any

from eagle3_export.dashboards import METRIC_LOGGER

TRAINER_MODULE = "speculators.train.trainer"
NORMALIZE = "normalize_counted_metrics"
RECENT_RECORDS = 50

_TOTAL = re.compile(r"full_acc_\d+_total")
_ACCURACY = re.compile(r"(?:full|cond)_acc_\d+")


@contextlib.contextmanager
def counted_positions(num_batches: int) -> Iterator[dict[str, int]]:
    """Positions that a validation counts its accuracies over, filled in while the block runs.

    Args:
        num_batches: of the validation, which divides the totals by it before anyone sees them.

    Yields:
        `full_acc_<k>_total` to positions over all ranks; stays empty with a trainer that works otherwise.
    """
    trainer = sys.modules.get(TRAINER_MODULE)
    original = getattr(trainer, NORMALIZE, None)
    positions: dict[str, int] = {}
    if trainer is None or original is None:
        yield positions
        return

    def normalize(metrics: Mapping[str, Any], *args: Any, **options: Any) -> Any:
        positions.update(
            {key: round(value * num_batches) for key, value in metrics.items() if _TOTAL.fullmatch(key)}
        )
        return original(metrics, *args, **options)

    setattr(trainer, NORMALIZE, normalize)
    try:
        yield positions
    finally:
        setattr(trainer, NORMALIZE, original)


class RecentTraining(logging.Handler):
    """The accuracies of the last training batches that were logged, for runs without validation."""

    def __init__(self) -> None:
        super().__init__()
        self._recent: deque[dict[str, float]] = deque(maxlen=RECENT_RECORDS)

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Hears what the trainer logs while the block runs."""
        metrics = logging.getLogger(METRIC_LOGGER)
        metrics.addHandler(self)
        try:
            yield
        finally:
            metrics.removeHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        """Keeps the accuracies of a training record; passes over everything else."""
        metrics = record.msg.get("train") if isinstance(record.msg, Mapping) else None
        if isinstance(metrics, Mapping):
            found = {key: value for key, value in metrics.items() if _ACCURACY.fullmatch(str(key))}
            if found:
                self._recent.append(found)

    def average(self) -> dict[str, float] | None:
        """Mean over the records since the last call, None without any."""
        records = list(self._recent)
        self._recent.clear()
        if not records:
            return None
        common = set.intersection(*(set(record) for record in records))
        return {key: sum(record[key] for record in records) / len(records) for key in sorted(common)}
