"""The report in the terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.box import SIMPLE_HEAD
from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from eagle3_export.documents.row import export_row
from eagle3_export.errors import UsageError
from eagle3_export.report.answers import Answer, answers
from eagle3_export.report.cells import UNKNOWN, cells, estimate_cell, measured_cell, notes, number
from eagle3_export.report.measured import HEADING, measured_notes, measured_table
from eagle3_export.report.missing import missing_commands
from eagle3_export.report.runs import Run, read_runs
from eagle3_export.storage.faults import shown

_LEFT = ("export", "at", "run", "best", "source", "prompts")


def render(runs: Sequence[Run]) -> Group:
    """Returns per run a table of its exports, and the answers to what one opens a report for."""
    parts: list[Table | Text] = []
    for run in runs:
        parts += [_exports(run), _lines([_text(note, "dim") for note in notes(run)]), *_commands(run)]
        parts += [*_measurements(run), *_answers(run), Text()]
    if len(runs) > 1:
        parts.append(_comparison(runs))
    return Group(*parts)


def follow(
    paths: Sequence[str | Path],
    console: Console,
    *,
    interval: float = 5.0,
    wait: Callable[[float], object] = time.sleep,
) -> None:
    """Shows the report again whenever it changes, until interrupted. Runs without exports yet are waited for.

    Args:
        paths: output directories.
        console: where to.
        interval: seconds between looks.
        wait: how to pass them.
    """
    with Live(console=console, auto_refresh=False) as live:
        while True:
            try:
                report = render(read_runs(paths))
            except UsageError as error:
                report = Group(Text(str(error), style="dim"))
            live.update(report, refresh=True)
            try:
                wait(interval)
            except KeyboardInterrupt:
                return


def _text(text: str, style: str = "") -> Text:
    """Text as it stands: names may hold what rich or the terminal would take for a command."""
    return Text("".join(letter if letter.isprintable() else "?" for letter in text), style=style)


def _lines(texts: Sequence[Text]) -> Text:
    return Text("\n").join(texts)


def _table(title: str, headings: Sequence[str]) -> Table:
    table = Table(title=_text(title, "bold"), title_justify="left", box=SIMPLE_HEAD, pad_edge=False)
    for heading in headings:
        table.add_column(
            heading, justify="left" if heading in _LEFT or not heading else "right", no_wrap=True
        )
    return table


def _exports(run: Run) -> Table:
    rows = [cells(run, position) for position in range(len(run.exports))]
    table = _table(f"{run.name} ({shown(run.path)})", ["", *rows[0].by_heading])
    for row in rows:
        texts = {heading: _text(text) for heading, text in row.by_heading.items()}
        if row.change:
            texts["change"].style = "green" if row.change > 0 else "red"
        table.add_row(row.mark, *texts.values(), style="bold" if row.mark == "★" else "")
    return table


def _commands(run: Run) -> list[Text]:
    """Each in one line, however long, to be copied."""
    lines = [_text(f"  {command}") for command in missing_commands(run)]
    for line in lines:
        line.no_wrap, line.overflow = True, "ignore"
    return lines


def _measurements(run: Run) -> list[Table | Text]:
    rows = measured_table(run)
    if not rows:
        return []
    table = _table(HEADING, list(rows[0]))
    for row in rows:
        table.add_row(*map(_text, row.values()))
    return [table, _lines([_text(note, "dim") for note in measured_notes(run)])]


def _answers(run: Run) -> list[Text]:
    lines = []
    for answer in answers(run):
        lines.append(
            Text.assemble(
                (f"{answer.question} ", "cyan"),
                _text(f"{answer.answer}. ", "bold"),
                _text(answer.detail, "dim"),
            )
        )
        lines += _warning(answer)
    return [_lines(lines)]


def _warning(answer: Answer) -> list[Text]:
    return [_text(f"  warning: {answer.warning}", "yellow")] if answer.warning else []


def _comparison(runs: Sequence[Run]) -> Table:
    table = _table("Runs", ("run", "best", "est. length", "draft steps", "source", "measured"))
    table.columns[0].no_wrap = False
    for run in runs:
        best = run.best_export
        if best is None:
            texts = [run.name, *[UNKNOWN] * 5]
        else:
            row = export_row(best)
            texts = [
                run.name,
                row.name,
                estimate_cell(row),
                number(row.acceptance_num_steps, "d"),
                row.acceptance_source or UNKNOWN,
                measured_cell(row),
            ]
        table.add_row(*map(_text, texts))
    return table
