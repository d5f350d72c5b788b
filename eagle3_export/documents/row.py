"""One export as one flat row: what the index, CSV, JSON, the tables and the dashboards show of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_export.documents.measurements import headline_measurement
from eagle3_export.documents.schema import ExportMetadata

# Shown on the run's dashboards below `export/`.
DASHBOARD_SERIES = (
    "epoch",
    "global_step",
    "full_acc_0",
    "estimated_acceptance_length",
    "adjusted_acceptance_length",
    "position_mean_acceptance_length",
    "first_choice_share",
    "interval_low",
    "interval_high",
    "bytes",
    "seconds",
)


@dataclass(frozen=True, slots=True)
class ExportRow:
    """The numbers of one export; what is unknown is None.

    The names are those of `index.json`, whose entries are rows.

    Attributes:
        name: of the export's directory.
        epoch: counted from 0.
        global_step: optimizer steps before the save.
        kind: which save it was.
        full_acc_0: share of positions where the first drafted token is right.
        estimated_acceptance_length: tokens per verify step.
        acceptance_num_steps: draft depth of the estimate.
        acceptance_method: how it was derived.
        acceptance_source: validation, training or estimate.
        includes_bonus_token: whether the estimate does.
        interval_low: lower end of its 95 % interval.
        interval_high: upper end.
        adjusted_acceptance_length: the estimate for text that leaves the draft vocabulary as often as the run's.
        position_mean_acceptance_length: 1 + sum of full_acc_k, a mean over positions.
        first_choice_share: share of the replayed text that is the verifier's own first choice.
        measured_acceptance_length: of the measurement to show first, bonus token included.
        measured_num_steps: its draft depth.
        measured_tokens_per_second: its throughput.
        measured_speedup: that against decoding without a draft.
        bytes: size of the tensor file.
        seconds: time to write it.
        created_at: UTC, ISO 8601.
        per_depth: estimated acceptance length, bonus token included, by draft depth.
    """

    name: str
    epoch: int | None
    global_step: int | None
    kind: str
    full_acc_0: float | None
    estimated_acceptance_length: float | None
    acceptance_num_steps: int | None
    acceptance_method: str | None
    acceptance_source: str | None
    includes_bonus_token: bool | None
    interval_low: float | None
    interval_high: float | None
    adjusted_acceptance_length: float | None
    position_mean_acceptance_length: float | None
    first_choice_share: float | None
    measured_acceptance_length: float | None
    measured_num_steps: int | None
    measured_tokens_per_second: float | None
    measured_speedup: float | None
    bytes: int
    seconds: float
    created_at: str
    per_depth: dict[int, float]

    def dashboard(self) -> dict[str, Any]:
        """Returns the known numbers that a dashboard shows, by name."""
        series = {name: getattr(self, name) for name in DASHBOARD_SERIES}
        series |= {f"acceptance_length/depth_{depth}": length for depth, length in self.per_depth.items()}
        return {name: value for name, value in series.items() if value is not None}


def export_row(export: ExportMetadata) -> ExportRow:
    """Returns the row of one export."""
    acceptance, interval, measured = (
        export.acceptance,
        export.acceptance.interval,
        headline_measurement(export),
    )
    return ExportRow(
        name=export.name,
        epoch=export.epoch,
        global_step=export.global_step,
        kind=export.source.kind,
        full_acc_0=export.full_acc_0,
        estimated_acceptance_length=export.estimated_acceptance_length,
        acceptance_num_steps=acceptance.num_steps,
        acceptance_method=acceptance.method,
        acceptance_source=acceptance.source,
        includes_bonus_token=acceptance.includes_bonus_token,
        interval_low=interval.low if interval else None,
        interval_high=interval.high if interval else None,
        adjusted_acceptance_length=acceptance.adjusted_acceptance_length,
        position_mean_acceptance_length=acceptance.position_mean_acceptance_length,
        first_choice_share=acceptance.replay.first_choice_share if acceptance.replay else None,
        measured_acceptance_length=measured.acceptance_length if measured else None,
        measured_num_steps=measured.num_steps if measured else None,
        measured_tokens_per_second=measured.tokens_per_second if measured else None,
        measured_speedup=measured.speedup if measured else None,
        bytes=export.weights.bytes,
        seconds=export.weights.seconds,
        created_at=export.created_at,
        per_depth={row.num_steps: row.acceptance_length for row in acceptance.per_depth},
    )
