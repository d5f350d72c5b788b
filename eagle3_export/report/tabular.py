"""The same rows for CSV, JSON, the terminal and the page."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from eagle3_export.documents.depth import headline_measurement, recommend_depth
from eagle3_export.report.runs import Run, answers
from eagle3_export.storage.faults import shown


def row(run: Run, position: int) -> dict[str, Any]:
    """One export as a flat row; what is unknown is None."""
    export = run.exports[position]
    interval = export.acceptance.interval
    measured = headline_measurement(export)
    return {
        "run": run.name,
        "export": export.name,
        "best": export.name == run.best,
        "epoch": export.epoch,
        "global_step": export.global_step,
        "kind": export.source.kind,
        "full_acc_0": export.full_acc_0,
        "estimated_acceptance_length": export.estimated_acceptance_length,
        "estimated_num_steps": export.acceptance.num_steps,
        "method": export.acceptance.method,
        "source": export.acceptance.source,
        "includes_bonus_token": export.acceptance.includes_bonus_token,
        "interval_low": interval.low if interval else None,
        "interval_high": interval.high if interval else None,
        "adjusted_acceptance_length": export.acceptance.adjusted_acceptance_length,
        "change": run.change(position),
        "measured_acceptance_length": measured.acceptance_length if measured else None,
        "measured_num_steps": measured.num_steps if measured else None,
        "measured_tokens_per_second": measured.tokens_per_second if measured else None,
        "measured_speedup": measured.speedup if measured else None,
        "bytes": export.weights.bytes,
        "seconds": export.weights.seconds,
        "created_at": export.created_at,
    }


def depth_columns(runs: Sequence[Run]) -> list[int]:
    """All depths that any export has an estimate for."""
    return sorted(
        {d.num_steps for run in runs for export in run.exports for d in export.acceptance.per_depth}
    )


def to_csv(runs: Sequence[Run]) -> str:
    """One row per export; a column ``acceptance_length_<K>`` per depth, unknown cells empty."""
    depths = depth_columns(runs)
    rows = []
    for run in runs:
        for position, export in enumerate(run.exports):
            by_depth = {d.num_steps: d.acceptance_length for d in export.acceptance.per_depth}
            columns = {f"acceptance_length_{depth}": by_depth.get(depth) for depth in depths}
            rows.append({**row(run, position), **columns})
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()


def to_json(runs: Sequence[Run]) -> str:
    """The report as strict JSON: per run the answers, the advised depth and a row per export with its reasons."""
    document = [
        {
            "run": run.name,
            "path": shown(run.path),
            "best": run.best,
            "answers": [
                {"question": a.question, "answer": a.answer, "detail": a.detail} for a in answers(run)
            ],
            "recommended_num_steps": recommend_depth(run.best_export).num_steps if run.best_export else None,
            "exports": [
                {
                    **row(run, position),
                    "per_depth": {str(d.num_steps): d.acceptance_length for d in export.acceptance.per_depth},
                    "reasons": export.reasons,
                }
                for position, export in enumerate(run.exports)
            ],
        }
        for run in runs
    ]
    return json.dumps({"runs": document}, indent=2, allow_nan=False, ensure_ascii=False)
