"""What the charts of a report show."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from eagle3_export.documents.depth import estimated_lengths, measured_lengths
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.report.runs import Run, estimate_at, measurements

if TYPE_CHECKING:
    from matplotlib.axes import Axes

INKS = {"ink": "#1c1c1a", "muted": "#6b6a66", "grid": "#dddcd8", "surface": "#fcfcfb"}
SERIES = ("#2a78d6", "#d95926", "#1baf7a", "#c98500", "#8a5fd3", "#d6457f")
RAMP = ("#86b6ef", "#5598e7", "#2a78d6", "#1c5cab", "#104281")  # light to dark: shallow to deep
MEASURED = "#d95926"
RUN_CHARTS = 4  # charts that every run has; several runs have one more in common


@dataclass(frozen=True, slots=True)
class Chart:
    """One chart.

    Args:
        title: what it shows.
        note: how to read it.
        draw: draws it on matplotlib axes.
    """

    title: str
    note: str
    draw: Callable[[Axes], None]


def charts(runs: Sequence[Run]) -> list[Chart]:
    """The charts of a report: of one run in detail, of several beside each other."""
    if len(runs) > 1:
        compared = Chart(
            "Acceptance length by run",
            "Estimate at the trained depth, bonus token included. Diamonds are measured at that depth.",
            lambda axes: _runs_by_epoch(axes, runs),
        )
        return [compared, *(chart for run in runs for chart in _run_charts(run))]
    return _run_charts(runs[0])


def _run_charts(run: Run) -> list[Chart]:
    return [
        Chart(
            "Acceptance length by epoch and depth",
            "Estimated tokens per verify step, bonus token included; one line per draft depth. Diamonds are measured.",
            lambda axes: _lengths_by_epoch(axes, run),
        ),
        Chart(
            "Acceptance length by depth",
            "The export to deploy. Dashed beyond the trained depth, where it is extrapolated.",
            lambda axes: _lengths_by_depth(axes, run.best_export or run.exports[-1]),
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
    ]


def _labels(run: Run) -> list[str]:
    return [plain(export.name) for export in run.exports]


def plain(name: str) -> str:
    """A name as matplotlib shows it, which reads a formula between dollar signs."""
    return name.replace("$", r"\$")


def _epochs(axes: Axes, labels: Sequence[str]) -> None:
    step = max(1, -(-len(labels) // 10))
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    axes.set_xlim(-0.4, max(len(labels) - 0.6, 0.4))
    axes.set_xlabel("export")


def _line(axes: Axes, xs: Sequence[float], ys: Sequence[float | None], **style: Any) -> None:
    """A line that breaks where a value is unknown."""
    known = [float("nan") if y is None else y for y in ys]
    axes.plot(xs, known, marker="o", markersize=4.5, linewidth=2, **style)


def _end_labels(axes: Axes, ends: Sequence[tuple[float, float, str, str]]) -> None:
    """Names at the ends of lines, moved apart where they would overlap: (x, y, name, colour)."""
    low, high = axes.get_ylim()
    gap = (high - low) * 0.075
    last = -float("inf")
    for x, y, name, colour in sorted(ends, key=lambda end: end[1]):
        last = max(y, last + gap)
        axes.annotate(
            name, (x, last), xytext=(7, 0), textcoords="offset points", va="center", fontsize=9, color=colour
        )


def _lengths_by_epoch(axes: Axes, run: Run) -> None:
    depths = sorted({d.num_steps for export in run.exports for d in export.acceptance.per_depth})
    shown = depths if len(depths) <= len(RAMP) else [*depths[: len(RAMP) - 1], depths[-1]]
    ends = []
    for depth, colour in zip(shown, RAMP[len(RAMP) - len(shown) :], strict=True):
        ys = [
            next((d.acceptance_length for d in export.acceptance.per_depth if d.num_steps == depth), None)
            for export in run.exports
        ]
        _line(axes, range(len(ys)), ys, color=colour)
        known = [(x, y) for x, y in enumerate(ys) if y is not None]
        if known:
            ends.append((*known[-1], f"{depth} step{'s' * (depth != 1)}", INKS["muted"]))
    for x, export in enumerate(run.exports):
        for measured in measurements(export):
            axes.plot([x], [measured.acceptance_length], "D", markersize=6, color=MEASURED)
            axes.annotate(
                f"{measured.num_steps}",
                (x, measured.acceptance_length),
                xytext=(-6, 0),
                textcoords="offset points",
                ha="right",
                va="center",
                fontsize=8,
                color=MEASURED,
            )
    _epochs(axes, _labels(run))
    _end_labels(axes, ends)
    _empty(axes, not ends, "No export has an estimate yet.")


def _lengths_by_depth(axes: Axes, export: ExportMetadata) -> None:
    lengths = estimated_lengths(export)
    trained = len(export.acceptance.steps)
    depths = list(lengths)
    _line(axes, depths[:trained], [lengths[d] for d in depths[:trained]], color=SERIES[0])
    axes.plot(
        depths[trained - 1 :] if trained else [],
        [lengths[d] for d in depths[trained - 1 :]] if trained else [],
        linestyle=(0, (4, 3)),
        linewidth=2,
        color=SERIES[0],
    )
    ends = [(depths[-1], lengths[depths[-1]], "estimated", SERIES[0])] if depths else []
    adjusted = estimated_lengths(export, adjusted=True)
    if adjusted:
        axes.plot(list(adjusted), list(adjusted.values()), linestyle=":", linewidth=2, color=INKS["muted"])
        ends.append((depths[-1], adjusted[depths[-1]], "coverage-adjusted", INKS["muted"]))
    measured = measured_lengths(export)
    if measured:
        axes.plot(list(measured), list(measured.values()), "D", markersize=6, color=MEASURED)
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
        ys = [_conditional(export, step) for export in run.exports]
        colour = SERIES[step % len(SERIES)]
        _line(axes, range(len(ys)), ys, color=colour)
        known = [(x, y) for x, y in enumerate(ys) if y is not None]
        if known:
            ends.append((*known[-1], f"step {step}", colour))
    _epochs(axes, _labels(run))
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
        (estimate_at(export, m.num_steps), m.acceptance_length, f"{plain(export.name)} @{m.num_steps}")
        for export in run.exports
        for m in measurements(export)
    ]
    known = [(estimate, length, name) for estimate, length, name in points if estimate is not None]
    if known:
        low = min(min(e, m) for e, m, _ in known) - 0.15
        high = max(max(e, m) for e, m, _ in known) + 0.15
        axes.plot([low, high], [low, high], linewidth=1.2, color=INKS["muted"], linestyle=(0, (4, 3)))
        axes.plot([e for e, _, _ in known], [m for _, m, _ in known], "D", markersize=6, color=MEASURED)
        for estimate, length, name in known:
            axes.annotate(
                name,
                (estimate, length),
                xytext=(7, 0),
                textcoords="offset points",
                va="center",
                fontsize=8.5,
                color=INKS["muted"],
            )
        axes.set_xlim(low, high)
        axes.set_ylim(low, high)
    axes.set_xlabel("estimated")
    axes.set_ylabel("measured")
    _empty(axes, not known, "Nothing has been measured yet.")


def _runs_by_epoch(axes: Axes, runs: Sequence[Run]) -> None:
    ends = []
    longest = max(runs, key=lambda run: len(run.exports))
    for number, run in enumerate(runs):
        colour = SERIES[number % len(SERIES)]
        ys = [
            export.estimated_acceptance_length if export.acceptance.includes_bonus_token else None
            for export in run.exports
        ]
        _line(axes, range(len(ys)), ys, color=colour)
        for x, export in enumerate(run.exports):
            at_trained_depth = measured_lengths(export).get(len(export.acceptance.steps))
            if at_trained_depth is not None:
                axes.plot([x], [at_trained_depth], "D", markersize=6, color=colour)
        known = [(x, y) for x, y in enumerate(ys) if y is not None]
        if known:
            ends.append((*known[-1], plain(run.name), colour))
    _epochs(axes, _labels(longest))
    _end_labels(axes, ends)
    _empty(axes, not ends, "No export has an estimate yet.")


def _empty(axes: Axes, empty: bool, text: str) -> None:
    if empty:
        axes.text(0.5, 0.5, text, transform=axes.transAxes, ha="center", va="center", color=INKS["muted"])
        axes.set_yticks([])
        axes.set_xticks([])
