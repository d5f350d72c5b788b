"""The report as CSV and JSON, one row per export."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from eagle3_export.documents.best import best_choice
from eagle3_export.documents.depth import recommend_depth
from eagle3_export.documents.row import export_row
from eagle3_export.report.answers import answers
from eagle3_export.report.measured import measured_series
from eagle3_export.report.missing import missing_commands
from eagle3_export.report.runs import Run
from eagle3_export.report.ties import advised
from eagle3_export.storage.faults import shown

# Columns that are called otherwise here than in index.json.
_COLUMNS = {
    "name": "export",
    "acceptance_num_steps": "estimated_num_steps",
    "acceptance_method": "method",
    "acceptance_source": "source",
}


def row(run: Run, position: int) -> dict[str, Any]:
    """Returns one export as a flat row; what is unknown is None.

    Args:
        run: that holds the export.
        position: of the export in the run.
    """
    cells = asdict(export_row(run.exports[position]))
    del cells["per_depth"]
    return {
        "run": run.name,
        **{_COLUMNS.get(name, name): value for name, value in cells.items()},
        "best": cells["name"] == run.best,
        "tied_with_best": cells["name"] in run.ties,
        "change": run.change(position),
    }


def depth_columns(runs: Sequence[Run]) -> list[int]:
    """Returns all depths that any export has an estimate for."""
    return sorted({depth for run in runs for export in run.exports for depth in export_row(export).per_depth})


def to_csv(runs: Sequence[Run]) -> str:
    """Returns one row per export; a column `acceptance_length_<K>` per depth, unknown cells empty."""
    depths = depth_columns(runs)
    rows = []
    for run in runs:
        for position, export in enumerate(run.exports):
            by_depth = export_row(export).per_depth
            columns = {f"acceptance_length_{depth}": by_depth.get(depth) for depth in depths}
            rows.append({**row(run, position), **columns})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(runs: Sequence[Run]) -> str:
    """Returns the report as strict JSON: per run the answers, the advised depth, and a row per export."""
    return json.dumps({"runs": [_run(run) for run in runs]}, indent=2, allow_nan=False, ensure_ascii=False)


def _run(run: Run) -> dict[str, Any]:
    deployed = advised(run)
    advice = recommend_depth(deployed.export) if deployed is not None else None
    return {
        "run": run.name,
        "path": shown(run.path),
        "best": run.best,
        "best_why": best_choice(run.exports).why,
        "advised": deployed.export.name if deployed is not None else None,
        "ties": {name: asdict(run.differences[name]) for name in run.ties},
        "commands": missing_commands(run),
        "measurements": [against.as_dict() for found in measured_series(run) for against in found],
        "answers": [asdict(answer) for answer in answers(run)],
        "recommended_num_steps": advice.num_steps if advice is not None else None,
        "exports": [
            {
                **row(run, position),
                "per_depth": {str(depth): length for depth, length in export_row(export).per_depth.items()},
                "reasons": export.reasons,
            }
            for position, export in enumerate(run.exports)
        ],
    }
