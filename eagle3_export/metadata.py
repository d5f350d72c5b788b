"""Writing and reading ``metadata.json`` of an export and ``index.json`` of a run."""

from __future__ import annotations

import json
import platform
import sys
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from importlib import metadata as installed
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from eagle3_export import __version__
from eagle3_export.acceptance import (
    DEFAULT_NUM_STEPS,
    NO_ACCURACIES,
    AccuracySource,
    Coverage,
    estimate_acceptance,
    step_accuracies,
)
from eagle3_export.errors import ExportInvalidError
from eagle3_export.schema import (
    SCHEMA_VERSION,
    ExportIndex,
    ExportMetadata,
    FindingRecord,
    IndexEntry,
    Measured,
    Measurement,
    Serving,
    Source,
    Weights,
)

__all__ = [
    "ExportIndex",
    "ExportMetadata",
    "FindingRecord",
    "IndexEntry",
    "Measured",
    "Measurement",
    "Serving",
    "Source",
    "Weights",
    "build_index",
    "build_metadata",
    "choose_best",
    "in_training_order",
    "loaded_versions",
    "read_index",
    "read_metadata",
    "to_json",
    "utc_now",
    "with_measurement",
    "with_metrics",
]

MAX_DOCUMENT_BYTES = 16 << 20

NOT_VALIDATED = "This checkpoint has not been validated yet."
NOT_MEASURED = "Not measured on a server yet; `eagle3-export measure` does it."

_Document = TypeVar("_Document", bound=BaseModel)


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


def build_index(
    exports: Sequence[ExportMetadata], *, latest: str | None = None, best: str | None = None
) -> ExportIndex:
    """List a run's exports in order of training.

    Args:
        exports: their metadata, in any order.
        latest: name the ``latest`` pointer has; default: the one saved last.
        best: name the ``best`` pointer has; default: :func:`choose_best`.
    """
    ordered = in_training_order(exports)
    latest = latest or (ordered[-1].name if ordered else None)
    best = best or choose_best(ordered)
    reasons = {}
    if latest is None:
        reasons["latest"] = "Nothing has been exported yet."
    if best is None:
        reasons["best"] = "No export has an estimate from validation yet."
    return ExportIndex(
        latest=latest,
        best=best,
        updated_at=utc_now(),
        exports=[_index_entry(export) for export in ordered],
        reasons=reasons,
    )


def choose_best(exports: Sequence[ExportMetadata]) -> str | None:
    """Name of the export with the highest estimate from validation, the later one of two that are equal.

    Only estimates on the scale of most are compared: a geometric one does not count the bonus token.
    """
    rated = [
        export
        for export in exports
        if export.acceptance.source == "validation" and export.estimated_acceptance_length is not None
    ]
    methods = [export.acceptance.includes_bonus_token for export in rated]
    comparable = [e for e in rated if e.acceptance.includes_bonus_token == max(methods, key=methods.count)]
    if not comparable:
        return None
    return max(comparable, key=lambda e: (e.estimated_acceptance_length or 0.0, _training_order(e))).name


def in_training_order(exports: Sequence[ExportMetadata]) -> list[ExportMetadata]:
    """The exports as training saved them; those that do not know their step come last."""
    return sorted(exports, key=_training_order)


def _training_order(export: ExportMetadata) -> tuple[bool, int, int, str]:
    step = export.global_step
    return step is None, step or 0, export.epoch if export.epoch is not None else -1, export.created_at


def _index_entry(export: ExportMetadata) -> IndexEntry:
    acceptance, measured = export.acceptance, export.measured
    values: dict[str, Any] = {
        "name": export.name,
        "epoch": export.epoch,
        "global_step": export.global_step,
        "full_acc_0": export.full_acc_0,
        "estimated_acceptance_length": export.estimated_acceptance_length,
        "measured_acceptance_length": measured.acceptance_length if measured else None,
        "measured_num_steps": measured.num_steps if measured else None,
        "acceptance_source": acceptance.source,
        "acceptance_method": acceptance.method,
        "acceptance_num_steps": acceptance.num_steps,
        "includes_bonus_token": acceptance.includes_bonus_token,
        "per_depth": {str(row.num_steps): row.acceptance_length for row in acceptance.per_depth},
        "kind": export.source.kind,
        "created_at": export.created_at,
        "bytes": export.weights.bytes,
        "seconds": export.weights.seconds,
    }
    known = {
        **export.reasons,
        "measured_acceptance_length": export.reasons.get("measured", ""),
        "measured_num_steps": export.reasons.get("measured", ""),
        "acceptance_source": acceptance.reasons.get("source", ""),
        "acceptance_method": acceptance.reasons.get("method", ""),
        "acceptance_num_steps": acceptance.reasons.get("num_steps", ""),
        "includes_bonus_token": acceptance.reasons.get("includes_bonus_token", ""),
    }
    return IndexEntry(**values, reasons={name: known[name] for name, v in values.items() if v is None})


def to_json(document: BaseModel) -> bytes:
    """The document as strict JSON: no NaN, no infinity, keys in the model's order, a newline at the end."""
    content = document.model_dump(mode="json")
    return (json.dumps(content, indent=2, allow_nan=False, ensure_ascii=False) + "\n").encode()


def read_metadata(path: str | Path) -> ExportMetadata:
    """Read ``metadata.json``, or that of an export directory.

    Raises:
        ExportInvalidError: the file is missing, is no strict JSON or does not follow the schema.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "metadata.json"
    return _read(path, ExportMetadata)


def read_index(path: str | Path) -> ExportIndex:
    """Read ``index.json``, or that of a run's output directory.

    Raises:
        ExportInvalidError: the file is missing, is no strict JSON or does not follow the schema.
    """
    path = Path(path)
    if path.is_dir():
        path = path / "index.json"
    return _read(path, ExportIndex)


def _read(path: Path, model: type[_Document]) -> _Document:
    remedy = "Export the checkpoint again."
    try:
        if path.stat().st_size > MAX_DOCUMENT_BYTES:
            raise ExportInvalidError(f"{path} has {path.stat().st_size} bytes.", remedy=remedy)
        content = json.loads(path.read_bytes(), parse_constant=_refuse_constant)
        version = content.get("schema_version") if isinstance(content, dict) else None
        if isinstance(version, int) and version > SCHEMA_VERSION:
            raise ExportInvalidError(
                f"{path} follows schema_version {version}; this release knows {SCHEMA_VERSION}.",
                remedy="Update eagle3-export.",
            )
        return model.model_validate(content)
    except OSError as error:
        raise ExportInvalidError(f"{path} cannot be read: {error.strerror}.", remedy=remedy) from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"]) or "the document"
        raise ExportInvalidError(f"{path}: {where}: {first['msg']}.", remedy=remedy) from error
    except (ValueError, RecursionError) as error:
        raise ExportInvalidError(f"{path} is not strict JSON: {error}.", remedy=remedy) from error


def _refuse_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON number")


def loaded_versions() -> dict[str, str]:
    """Releases of this package, Python, and of those training libraries that this process has loaded."""
    versions = {"eagle3_export": __version__, "python": platform.python_version()}
    for name in ("speculators", "torch", "transformers", "accelerate"):
        if name in sys.modules:
            versions[name] = installed.version(name)
    return versions


def utc_now() -> str:
    """The current time as the documents write it."""
    return datetime.now(timezone.utc).isoformat(timespec="seconds")
