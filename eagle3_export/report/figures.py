"""The charts of a report, drawn by matplotlib for a PNG or as SVG whose colours follow the page."""

from __future__ import annotations

import io
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from eagle3_export.errors import UsageError
from eagle3_export.report.charts import INKS, RAMP, RUN_CHARTS, SERIES, Chart, charts, plain
from eagle3_export.report.runs import Run

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SIZE = (4.4, 2.9)  # inches; at 72 dots an SVG user unit is a point, so text keeps its size on a phone


def _figure(count: int, columns: int) -> tuple[Any, list[Axes]]:
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "Charts need matplotlib.", remedy="Install it with `pip install 'eagle3-export[report]'`."
        ) from error
    rows = -(-count // columns)
    figure = Figure(figsize=(SIZE[0] * columns, SIZE[1] * rows), layout="constrained")
    axes = [figure.add_subplot(rows, columns, number + 1) for number in range(count)]
    figure.patch.set_facecolor(INKS["surface"])
    return figure, axes


def _styled(axes: Axes, chart: Chart) -> None:
    axes.set_facecolor(INKS["surface"])
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(INKS["grid"])
    axes.grid(axis="y", color=INKS["grid"], linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, labelsize=9, colors=INKS["muted"])
    axes.margins(y=0.12)
    chart.draw(axes)
    for text in (axes.xaxis.label, axes.yaxis.label):
        text.set_color(INKS["muted"])
        text.set_fontsize(9)


def to_png(runs: Sequence[Run]) -> bytes:
    """All charts in one picture.

    Raises:
        UsageError: matplotlib is not installed.
    """
    drawn = charts(runs)
    figure, axes = _figure(len(drawn), 2 if len(drawn) > 1 else 1)
    for number, (chart, where) in enumerate(zip(drawn, axes, strict=True)):
        _styled(where, chart)
        own = number - len(drawn) % RUN_CHARTS
        prefix = f"{plain(runs[own // RUN_CHARTS].name)}: " if len(runs) > 1 and own >= 0 else ""
        where.set_title(prefix + chart.title, loc="left", fontsize=11, color=INKS["ink"])
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=144)
    return content.getvalue()


def to_svg(chart: Chart) -> str:
    """One chart as SVG that scales with the page, its colours CSS variables of the page.

    Raises:
        UsageError: matplotlib is not installed.
    """
    figure, (axes,) = _figure(1, 1)
    from matplotlib import rc_context

    content = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": chart.title, "font.family": "sans-serif"}):
        _styled(axes, chart)
        figure.savefig(content, format="svg", metadata={"Date": None, "Creator": None})
    svg = content.getvalue()
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*pt"', r"\1", svg)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*pt"', r"\1", svg)
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"font: ([\d.]+)px [^;\"]*", r"font: \1px var(--font)", svg)
    for name, colour in css_variables().items():
        svg = svg.replace(colour, f"var({name})")
    return svg


def css_variables() -> dict[str, str]:
    """The colours of the charts by the CSS variable that replaces each, in light mode."""
    variables = {f"--{name}": colour for name, colour in INKS.items()}
    variables |= {f"--series-{number}": colour for number, colour in enumerate(SERIES)}
    return variables | {
        f"--ramp-{number}": colour for number, colour in enumerate(RAMP) if colour not in SERIES
    }
