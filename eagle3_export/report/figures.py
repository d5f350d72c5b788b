"""The charts of a report, drawn by matplotlib in one of two styles."""

from __future__ import annotations

import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from eagle3_export.errors import UsageError
from eagle3_export.report.charts import Chart, chart_groups, plain
from eagle3_export.report.runs import Run

SIZE = (4.6, 2.9)  # of one chart, inches
COLUMNS = 2
DOTS_PER_INCH = 144
MAX_HEADING = 70  # characters of a run's name above its charts

_STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.size": 9,
    "axes.titlesize": 11,
    "axes.titlelocation": "left",
    "axes.titlepad": 8,
    "axes.labelsize": 9,
    "axes.axisbelow": True,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.spines.left": False,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "axes.ymargin": 0.12,
    "grid.linewidth": 0.8,
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.constrained_layout.w_pad": 0.12,
    "figure.constrained_layout.h_pad": 0.1,
    "svg.fonttype": "none",  # text stays text
}


def _style(ink: str, muted: str, grid: str, surface: str, ramp: str, series: Sequence[str]) -> dict[str, Any]:
    return _STYLE | {
        "text.color": ink,
        "axes.titlecolor": ink,
        "axes.labelcolor": muted,
        "xtick.color": muted,
        "ytick.color": muted,
        "axes.edgecolor": grid,
        "grid.color": grid,
        "axes.facecolor": surface,
        "figure.facecolor": surface,
        "savefig.facecolor": surface,
        "image.cmap": ramp,
        "axes.prop_cycle": f"cycler('color', {list(series)})",
    }


STYLES = {
    "light": _style(
        *("#1c1c1a", "#6b6a66", "#dddcd8", "#fcfcfb", "Blues"),
        ("#236bc4", "#c44a18", "#0f7a52", "#946200", "#8455d0", "#c2326d"),
    ),
    "dark": _style(
        *("#f1f0ec", "#a3a29c", "#33332f", "#1b1b19", "Blues_r"),
        ("#3d8ce8", "#f0784a", "#2fc28d", "#dba012", "#a98be8", "#ec6c9f"),
    ),
}


def to_png(runs: Sequence[Run]) -> bytes:
    """Returns all charts in one picture, those of a run below its name.

    Args:
        runs: at least one.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with _drawing("light") as figure:
        draw_all(figure, runs)
        return _saved(figure, format="png", dpi=DOTS_PER_INCH)


def draw_all(figure: Any, runs: Sequence[Run]) -> None:
    """Draws all charts on one matplotlib figure and gives it the size they need.

    Args:
        figure: empty.
        runs: at least one.
    """
    groups = chart_groups(runs)
    heights = [-(-len(group.charts) // COLUMNS) for group in groups]
    figure.set_size_inches(SIZE[0] * COLUMNS, (SIZE[1] + 0.1) * sum(heights) + 0.3 * len(groups))
    parts = figure.subfigures(len(groups), 1, height_ratios=heights, squeeze=False)[:, 0]
    for part, group, height in zip(parts, groups, heights, strict=True):
        if group.run is not None and len(runs) > 1:
            name = plain(group.run.name, MAX_HEADING)
            part.suptitle(name, x=0.01, ha="left", fontsize=13, fontweight="bold")
        for number, chart in enumerate(group.charts):
            axes = part.add_subplot(height, COLUMNS, number + 1)
            axes.set_title(chart.title)
            chart.draw(axes)


def to_svg(chart: Chart, style: str) -> bytes:
    """Returns one chart as SVG.

    Args:
        chart: to draw.
        style: light or dark.

    Raises:
        UsageError: matplotlib is not installed.
    """
    with _drawing(style, salt=chart.title) as figure:
        figure.set_size_inches(*SIZE)
        chart.draw(figure.add_subplot())
        return _saved(figure, format="svg", metadata={"Date": None, "Creator": None})


@contextmanager
def _drawing(style: str, salt: str = "") -> Iterator[Any]:
    """An empty figure; while the block runs, colours are those of the style."""
    try:
        from matplotlib import rc_context
        from matplotlib.figure import Figure
    except ImportError as error:
        raise UsageError(
            "Charts need matplotlib.", remedy="Install it with `pip install 'eagle3-export[report]'`."
        ) from error
    parameters: dict[Any, Any] = STYLES[style] | {"svg.hashsalt": salt}
    with rc_context(parameters):
        yield Figure(layout="constrained")


def _saved(figure: Any, **options: Any) -> bytes:
    content = io.BytesIO()
    figure.savefig(content, **options)
    return content.getvalue()
