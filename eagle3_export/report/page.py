"""The report as one self-contained page: no script, no network, light and dark, readable on a phone."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Sequence
from typing import Any

from eagle3_export.compatibility.text_rules import OTHER_TEXT_ID
from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.row import export_row
from eagle3_export.errors import UsageError
from eagle3_export.report.answers import answers
from eagle3_export.report.cells import cells, notes, number
from eagle3_export.report.charts import Chart, ChartGroup, chart_groups
from eagle3_export.report.figures import STYLES, to_svg
from eagle3_export.report.measured import HEADING, measured_notes, measured_table
from eagle3_export.report.missing import missing_commands
from eagle3_export.report.runs import Run
from eagle3_export.report.tabular import depth_columns
from eagle3_export.storage.faults import shown

TEMPLATE = "page.html"


def to_html(runs: Sequence[Run]) -> str:
    """Returns the whole report as one HTML file.

    Args:
        runs: at least one.

    Raises:
        UsageError: matplotlib or jinja2 is not installed.
    """
    try:
        from jinja2 import Environment, PackageLoader, StrictUndefined
    except ImportError as error:
        raise UsageError(
            "The page needs jinja2.", remedy="Install it with `pip install 'eagle3-export[report]'`."
        ) from error
    environment = Environment(
        loader=PackageLoader("eagle3_export", "report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(TEMPLATE).render(
        title=f"EAGLE-3 exports: {', '.join(run.name for run in runs)}",
        written_at=utc_now(),
        groups=[_group(group) for group in chart_groups(runs)],
        colours=STYLES,
    )


def _group(group: ChartGroup) -> dict[str, Any]:
    """The charts of a run, or of all runs together, with what stands beside them."""
    drawn = [{"title": c.title, "note": c.note, "sources": _sources(c)} for c in group.charts]
    return {"charts": drawn, "run": None if group.run is None else _run(group.run)}


def _sources(chart: Chart) -> dict[str, str]:
    """The chart in each style, as the address of a picture."""
    return {
        style: f"data:image/svg+xml;base64,{b64encode(to_svg(chart, style)).decode()}" for style in STYLES
    }


def _run(run: Run) -> dict[str, Any]:
    rows = [_row(run, position) for position in range(len(run.exports))]
    return {
        "name": run.name,
        "path": shown(run.path),
        "answers": answers(run),
        "headings": list(rows[0]["cells"]),
        "rows": rows,
        "notes": notes(run),
        "commands": missing_commands(run),
        "measured_heading": HEADING,
        "measured_rows": measured_table(run),
        "measured_notes": measured_notes(run),
        "details": _details(run),
    }


def _row(run: Run, position: int) -> dict[str, Any]:
    found, row = cells(run, position), export_row(run.exports[position])
    columns = dict(found.by_heading)
    columns["export"] = " ".join(filter(None, (columns["export"], found.mark)))
    measured = {name: columns.pop(name) for name in ("measured", "at") if name in columns}
    for depth in depth_columns([run]):
        columns[f"{depth} step{'s' * (depth != 1)}"] = number(row.per_depth.get(depth), ".2f")
    columns["measured"] = measured.pop("measured")
    if any(export.measured for export in run.exports):
        columns["tokens/s"] = number(row.measured_tokens_per_second, ".1f")
        columns["speed-up"] = number(row.measured_speedup, ".2f")
    direction = "" if not found.change else "up" if found.change > 0 else "down"
    return {"cells": columns | measured, "best": found.mark == "★", "direction": direction}


def _details(run: Run) -> dict[str, list[str]]:
    """Assumptions, findings and reasons, for a reader who wants to know more."""
    export = run.best_export or run.exports[-1]
    findings = [
        (found.id == OTHER_TEXT_ID, f"{found.id} ({found.level}): {found.cause} {found.remedy}")
        for found in export.sglang.findings
    ]
    groups = {
        "What the estimate takes for granted": export.acceptance.assumptions,
        "What text the estimate is from": [text for of_text, text in findings if of_text],
        "What SGLang computes differently": [text for of_text, text in findings if not of_text],
        "Why numbers are missing": [
            f"{one.name}: {name}: {why}" for one in run.exports for name, why in one.reasons.items()
        ],
    }
    return {title: lines for title, lines in groups.items() if lines}
