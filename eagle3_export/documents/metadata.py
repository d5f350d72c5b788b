"""``metadata.json`` of an export: built when it is written, completed when validation or a server has spoken."""

from __future__ import annotations

import platform
import sys
from collections.abc import Mapping, Sequence
from importlib import metadata as installed
from typing import Any

from eagle3_export._version import __version__
from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.schema import (
    ExportMetadata,
    Measured,
    Measurement,
    Serving,
    Source,
    Weights,
)
from eagle3_export.estimates.acceptance import (
    DEFAULT_NUM_STEPS,
    NO_ACCURACIES,
    AccuracySource,
    Coverage,
    estimate_acceptance,
)
from eagle3_export.estimates.accuracies import step_accuracies

NOT_VALIDATED = "This checkpoint has not been validated yet."
NOT_MEASURED = "Not measured on a server yet; `eagle3-export measure` does it."


def build_metadata(
    *,
    name: str,
    epoch: int | None,
    global_step: int | None,
    sglang: Serving,
    source: Source,
    weights: Weights,
    metrics: Mapping[str, Any] | None = None,
    metrics_source: AccuracySource = "validation",
    metrics_missing_reason: str | None = None,
    num_steps: Sequence[int] = DEFAULT_NUM_STEPS,
    coverage: Coverage | None = None,
    versions: Mapping[str, str] | None = None,
) -> ExportMetadata:
    """Describe one export.

    Args:
        name: the export's directory name.
        epoch: epoch of the checkpoint, or None where it does not say.
        global_step: optimizer steps before the save, or None.
        metrics: the trainer's metrics of exactly this checkpoint, or None where there are none (yet).
        metrics_source: validation, or training for the fallback of runs without validation.
        metrics_missing_reason: why there are none; default: not validated yet.
        num_steps: draft depths to estimate for.
        coverage: of the draft vocabulary over the run's text, where known.
        versions: default: :func:`loaded_versions`.
    """
    no_state = "The checkpoint has no readable training_state.json."
    reasons = {name: no_state for name, v in (("epoch", epoch), ("global_step", global_step)) if v is None}
    return ExportMetadata(
        epoch=epoch,
        global_step=global_step,
        measured=None,
        name=name,
        created_at=utc_now(),
        sglang=sglang,
        source=source,
        weights=weights,
        versions=dict(versions if versions is not None else loaded_versions()),
        **_acceptance_values(
            metrics,
            metrics_source,
            metrics_missing_reason or NOT_VALIDATED,
            num_steps,
            coverage,
            {**reasons, "measured": NOT_MEASURED},
        ),
    )


def with_metrics(
    metadata: ExportMetadata,
    metrics: Mapping[str, Any] | None,
    *,
    source: AccuracySource = "validation",
    missing_reason: str = NOT_VALIDATED,
) -> ExportMetadata:
    """The same export with the accuracies that its own validation (or training) measured."""
    depths = metadata.acceptance.requested_num_steps
    values = _acceptance_values(
        metrics, source, missing_reason, depths, metadata.acceptance.coverage, metadata.reasons
    )
    return _changed(metadata, values)


def with_measurement(metadata: ExportMetadata, measurement: Measurement) -> ExportMetadata:
    """The same export with one more measurement; an older one of the same kind is replaced."""
    kind = ("num_steps", "topk", "prompt_source", "server", "sampling", "concurrency", "target")
    old = metadata.measured.measurements if metadata.measured else []
    kept = [m for m in old if any(getattr(m, key) != getattr(measurement, key) for key in kind)]
    measurements = [measurement, *kept]
    cost_ratio = _cost_ratio(measurements)
    measured = Measured(
        acceptance_length=measurement.acceptance_length,
        num_steps=measurement.num_steps,
        cost_ratio=cost_ratio,
        measurements=measurements,
        reasons={"cost_ratio": "No measurement with a speed-up shows it."} if cost_ratio is None else {},
    )
    reasons = {name: why for name, why in metadata.reasons.items() if name != "measured"}
    return _changed(metadata, {"measured": measured, "reasons": reasons})


def _cost_ratio(measurements: Sequence[Measurement]) -> float | None:
    """c in speed-up = AL(K) / (1 + K·c), least squares over the measurements that have a speed-up."""
    excess = [
        (m.num_steps, (m.reported_acceptance_length or m.acceptance_length) / m.speedup - 1)
        for m in measurements
        if m.speedup
    ]
    if not excess:
        return None
    ratio = sum(depth * cost for depth, cost in excess) / sum(depth**2 for depth, _ in excess)
    return ratio if ratio > 0 else None


def _changed(metadata: ExportMetadata, values: Mapping[str, Any]) -> ExportMetadata:
    """A validated copy; keys of newer releases, which this one does not know, are kept."""
    return ExportMetadata.model_validate({**dict(metadata), **values})


def _acceptance_values(
    metrics: Mapping[str, Any] | None,
    source: AccuracySource,
    missing_reason: str,
    num_steps: Sequence[int],
    coverage: Coverage | None,
    reasons: Mapping[str, str],
) -> dict[str, Any]:
    """The leading numbers, their reasons and the ``acceptance`` section."""
    accuracies = step_accuracies(metrics or {})
    estimate = estimate_acceptance(
        accuracies,
        num_steps,
        source=source,
        coverage=coverage,
        missing_reason=missing_reason if metrics is None else NO_ACCURACIES,
    )
    leading = {
        "full_acc_0": accuracies.full_acc_0,
        "estimated_acceptance_length": estimate.estimated_acceptance_length,
    }
    kept = {name: why for name, why in reasons.items() if name not in leading}
    why = {
        name: estimate.reasons.get(name) or estimate.reasons["estimated_acceptance_length"]
        for name, value in leading.items()
        if value is None
    }
    return {**leading, "acceptance": estimate, "reasons": {**kept, **why}}


def loaded_versions() -> dict[str, str]:
    """Releases of this package, Python, and of those training libraries that this process has loaded."""
    versions = {"eagle3_export": __version__, "python": platform.python_version()}
    for name in ("speculators", "torch", "transformers", "accelerate"):
        if name in sys.modules:
            versions[name] = installed.version(name)
    return versions
