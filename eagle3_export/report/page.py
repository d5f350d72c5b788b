"""The report as one self-contained page: no script, no network, light and dark, readable on a phone."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from importlib import resources
from string import Template
from typing import Any

from eagle3_export.documents.json_files import utc_now
from eagle3_export.report.charts import RUN_CHARTS, Chart, charts
from eagle3_export.report.figures import css_variables, to_svg
from eagle3_export.report.runs import Run, answers
from eagle3_export.report.tabular import depth_columns, row
from eagle3_export.storage.faults import shown

# The same colours on a dark page: lighter, and the ramp of depths turned round.
_DARK = {
    "--ink": "#f1f0ec",
    "--muted": "#a3a29c",
    "--grid": "#33332f",
    "--surface": "#1b1b19",
    "--series-0": "#3d8ce8",
    "--series-1": "#f0784a",
    "--series-2": "#2fc28d",
    "--series-3": "#dba012",
    "--series-4": "#a98be8",
    "--series-5": "#ec6c9f",
    "--ramp-0": "#1f5fae",
    "--ramp-1": "#2d75cf",
    "--ramp-3": "#7db3f2",
    "--ramp-4": "#b9d6f8",
}
_UNKNOWN = "–"  # noqa: RUF001


def to_html(runs: Sequence[Run]) -> str:
    """The whole report as one HTML file.

    Raises:
        UsageError: matplotlib is not installed.
    """
    drawn = charts(runs)
    compared = drawn[
        : len(drawn) % 4
    ]  # every run has four charts of its own; several have one more in common
    parts = [_charts(compared)] if compared else []
    for number, run in enumerate(runs):
        own = drawn[len(compared) + RUN_CHARTS * number :][:RUN_CHARTS]
        parts.append(_run(run, own))
    template = Template(resources.files(__package__).joinpath("page.html").read_text(encoding="utf-8"))
    names = ", ".join(run.name for run in runs)
    return template.substitute(
        title=escape(f"EAGLE-3 exports: {names}"),
        subtitle=f"Tokens per verify step, bonus token included unless it says otherwise. {utc_now()}",
        light=_css(css_variables()),
        dark=_css(_DARK),
        body="\n".join(parts),
    )


def _css(variables: dict[str, str]) -> str:
    return "\n".join(f"  {name}: {colour};" for name, colour in variables.items())


def _run(run: Run, own: Sequence[Chart]) -> str:
    return "\n".join(
        [
            f'<section><h2>{escape(run.name)}</h2><p class="path">{escape(shown(run.path))}</p>',
            _answers(run),
            _charts(own),
            _table(run),
            _details(run),
            "</section>",
        ]
    )


def _answers(run: Run) -> str:
    cells = [
        f"<div><dt>{escape(a.question)}</dt><dd><b>{escape(a.answer)}</b><span>{escape(a.detail)}</span></dd></div>"
        for a in answers(run)
    ]
    return f'<dl class="answers">{"".join(cells)}</dl>'


def _charts(drawn: Sequence[Chart]) -> str:
    figures = [
        f"<figure><figcaption><b>{escape(chart.title)}</b><span>{escape(chart.note)}</span></figcaption>"
        f"{to_svg(chart)}</figure>"
        for chart in drawn
    ]
    return f'<div class="charts">{"".join(figures)}</div>'


def _table(run: Run) -> str:
    depths = depth_columns([run])
    heads = ["export", "step", "full_acc_0", "estimated", "95 % interval", "change"]
    heads += [f"{depth} step{'s' * (depth != 1)}" for depth in depths]
    heads += ["measured", "tokens/s", "speed-up", "MB", "s", "saved at"]
    head = "".join(f"<th>{escape(name)}</th>" for name in heads)
    lines = [_line(run, position, depths) for position in range(len(run.exports))]
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{"".join(lines)}</tbody></table></div>'


def _line(run: Run, position: int, depths: Sequence[int]) -> str:
    cells, export = row(run, position), run.exports[position]
    by_depth = {d.num_steps: d.acceptance_length for d in export.acceptance.per_depth}
    interval, change = export.acceptance.interval, cells["change"]
    measured = cells["measured_acceptance_length"]
    direction = "" if not change else "up" if change > 0 else "down"
    columns = [
        escape(export.name) + (" ★ best" if cells["best"] else ""),
        _number(cells["global_step"], "d"),
        _number(cells["full_acc_0"], ".4f"),
        _number(cells["estimated_acceptance_length"], ".3f"),
        f"{interval.low:.3f} to {interval.high:.3f}" if interval else _UNKNOWN,
        f'<span class="{direction}">{_number(change, "+.3f")}</span>',
        *(_number(by_depth.get(depth), ".2f") for depth in depths),
        f"{measured:.3f} @{cells['measured_num_steps']}" if measured is not None else _UNKNOWN,
        _number(cells["measured_tokens_per_second"], ".1f"),
        _number(cells["measured_speedup"], ".2f"),
        f"{export.weights.bytes / 1e6:.1f}",
        f"{export.weights.seconds:.2f}",
        escape(export.source.kind.replace("_", " ")),
    ]
    kind = ' class="best"' if cells["best"] else ""
    return f"<tr{kind}>" + "".join(f"<td>{column}</td>" for column in columns) + "</tr>"


def _details(run: Run) -> str:
    """Assumptions, findings and reasons, for whoever wants to know more."""
    export = run.best_export or run.exports[-1]
    groups = {
        "What the estimate takes for granted": export.acceptance.assumptions,
        "What SGLang computes differently": [
            f"{finding.id} ({finding.level}): {finding.cause} {finding.remedy}"
            for finding in export.sglang.findings
        ],
        "Why numbers are missing": [
            f"{one.name}: {name}: {why}" for one in run.exports for name, why in one.reasons.items()
        ],
    }
    return "".join(
        f"<details><summary>{escape(title)}</summary><ul>"
        + "".join(f"<li>{escape(line)}</li>" for line in lines)
        + "</ul></details>"
        for title, lines in groups.items()
        if lines
    )


def _number(value: Any, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)
