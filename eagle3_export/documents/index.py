"""``index.json``: every export of a run, the newest and the best."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.schema import ExportIndex, ExportMetadata, IndexEntry


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
