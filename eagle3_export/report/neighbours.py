"""What the measurements of a run's other exports say about one that was not measured."""

from __future__ import annotations

from dataclasses import dataclass

from eagle3_export.documents.measurements import differing_conditions, headline_measurement
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.estimates.acceptance import estimated_interval
from eagle3_export.estimates.comparison import Basis
from eagle3_export.report.runs import Run, estimate_at


@dataclass(frozen=True, slots=True)
class Neighbours:
    """Exports of the same run that were measured at one depth, under the same conditions.

    Attributes:
        ratios: measured / predicted acceptance length by the export's name, at least one.
        num_steps: their depth.
        expected: lowest and highest acceptance length of the unmeasured export, if it comes out as they did; None
            where it has no estimate at that depth.
    """

    ratios: dict[str, float]
    num_steps: int
    expected: tuple[float, float] | None


def measured_neighbours(run: Run, unmeasured: ExportMetadata) -> Neighbours | None:
    """Returns what the other exports of the run were measured at, or None if none of them can be compared with it.

    Args:
        run: whose exports are looked at.
        unmeasured: one of them.
    """
    found: list[tuple[ExportMetadata, Measurement]] = []
    for export in run.exports:
        measurement = headline_measurement(export)
        comparable = Basis.common([export.acceptance, unmeasured.acceptance]) is not None
        if export.name != unmeasured.name and comparable and measurement is not None:
            found.append((export, measurement))
    if not found:
        return None
    _, newest = max(found, key=lambda pair: pair[1].measured_at)
    ratios = {
        export.name: measurement.acceptance_length / estimate
        for export, measurement in found
        if measurement.num_steps == newest.num_steps
        and not differing_conditions(measurement, newest)
        and (estimate := estimate_at(export, newest.num_steps))
    }
    if not ratios:
        return None
    own = estimate_at(unmeasured, newest.num_steps)
    expected = None if own is None else (own * min(ratios.values()), own * max(ratios.values()))
    return Neighbours(ratios, newest.num_steps, expected)


def outside_interval(run: Run) -> tuple[int, int]:
    """Returns how many exports were measured outside the interval of their estimate, and how many have both.

    Only faithful servers count: those that ran the draft as its export asks.
    """
    outside = both = 0
    for export in run.exports:
        measurement = headline_measurement(export)
        if measurement is None or measurement.differences:
            continue
        interval = estimated_interval(export.acceptance, measurement.num_steps)
        if interval is not None:
            both += 1
            outside += not interval.low <= measurement.acceptance_length <= interval.high
    return outside, both
