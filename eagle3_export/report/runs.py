"""The runs a report is about."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from eagle3_export.documents.best import best_choice, compared_exports, in_training_order
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import ExportInvalidError, UsageError
from eagle3_export.estimates.acceptance import estimated_lengths
from eagle3_export.estimates.comparison import Basis
from eagle3_export.estimates.pairing import Difference
from eagle3_export.locate import is_output_directory, locate_export
from eagle3_export.output_directory import read_exports
from eagle3_export.storage.faults import os_errors, resolved, shown


@dataclass(frozen=True)
class Run:
    """The exports of one training run.

    Attributes:
        name: short, unique in the report.
        path: its output directory.
        exports: in order of training, at least one.
        best: name of the export to deploy; None where no validation says.
    """

    name: str
    path: Path
    exports: list[ExportMetadata]
    best: str | None

    @property
    def best_export(self) -> ExportMetadata | None:
        """The export to deploy, or None."""
        return next((export for export in self.exports if export.name == self.best), None)

    @cached_property
    def compared(self) -> list[ExportMetadata]:
        """The exports among which the best one was chosen."""
        return compared_exports(self.exports)

    @cached_property
    def basis(self) -> Basis | None:
        """What they were compared by; None where no export has an estimate from validation."""
        return Basis.common([export.acceptance for export in self.compared])

    @cached_property
    def differences(self) -> dict[str, Difference]:
        """How far the best export's estimate is above those that it was compared with, by name; where that is known."""
        best, basis = self.best_export, self.basis
        if best is None or basis is None:
            return {}
        found = {
            export.name: basis.difference(best.acceptance, export.acceptance)
            for export in self.compared
            if export.name != best.name
        }
        return {name: difference for name, difference in found.items() if difference is not None}

    @cached_property
    def ties(self) -> list[str]:
        """Names of the exports whose difference from the best one is no difference."""
        return [name for name, difference in self.differences.items() if difference.tied]

    def directory_of(self, export: ExportMetadata) -> Path:
        """Returns where an export of the run is; a run may be a single export."""
        below = self.path / export.name
        return below if below.is_dir() else self.path

    def change(self, position: int) -> float | None:
        """Returns the change of the estimate since the last export that it can be compared with, in tokens."""
        export = self.exports[position]
        for before in reversed(self.exports[:position]):
            basis = Basis.common([before.acceptance, export.acceptance])
            if basis is not None:
                return basis.length(export.acceptance) - basis.length(before.acceptance)
        return None

    def unrated(self) -> dict[str, list[str]]:
        """Returns the names of the exports without an estimate, by the reason."""
        by_reason: dict[str, list[str]] = {}
        for export in self.exports:
            if export.estimated_acceptance_length is None:
                reason = export.reasons.get("estimated_acceptance_length", "")
                by_reason.setdefault(reason, []).append(export.name)
        return by_reason


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Reads a run's output directory, or a single export.

    Args:
        path: of the directory.
        name: how the run is called in the report; default: the directory's name.

    Raises:
        UsageError: there are no exports.
        ExportInvalidError: the single export's metadata cannot be read.
        StorageError: the directory may not be read.
    """
    path = Path(path)
    with os_errors("Reading", path):
        if not path.is_dir():
            raise UsageError(
                f"{shown(path)} is no directory.", remedy="Name the output_dir of a run, or one export."
            )
        single = (path / "metadata.json").is_file()
    exports = [read_metadata(path)] if single else in_training_order(read_exports(path))
    if not exports:
        raise _no_exports(path)
    return Run(name or shown(resolved(path).name), path, exports, best_choice(exports).name)


def _no_exports(path: Path) -> UsageError:
    """Says what a directory without exports is instead: the run, or one of its checkpoints."""
    yet = UsageError(f"{shown(path)} holds no exports yet.", remedy="Name the output_dir of a run.")
    if is_output_directory(path) or not any(path.iterdir()):
        return yet
    try:
        locate_export(path)
    except ExportInvalidError as found:
        return UsageError(found.what, why=found.why, remedy=found.remedy)
    return yet


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Reads several runs; those of one name get their parents' names in front.

    Args:
        paths: output directories, or single exports.

    Raises:
        UsageError: a path holds no exports, or none was given.
        ExportInvalidError: a single export's metadata cannot be read.
        StorageError: a directory may not be read.
    """
    if not paths:
        raise UsageError("Name at least one output directory.")
    real_paths = [resolved(path) for path in paths]
    parts = 1
    while parts < 8 and len({path.parts[-parts:] for path in real_paths}) < len(set(real_paths)):
        parts += 1
    names = [shown("/".join(real.parts[-parts:])) for real in real_paths]
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


def estimate_at(export: ExportMetadata, num_steps: int) -> float | None:
    """Returns the estimate for one depth, bonus token included, or None."""
    return estimated_lengths(export.acceptance, num_steps).get(num_steps)


def listed(names: Sequence[str]) -> str:
    """Returns names as a sentence lists them: `1, 2 and 3`."""
    return " and ".join(part for part in (", ".join(names[:-1]), *names[-1:]) if part)
