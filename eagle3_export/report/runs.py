"""The runs a report is about, and the questions it answers of each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from eagle3_export.documents.depth import headline_measurement, recommend_depth
from eagle3_export.documents.index import choose_best, in_training_order
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.errors import UsageError
from eagle3_export.storage.faults import os_errors, resolved, shown


@dataclass(frozen=True, slots=True)
class Run:
    """The exports of one training run.

    Args:
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

    def change(self, position: int) -> float | None:
        """Change of the estimate since the last export that has a comparable one."""
        export = self.exports[position]
        if export.estimated_acceptance_length is None:
            return None
        for before in reversed(self.exports[:position]):
            if before.estimated_acceptance_length is not None and comparable(before, export):
                return export.estimated_acceptance_length - before.estimated_acceptance_length
        return None


def comparable(one: ExportMetadata, other: ExportMetadata) -> bool:
    """Whether two estimates are the same kind of number: source, depth and bonus token."""
    return all(
        getattr(one.acceptance, name) == getattr(other.acceptance, name)
        for name in ("source", "num_steps", "includes_bonus_token")
    )


def read_run(path: str | Path, name: str | None = None) -> Run:
    """Read a run's output directory, or a single export.

    Raises:
        UsageError: there are no exports.
        ExportInvalidError: the single export's metadata cannot be read.
        StorageError: the directory may not be read.
    """
    from eagle3_export.output_directory import read_exports

    path = Path(path)
    with os_errors("Reading", path):
        if not path.is_dir():
            raise UsageError(
                f"{path} is no directory.", remedy="Name the output_dir of a run, or one export."
            )
        single = (path / "metadata.json").is_file()
    exports = [read_metadata(path)] if single else in_training_order(read_exports(path))
    if not exports:
        raise UsageError(f"{path} holds no exports yet.")
    return Run(name or shown(resolved(path).name), path, exports, choose_best(exports))


def read_runs(paths: Sequence[str | Path]) -> list[Run]:
    """Read several runs; those of one name get their parents' names in front.

    Raises:
        UsageError: a path holds no exports, or none was given.
    """
    if not paths:
        raise UsageError("Name at least one output directory.")
    real_paths = [resolved(path) for path in paths]
    parts = 1
    while parts < 8 and len({path.parts[-parts:] for path in real_paths}) < len(set(real_paths)):
        parts += 1
    names = [shown("/".join(real.parts[-parts:])) for real in real_paths]
    return [read_run(path, name) for path, name in zip(paths, names, strict=True)]


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the questions that a report is opened for."""

    question: str
    answer: str
    detail: str


def answers(run: Run) -> list[Answer]:
    """Which epoch to deploy, at what depth, how sure that is, and whether it was true on the server."""
    best = run.best_export
    if best is None:
        newest = run.exports[-1]
        why = newest.reasons.get("estimated_acceptance_length", "It has no estimate from validation.")
        return [Answer("Which epoch do I deploy?", "not known yet", f"Newest export {newest.name}: {why}")]
    return [_which(run, best), _depth(best), _sure(best), _true(best)]


def _which(run: Run, best: ExportMetadata) -> Answer:
    named_by_epoch = str(best.epoch) == best.name
    epoch = "" if best.epoch is None or named_by_epoch else f" (epoch {best.epoch})"
    rated = sum(export.estimated_acceptance_length is not None for export in run.exports)
    return Answer(
        "Which epoch do I deploy?",
        f"epoch {best.name}" if named_by_epoch else f"{best.name}{epoch}",
        f"Highest estimated acceptance length of {rated} rated export{'s' * (rated != 1)}:"
        f" {best.estimated_acceptance_length:.2f} ({terms(best)}).",
    )


def _depth(best: ExportMetadata) -> Answer:
    advice = recommend_depth(best)
    return Answer(
        "At what depth?", f"{advice.num_steps} draft step{'s' * (advice.num_steps != 1)}", advice.reason
    )


def _sure(best: ExportMetadata) -> Answer:
    interval = best.acceptance.interval
    spread = f"{interval.low:.2f} to {interval.high:.2f}" if interval else "no interval"
    why = "95 % interval." if interval else best.acceptance.reasons.get("interval", "")
    adjusted = best.acceptance.adjusted_acceptance_length
    bound = (
        f" {adjusted:.2f} when words outside the draft vocabulary are counted."
        if adjusted is not None
        else " Words outside the draft vocabulary are not counted."
    )
    return Answer("How sure am I?", spread, f"{why}{bound} From {best.acceptance.source}.")


def _true(best: ExportMetadata) -> Answer:
    question = "Was it true on the server?"
    shown = headline_measurement(best)
    if shown is None:
        return Answer(question, "not measured", best.reasons["measured"])
    estimate = estimate_at(best, shown.num_steps)
    against = f", estimated {estimate:.2f}" if estimate is not None else ""
    faster = f" {shown.speedup:.2f} times as fast as without a draft." if shown.speedup else ""
    return Answer(
        question,
        f"{shown.acceptance_length:.2f} measured{against}",
        f"At {shown.num_steps} draft steps, {shown.prompts} prompts, {shown.server}"
        f" {shown.server_version}.{faster}",
    )


def terms(export: ExportMetadata) -> str:
    """What an estimate has to say beside it to be comparable."""
    acceptance = export.acceptance
    if acceptance.method == "geometric":
        return f"geometric, no bonus token, {acceptance.source}"
    return f"{acceptance.num_steps} draft steps, bonus token included, {acceptance.source}"


def estimate_at(export: ExportMetadata, num_steps: int) -> float | None:
    """The estimate for one depth, bonus token included, or None."""
    from eagle3_export.documents.depth import estimated_lengths

    return estimated_lengths(export, max(num_steps, 1)).get(num_steps)


def measurements(export: ExportMetadata) -> list[Measurement]:
    """All measurements of an export, the newest first."""
    return export.measured.measurements if export.measured else []
