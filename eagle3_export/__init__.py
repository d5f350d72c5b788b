"""Publishes every EAGLE-3 draft that speculators saves as one that SGLang serves as trained."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from eagle3_export._version import __version__

if TYPE_CHECKING:
    from eagle3_export.callback import SGLangExportCallback
    from eagle3_export.config import ExportConfig
    from eagle3_export.estimates.acceptance import estimate_acceptance
    from eagle3_export.export import export_checkpoint
    from eagle3_export.verify import verify_export

__all__ = [
    "ExportConfig",
    "SGLangExportCallback",
    "__version__",
    "estimate_acceptance",
    "export_checkpoint",
    "verify_export",
]

# Imported when first used: SGLang's processes load this package for its plugin alone.
_HOMES = {
    "ExportConfig": "eagle3_export.config",
    "SGLangExportCallback": "eagle3_export.callback",
    "estimate_acceptance": "eagle3_export.estimates.acceptance",
    "export_checkpoint": "eagle3_export.export",
    "verify_export": "eagle3_export.verify",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
