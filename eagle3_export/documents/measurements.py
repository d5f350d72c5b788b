"""When one measurement may be compared with another: the one definition, and what follows from those that may."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.documents.schema import ExportMetadata, Measured, Measurement
from eagle3_export.estimates.acceptance import trained_steps
from eagle3_export.estimates.reasons import explained

# All that a throughput or an acceptance length depends on besides the draft and its depth.
CONDITIONS = (
    "server",
    "server_version",
    "target",
    "hardware",
    "topk",
    "sampling",
    "concurrency",
    "prompts",
)


def differing_conditions(one: Measurement, other: Measurement) -> list[str]:
    """Returns what keeps two measurements from being compared, each as `name: value against value`.

    A measurement of a server that ran the draft otherwise than its export asks can be compared with no other.
    """
    return [
        f"{name}: {getattr(one, name)} against {getattr(other, name)}"
        for name in (*CONDITIONS, _prompts_key(one, other))
        if getattr(one, name) != getattr(other, name)
    ] + [difference for measurement in (one, other) for difference in measurement.differences]


def _prompts_key(one: Measurement, other: Measurement) -> str:
    """What tells prompts apart: themselves, else where they came from, all that older documents record."""
    return "prompts_digest" if one.prompts_digest and other.prompts_digest else "prompt_source"


def _same_conditions(one: Measurement, other: Measurement) -> bool:
    """Whether two measurements differ at most in the depth and in how the server ran the draft."""
    return all(getattr(one, name) == getattr(other, name) for name in (*CONDITIONS, _prompts_key(one, other)))


@dataclass(frozen=True, slots=True)
class MeasurementSeries:
    """Measurements of one export under the same conditions.

    Attributes:
        measurements: the newest first, at least one.
    """

    measurements: tuple[Measurement, ...]

    @property
    def newest(self) -> Measurement:
        """The measurement that was made last."""
        return self.measurements[0]

    def at(self, num_steps: int) -> Measurement | None:
        """Returns the newest measurement at one draft depth, or None."""
        return next((m for m in self.measurements if m.num_steps == num_steps), None)

    def lengths(self) -> dict[int, float]:
        """Returns the measured acceptance length by depth, bonus token included; shallow depths first."""
        newest = {m.num_steps: m.acceptance_length for m in reversed(self.measurements)}
        return dict(sorted(newest.items()))

    def timed(self) -> list[Measurement]:
        """Returns the measurements whose throughputs can be compared.

        If any of them has a speed-up, those without one are left out: their speed-up was rejected as noise.
        """
        timed = [m for m in self.measurements if m.tokens_per_second]
        return [m for m in timed if m.speedup] or timed

    def cost_ratio(self) -> float | None:
        """Returns c in speed-up = AL(K) / (1 + K·c), by least squares over the depths K that have a speed-up.

        Returns:
            time of one draft step / time of one step without a draft; None where no speed-up shows it.
        """
        excess = [
            (m.num_steps, (m.reported_acceptance_length or m.acceptance_length) / m.speedup - 1)
            for m in self.measurements
            if m.speedup and m.speedup > 0
        ]
        if not excess:
            return None
        # Sorted, so that the order in which the depths were measured makes no difference.
        ratio = sum(sorted(depth * cost for depth, cost in excess)) / sum(depth**2 for depth, _ in excess)
        return ratio if 0 < ratio < math.inf else None


def series(metadata: ExportMetadata) -> list[MeasurementSeries]:
    """Returns an export's measurements, those that can be compared together; the series measured last first."""
    return in_series(measurements_of(metadata))


def measurements_of(metadata: ExportMetadata) -> list[Measurement]:
    """Returns all measurements of an export, the newest first."""
    return metadata.measured.measurements if metadata.measured else []


def in_series(measurements: Sequence[Measurement]) -> list[MeasurementSeries]:
    """Returns measurements of one export, those that can be compared together.

    Args:
        measurements: the newest first.
    """
    groups: list[list[Measurement]] = []
    for measurement in measurements:
        for group in groups:
            if not differing_conditions(group[0], measurement):
                group.append(measurement)
                break
        else:
            groups.append([measurement])
    return [MeasurementSeries(tuple(group)) for group in groups]


def headline(measurements: Sequence[Measurement], trained: int) -> Measurement | None:
    """Returns the measurement to show first.

    It is the one at the trained depth, for which the estimate is not extrapolated, made under the newest conditions
    that have one; else the one nearest to that depth under the newest conditions. The order in which depths were
    measured makes no difference. A server that ran the draft otherwise than its export asks counts only if there is
    no other.

    Args:
        measurements: of one export, the newest first.
        trained: the depth the export was trained for; 0 where it is not known.
    """
    faithful = in_series([m for m in measurements if not m.differences] or measurements)
    at_trained = (found for one in faithful if (found := one.at(trained)) is not None)
    nearest = (
        min(one.measurements, key=lambda m: (abs(m.num_steps - trained), m.num_steps)) for one in faithful
    )
    return next(at_trained, None) or next(nearest, None)


def headline_measurement(metadata: ExportMetadata) -> Measurement | None:
    """Returns the measurement of an export to show first, or None if there is none; see `headline`."""
    return headline(measurements_of(metadata), trained_steps(metadata.acceptance))


def with_newest(measurements: Sequence[Measurement], measurement: Measurement) -> list[Measurement]:
    """Returns the measurements of one export, the newest first, with one more.

    Args:
        measurements: so far, the newest first. One at the same depth under the same conditions is replaced.
        measurement: the new one.
    """
    kept = [
        m
        for m in measurements
        if m.num_steps != measurement.num_steps or not _same_conditions(m, measurement)
    ]
    return [measurement, *kept]


def measured_section(measurements: Sequence[Measurement], trained: int) -> Measured | None:
    """Returns the `measured` section of an export, or None if there is no measurement.

    Args:
        measurements: the newest first.
        trained: the depth the export was trained for; 0 where it is not known.
    """
    shown = headline(measurements, trained)
    if shown is None:
        return None
    ratios = (ratio for one in in_series(measurements) if (ratio := one.cost_ratio()) is not None)
    cost_ratio = next(ratios, None)
    return Measured(
        acceptance_length=shown.acceptance_length,
        num_steps=shown.num_steps,
        cost_ratio=cost_ratio,
        measurements=list(measurements),
        reasons=explained({"cost_ratio": cost_ratio}, {}, "No measurement with a speed-up shows it."),
    )
