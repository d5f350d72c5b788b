"""Publishes every EAGLE-3 draft that speculators saves as one that SGLang serves as trained."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eagle3_export._version import __version__

if TYPE_CHECKING:
    from eagle3_export.callback import SGLangExportCallback
    from eagle3_export.compatibility.findings import Finding
    from eagle3_export.config import ExportConfig
    from eagle3_export.documents.json_files import read_metadata
    from eagle3_export.documents.schema import ExportMetadata
    from eagle3_export.errors import (
        CheckpointError,
        Eagle3ExportError,
        EstimateError,
        ExportInvalidError,
        IncompatibleDraftError,
        MeasurementError,
        StorageError,
        UsageError,
    )
    from eagle3_export.estimate import CheckpointEstimate, estimate_checkpoint
    from eagle3_export.estimates.acceptance import AcceptanceEstimate, estimate_acceptance
    from eagle3_export.export import ExportResult, ValidationMetrics, export_checkpoint
    from eagle3_export.verify import VerifyReport, verify_export

__all__ = [
    "AcceptanceEstimate",
    "CheckpointError",
    "CheckpointEstimate",
    "Eagle3ExportError",
    "EstimateError",
    "ExportConfig",
    "ExportInvalidError",
    "ExportMetadata",
    "ExportResult",
    "Finding",
    "IncompatibleDraftError",
    "MeasurementError",
    "SGLangExportCallback",
    "StorageError",
    "UsageError",
    "ValidationMetrics",
    "VerifyReport",
    "__version__",
    "estimate_acceptance",
    "estimate_checkpoint",
    "export_checkpoint",
    "read_metadata",
    "verify_export",
]

# Imported when first used: SGLang's processes load this package for its plugin alone.
_HOMES = {
    "AcceptanceEstimate": "estimates.acceptance",
    "CheckpointError": "errors",
    "CheckpointEstimate": "estimate",
    "Eagle3ExportError": "errors",
    "EstimateError": "errors",
    "ExportConfig": "config",
    "ExportInvalidError": "errors",
    "ExportMetadata": "documents.schema",
    "ExportResult": "export",
    "Finding": "compatibility.findings",
    "IncompatibleDraftError": "errors",
    "MeasurementError": "errors",
    "SGLangExportCallback": "callback",
    "StorageError": "errors",
    "UsageError": "errors",
    "ValidationMetrics": "export",
    "VerifyReport": "verify",
    "estimate_acceptance": "estimates.acceptance",
    "estimate_checkpoint": "estimate",
    "export_checkpoint": "export",
    "read_metadata": "documents.json_files",
    "verify_export": "verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
