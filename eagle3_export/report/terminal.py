"""The report in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eagle3_export.errors import UsageError
from eagle3_export.report.runs import Run, answers, read_runs
from eagle3_export.report.tabular import row
from eagle3_export.storage.faults import shown

_UNKNOWN = "-"
# Where in an epoch an export was saved, in few letters: the table is to fit in 80 columns.
_SAVED = {"end_of_epoch": "end", "mid_epoch": "mid", "interrupted": "cut", "best": "best"}


def render(runs: Sequence[Run]) -> Group:
    """Per run a table of its exports, and the answers to what one opens a report for."""
    parts: list[Table | Text] = []
    for run in runs:
        parts += [_exports(run), _answers(run), Text()]
    if len(runs) > 1:
        parts.append(_comparison(runs))
    return Group(*parts)


def _exports(run: Run) -> Table:
    table = Table(
        title=f"{run.name} ({shown(run.path)})",
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        pad_edge=False,
    )
    table.add_column("", no_wrap=True)
    table.add_column("export", no_wrap=True)
    for name in ("step", "full_acc_0", "est. length", "change", "measured"):
        table.add_column(name, justify="right", no_wrap=True)
    kinds = {export.source.kind for export in run.exports} != {"end_of_epoch"}
    if kinds:
        table.add_column("at", no_wrap=True)
    for position, export in enumerate(run.exports):
        cells = row(run, position)
        table.add_row(
            "★" if cells["best"] else "",
            export.name,
            _number(cells["global_step"], "d"),
            _number(cells["full_acc_0"], ".4f"),
            _estimate(cells),
            _change(cells["change"]),
            _measured(cells),
            *([_SAVED.get(export.source.kind, _UNKNOWN)] if kinds else []),
            style="bold" if cells["best"] else "",
        )
    return table


def _number(value: float | None, form: str) -> str:
    return _UNKNOWN if value is None else format(value, form)


def _estimate(cells: dict[str, Any]) -> str:
    if cells["estimated_acceptance_length"] is None:
        return _UNKNOWN
    length = f"{cells['estimated_acceptance_length']:.3f}"
    if cells["interval_low"] is not None:
        length += f" ±{(cells['interval_high'] - cells['interval_low']) / 2:.3f}"
    marks = {"geometric": " geometric", "training": " training"}
    return length + marks.get(cells["method"], "") + marks.get(cells["source"], "")


def _change(change: float | None) -> Text:
    if change is None:
        return Text(_UNKNOWN)
    return Text(f"{change:+.3f}", style="green" if change > 0 else "red" if change < 0 else "")


def _measured(cells: dict[str, Any]) -> str:
    if cells["measured_acceptance_length"] is None:
        return _UNKNOWN
    return f"{cells['measured_acceptance_length']:.3f} @{cells['measured_num_steps']}"


def _answers(run: Run) -> Text:
    lines = [
        Text.assemble((f"{a.question} ", "cyan"), (f"{a.answer}. ", "bold"), (a.detail, "dim"))
        for a in answers(run)
    ]
    return Text("\n").join(lines)


def _comparison(runs: Sequence[Run]) -> Table:
    table = Table(title="Runs", title_justify="left", title_style="bold", box=SIMPLE_HEAD)
    for name in ("run", "best", "est. length", "draft steps", "source", "measured"):
        table.add_column(name, justify="left" if name in ("run", "best", "source") else "right")
    for run in runs:
        position = next((i for i, export in enumerate(run.exports) if export.name == run.best), None)
        cells = row(run, position) if position is not None else None
        table.add_row(
            run.name,
            run.best or _UNKNOWN,
            _estimate(cells) if cells else _UNKNOWN,
            _number(cells["estimated_num_steps"], "d") if cells else _UNKNOWN,
            (cells["source"] or _UNKNOWN) if cells else _UNKNOWN,
            _measured(cells) if cells else _UNKNOWN,
        )
    return table


def follow(
    paths: Sequence[str | Path],
    console: Console,
    *,
    interval: float = 5.0,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Show the report again whenever it changes, until interrupted. Runs without exports yet are waited for.

    Args:
        paths: output directories.
        console: where to.
        interval: seconds between looks.
        wait: how to pass them.
    """
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                shown = render(read_runs(paths))
            except UsageError as error:
                shown = Group(Text(str(error), style="dim"))
            live.update(shown, refresh=True)
            try:
                wait(interval)
            except KeyboardInterrupt:
                return
