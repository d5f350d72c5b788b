"""What the charts of a report show; their colours are those of the style that is on while they are drawn."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_export.documents.measurements import headline_measurement, measurements_of, series
from eagle3_export.documents.row import export_row
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.estimates.acceptance import MAX_NUM_STEPS, computed_steps, estimated_lengths, trained_steps
from eagle3_export.report.measured import Against, by_position
from eagle3_export.report.runs import Run, estimate_at
from eagle3_export.report.ties import advised

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MEASURED = "C1"
DASHED = (0, (4, 3))
MAX_LINES = 5  # depths that get a line of their own
MAX_NAME = 20  # characters of a name in a chart
DEEPEST = 16  # draft steps that the curve over depths goes to


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Attributes:
        title: what it shows.
        note: how to read it.
        draw: draws it on matplotlib axes.
    """

    title: str
    note: str
    draw: Callable[[Axes], None]


@dataclass(frozen=True, slots=True)
class ChartGroup:
    """Charts that belong together.

    Attributes:
        run: that they show; None for charts that compare the runs.
        charts: in order.
    """

    run: Run | None
    charts: list[Chart]


def chart_groups(runs: Sequence[Run]) -> list[ChartGroup]:
    """Returns the charts of a report: the runs beside each other, if there are several, and each run in detail."""
    compared = Chart(
        "Acceptance length by run",
        "Estimate at the trained depth, bonus token included. Diamonds are measured at that depth.",
        lambda axes: _runs_by_epoch(axes, runs),
    )
    common = [ChartGroup(None, [compared])] if len(runs) > 1 else []
    return common + [ChartGroup(run, _run_charts(run)) for run in runs]


def _run_charts(run: Run) -> list[Chart]:
    deployed = advised(run)
    return [
        Chart(
            "Acceptance length by epoch",
            "Estimated tokens per verify step, bonus token included; one line per draft depth. Diamonds are measured.",
            lambda axes: _lengths_by_epoch(axes, run),
        ),
        Chart(
            "Acceptance length by depth",
            "The export to deploy. Dashed beyond the computed depth, where it is extrapolated.",
            lambda axes: _lengths_by_depth(axes, deployed.export if deployed else run.exports[-1]),
        ),
        Chart(
            "Conditional accuracy by step",
            "Share of positions right at a step among those right at all steps before.",
            lambda axes: _conditional_by_step(axes, run),
        ),
        Chart(
            "Estimate against measurement",
            "Every measurement of the run. On the line the estimate was true; below it, too high.",
            lambda axes: _estimate_against_measurement(axes, run),
        ),
        *_positions_chart(run),
    ]


def _positions_chart(run: Run) -> list[Chart]:
    found = by_position(run)
    if found is None:
        return []
    kind = "verify steps" if found.export.acceptance.method == "replay" else "positions in the text"
    return [
        Chart(
            "Predicted against measured by position",
            f"Export {found.export.name}, {found.measurement.num_steps} draft steps. Share of verify steps that accept"
            f" each drafted token; predicted: of {kind}.",
            lambda axes: _by_position(axes, found),
        )
    ]


def plain(name: str, most: int = MAX_NAME) -> str:
    """Returns a name as a chart can show it: short, printable, and with no dollar signs that would start a formula.

    Args:
        name: as it stands.
        most: number of characters from which on its middle is left out.
    """
    name = "".join(letter if letter.isprintable() else "?" for letter in name)
    if len(name) > most:
        name = f"{name[: most // 2]}…{name[1 - most // 2 :]}"
    return name.replace("$", r"\$")


def muted() -> Any:
    """Returns the colour of what stands back: ticks, axes, notes."""
    from matplotlib import rcParams

    return rcParams["xtick.color"]


def _ramp(count: int) -> list[Any]:
    """Colours for depths, shallow to deep."""
    from matplotlib import colormaps, rcParams

    colours = colormaps[rcParams["image.cmap"]]
    return [colours(0.4 + 0.5 * (number + 1) / count) for number in range(count)]


def _epochs(axes: Axes, exports: Sequence[ExportMetadata]) -> None:
    labels = [plain(export.name) for export in exports]
    step = max(1, -(-len(labels) // 10))
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    axes.set_xlim(-0.4, max(len(labels) - 0.6, 0.4))
    axes.set_xlabel("export")


def _line(axes: Axes, ys: Sequence[float | None], colour: Any) -> list[tuple[int, float]]:
    """A line over the exports that breaks where a value is unknown; returns its end, if it has any."""
    known = [float("nan") if y is None else y for y in ys]
    axes.plot(range(len(ys)), known, marker="o", markersize=4.5, linewidth=2, color=colour)
    return [(x, y) for x, y in enumerate(ys) if y is not None][-1:]


def _diamonds(axes: Axes, xs: Iterable[float], ys: Iterable[float], colour: Any = MEASURED) -> None:
    axes.plot(list(xs), list(ys), "D", markersize=6, color=colour)


def _note(axes: Axes, text: str, at: tuple[float, float], *, left: bool = False, **style: Any) -> None:
    """Small text beside a point."""
    axes.annotate(
        text,
        at,
        xytext=(-7 if left else 7, 0),
        textcoords="offset points",
        ha="right" if left else "left",
        va="center",
        **style,
    )


def _end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, Any]]) -> None:
    """Names at the ends of lines, (x, y, name, colour), moved apart where they would overlap."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075
    ordered = sorted(ends, key=lambda end: end[1])
    heights: list[float] = []
    for _, y, _, _ in ordered:
        heights.append(max(y, heights[-1] + gap if heights else y))
    ceiling = high
    for number in reversed(range(len(heights))):
        heights[number] = min(heights[number], ceiling)
        ceiling = heights[number] - gap
    for (x, _, name, colour), height in zip(ordered, heights, strict=True):
        _note(axes, name, (x, height), fontsize=9, color=colour)


def _lengths_by_epoch(axes: Axes, run: Run) -> None:
    rows = [export_row(export) for export in run.exports]
    depths = sorted({depth for row in rows for depth in row.per_depth})
    drawn = depths if len(depths) <= MAX_LINES else [*depths[: MAX_LINES - 1], depths[-1]]
    ends = []
    for depth, colour in zip(drawn, _ramp(len(drawn)) if drawn else [], strict=True):
        for end in _line(axes, [row.per_depth.get(depth) for row in rows], colour):
            ends.append((*end, f"{depth} step{'s' * (depth != 1)}", muted()))
    for x, export in enumerate(run.exports):
        for measured in measurements_of(export):
            at = (x, measured.acceptance_length)
            _diamonds(axes, at[:1], at[1:])
            _note(axes, f"{measured.num_steps}", at, left=True, fontsize=8, color=MEASURED)
    _epochs(axes, run.exports)
    _end_labels(axes, ends)
    _empty(axes, not ends, "No export has an estimate yet.")


def _lengths_by_depth(axes: Axes, export: ExportMetadata) -> None:
    lengths = estimated_lengths(export.acceptance, DEEPEST)
    computed, depths = computed_steps(export.acceptance), list(lengths)
    ends = []
    if depths:
        ys = list(lengths.values())
        axes.plot(depths[:computed], ys[:computed], marker="o", markersize=4.5, linewidth=2, color="C0")
        axes.plot(depths[computed - 1 :], ys[computed - 1 :], linestyle=DASHED, linewidth=2, color="C0")
        ends.append((depths[-1], ys[-1], "estimated", "C0"))
    adjusted = estimated_lengths(export.acceptance, DEEPEST, adjusted=True)
    if adjusted:
        axes.plot(list(adjusted), list(adjusted.values()), linestyle=":", linewidth=2, color=muted())
        ends.append((depths[-1], adjusted[depths[-1]], "adjusted", muted()))
    found = series(export)
    measured = found[0].lengths() if found else {}
    if measured:
        _diamonds(axes, measured, measured.values())
        deepest = max(measured)
        ends.append((deepest, measured[deepest], "measured", MEASURED))
    axes.set_xlabel("draft steps")
    axes.set_xlim(0.5, max([*depths, *measured, 3]) + 0.5)
    axes.locator_params(axis="x", integer=True)
    _end_labels(axes, ends)
    _empty(axes, not ends, "No estimate and no measurement yet.")


def _conditional_by_step(axes: Axes, run: Run) -> None:
    steps = max((len(export.acceptance.steps) for export in run.exports), default=0)
    ends = []
    for step in range(steps):
        colour = f"C{step}"
        for end in _line(axes, [_conditional(export, step) for export in run.exports], colour):
            ends.append((*end, f"step {step}", colour))
    _epochs(axes, run.exports)
    _end_labels(axes, ends)
    _empty(axes, not ends, "No accuracies yet.")


def _conditional(export: ExportMetadata, step: int) -> float | None:
    """cond_acc of a step, from the cumulative accuracies where it was not reported."""
    steps = export.acceptance.steps
    if step >= len(steps):
        return None
    if steps[step].cond_acc is not None:
        return steps[step].cond_acc
    before = steps[step - 1].full_acc if step else 1.0
    full = steps[step].full_acc
    return full / before if full is not None and before else None


def _estimate_against_measurement(axes: Axes, run: Run) -> None:
    points = [
        (estimate, m.acceptance_length, f"{plain(export.name)} @{m.num_steps}")
        for export in run.exports
        for m in measurements_of(export)
        if (estimate := estimate_at(export, min(m.num_steps, MAX_NUM_STEPS))) is not None
    ]
    if points:
        low = min(min(estimate, length) for estimate, length, _ in points) - 0.15
        high = max(max(estimate, length) for estimate, length, _ in points) + 0.15
        axes.plot([low, high], [low, high], linewidth=1.2, color=muted(), linestyle=DASHED)
        _diamonds(axes, [e for e, _, _ in points], [m for _, m, _ in points])
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
        # From left to right, in turn to either side: the names of neighbours would overlap on one.
        for number, (estimate, length, name) in enumerate(sorted(points)):
            _note(axes, name, (estimate, length), left=number % 2 == 0, fontsize=8.5, color=muted())
    axes.set_xlabel("estimated")
    axes.set_ylabel("measured")
    _empty(axes, not points, "Nothing has been measured yet.")


def _by_position(axes: Axes, found: Against) -> None:
    sides = [
        ("predicted", found.positions, "C0"),
        ("measured", found.measurement.accepted_per_position or [], MEASURED),
    ]
    width = 0.38
    for side, (name, shares, colour) in enumerate(sides):
        xs = [position + 1 + (side - 0.5) * width for position in range(len(shares))]
        axes.bar(xs, shares, width * 0.92, color=colour, label=name)
    axes.set_xlabel("position of the drafted token")
    axes.locator_params(axis="x", integer=True)
    axes.set_ylim(0, 1)
    axes.legend(frameon=False, labelcolor="linecolor", fontsize=9)


def _runs_by_epoch(axes: Axes, runs: Sequence[Run]) -> None:
    ends = []
    for number, run in enumerate(runs):
        colour = f"C{number}"
        rows = [export_row(export) for export in run.exports]
        lengths = [row.estimated_acceptance_length if row.includes_bonus_token else None for row in rows]
        for end in _line(axes, lengths, colour):
            ends.append((*end, plain(run.name), colour))
        for x, export in enumerate(run.exports):
            measured = headline_measurement(export)
            if measured is not None and measured.num_steps == trained_steps(export.acceptance):
                _diamonds(axes, [x], [measured.acceptance_length], colour)
    _epochs(axes, max(runs, key=lambda run: len(run.exports)).exports)
    _end_labels(axes, ends)
    _empty(axes, not ends, "No export has an estimate yet.")


def _empty(axes: Axes, empty: bool, text: str) -> None:
    if empty:
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=muted())
        axes.set_yticks([])
        axes.set_xticks([])
