"""One export as the cells of a table, for the terminal and the page."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from eagle3_export.documents.row import ExportRow, export_row
from eagle3_export.report.missing import missing_reasons
from eagle3_export.report.runs import Run

UNKNOWN = "-"
# Where in an epoch an export was saved, in few letters: the table is to fit in 80 columns.
_SAVED = {"end_of_epoch": "end", "mid_epoch": "mid", "interrupted": "cut", "best": "best"}


@dataclass(frozen=True, slots=True)
class Cells:
    """One export as text.

    Attributes:
        mark: a star for the best export, an equals sign for one that ties with it.
        by_heading: text by the heading of its column.
        change: of the estimate, for its colour; None where unknown.
    """

    mark: str
    by_heading: dict[str, str]
    change: float | None


def cells(run: Run, position: int) -> Cells:
    """Returns the cells of one export.

    Args:
        run: that holds the export.
        position: of the export in the run.
    """
    row, change = export_row(run.exports[position]), run.change(position)
    columns = {
        "export": row.name,
        "step": number(row.global_step, "d"),
        "full_acc_0": number(row.full_acc_0, ".4f"),
        "est. length": estimate_cell(row),
        "change": number(change, "+.3f"),
        "measured": measured_cell(row),
    }
    if any(export.source.kind != "end_of_epoch" for export in run.exports):
        columns["at"] = _SAVED.get(row.kind, UNKNOWN)
    return Cells("★" if row.name == run.best else "=" if row.name in run.ties else "", columns, change)


def number(value: Any, form: str) -> str:
    """Returns a number as text; a dash where it is unknown."""
    return UNKNOWN if value is None else format(value, form)


def estimate_cell(row: ExportRow) -> str:
    """Returns the estimate with half its interval and what sets it apart from others."""
    if row.estimated_acceptance_length is None:
        return UNKNOWN
    length = f"{row.estimated_acceptance_length:.3f}"
    if row.interval_low is not None and row.interval_high is not None:
        length += f" ±{(row.interval_high - row.interval_low) / 2:.3f}"
    if row.acceptance_method == "geometric":
        length += " geometric"
    if row.acceptance_source == "training":
        length += " training"
    return length


def measured_cell(row: ExportRow) -> str:
    """Returns the measured length and its depth."""
    if row.measured_acceptance_length is None:
        return UNKNOWN
    return f"{row.measured_acceptance_length:.3f} @{row.measured_num_steps}"


def notes(run: Run) -> list[str]:
    """Returns what has to be said below the table: what the marks mean, and which exports have no number and why."""
    lines = [f"= ties with the best: {', '.join(run.ties)}"] if run.ties else []
    return lines + missing_reasons(run)
