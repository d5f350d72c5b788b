"""The measurements of a run beside what was predicted: by prompts, export and depth, and by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from eagle3_export.documents.measurements import differing_conditions, headline_measurement, series
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.estimates.acceptance import estimated_positions
from eagle3_export.report.runs import Run, estimate_at
from eagle3_export.report.ties import advised

HEADING = "Measured / predicted"
LEFT = ("prompts", "export", "concurrency")


@dataclass(frozen=True, slots=True)
class Against:
    """One measurement beside the prediction of its export.

    Attributes:
        export: what was measured.
        measurement: what a server did.
        predicted: acceptance length estimated for that depth; None where it is not known.
        positions: share of chains predicted to be accepted at each position; empty where it is not known.
    """

    export: ExportMetadata
    measurement: Measurement
    predicted: float | None
    positions: list[float]

    @classmethod
    def of(cls, export: ExportMetadata, measurement: Measurement) -> Against:
        """Returns a measurement of an export beside the export's estimate."""
        depth = measurement.num_steps
        return cls(
            export, measurement, estimate_at(export, depth), estimated_positions(export.acceptance, depth)
        )

    def as_dict(self) -> dict[str, Any]:
        """For `--json`."""
        found = self.measurement
        return {
            "export": self.export.name,
            "prompt_source": found.prompt_source,
            "prompts_digest": found.prompts_digest,
            "prompts": found.prompts,
            "concurrency": found.concurrency,
            "num_steps": found.num_steps,
            "measured": found.acceptance_length,
            "predicted": self.predicted,
            "predicted_by": self.export.acceptance.method,
            "measured_to_predicted": found.acceptance_length / self.predicted if self.predicted else None,
            "measured_per_position": found.accepted_per_position,
            "predicted_per_position": self.positions or None,
            "differences": found.differences,
        }


def measured_series(run: Run) -> list[list[Against]]:
    """Returns the measurements of a run: in each list those of one export that can be compared, shallow depths first.

    Lists of measurements that can be compared with each other follow each other.
    """
    lists = [
        [
            Against.of(export, measurement)
            for depth in one.lengths()
            if (measurement := one.at(depth)) is not None
        ]
        for export in run.exports
        for one in series(export)
    ]
    groups: list[list[list[Against]]] = []
    for found in lists:
        alike = (g for g in groups if not differing_conditions(g[0][0].measurement, found[0].measurement))
        group = next(alike, None)
        if group is None:
            groups.append([found])
        else:
            group.append(found)
    return [found for group in groups for found in group]


def measured_table(run: Run) -> list[dict[str, str]]:
    """Returns a line for each of `measured_series`, as cells by heading: one for each depth that was measured."""
    lists = measured_series(run)
    depths = sorted({each.measurement.num_steps for found in lists for each in found})
    rows = []
    for found in lists:
        newest = found[0].measurement
        row = {
            "prompts": _prompts(newest),
            "export": found[0].export.name + " *" * bool(newest.differences),
            "concurrency": str(newest.concurrency),
        }
        lengths = {each.measurement.num_steps: _cell(each) for each in found}
        rows.append(row | {f"{depth} step{'s' * (depth != 1)}": lengths.get(depth, "") for depth in depths})
    return rows


def measured_notes(run: Run) -> list[str]:
    """Returns what has to be said below that table: where servers ran a draft otherwise, and the single positions."""
    differences = {
        f"* {each.export.name}: {difference}"
        for found in measured_series(run)
        for each in found
        for difference in each.measurement.differences
    }
    shown = by_position(run)
    if shown is None:
        return sorted(differences)
    measured, predicted = (
        _shares(each) for each in (shown.measurement.accepted_per_position, shown.positions)
    )
    return [
        *sorted(differences),
        f"Accepted at position 1, 2, … (export {shown.export.name}, {shown.measurement.num_steps} draft steps):"
        f" measured {measured}; predicted {predicted} ({shown.export.acceptance.method}).",
    ]


def by_position(run: Run) -> Against | None:
    """Returns the measurement whose positions are shown: of the export to deploy, else the newest of the run.

    Args:
        run: whose exports are looked at.

    Returns:
        None where no measurement has positions that were predicted too.
    """
    advice = advised(run)
    measured = [
        (export, found) for export in run.exports if (found := headline_measurement(export)) is not None
    ]
    measured.sort(key=lambda pair: pair[1].measured_at, reverse=True)
    measured.sort(key=lambda pair: advice is None or pair[0].name != advice.export.name)
    for export, measurement in measured:
        against = Against.of(export, measurement)
        if measurement.accepted_per_position and against.positions:
            return against
    return None


def _prompts(measurement: Measurement) -> str:
    """The name of the prompts, and enough of their digest to tell two of one name apart."""
    digest = measurement.prompts_digest.removeprefix("sha256:")[:8]
    name = measurement.prompt_source.rstrip("/").rsplit("/", 1)[-1]
    return f"{measurement.prompts} of {name}{f' ({digest})' if digest else ''}"


def _cell(against: Against) -> str:
    predicted = "-" if against.predicted is None else f"{against.predicted:.2f}"
    return f"{against.measurement.acceptance_length:.2f} / {predicted}"


def _shares(shares: Sequence[float] | None) -> str:
    return " ".join(f"{share:.2f}" for share in shares or ())
