"""The commands about numbers: `report` and `measure`. Arguments and printing, nothing else."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Optional

import typer

from eagle3_export.cli.output import (
    Json,
    answer,
    answer_drawn,
    echo,
    echo_findings_briefly,
    interruptible,
    print_json,
    reporting,
)
from eagle3_export.errors import UsageError

if TYPE_CHECKING:
    from rich.table import Table

    from eagle3_export.measure.counts import Counts
    from eagle3_export.measure.measurement import Progress
    from eagle3_export.measure.prompt_forms import Prompt
    from eagle3_export.measure.sweep import SweepResult
    from eagle3_export.measure.workload import Workload
    from eagle3_export.report.runs import Run

MaybePath = Optional[Path]  # noqa: UP045 (typer on Python 3.10 reads this form)
MaybeText = Optional[str]  # noqa: UP045
MaybeFloat = Optional[float]  # noqa: UP045


def register(app: typer.Typer) -> None:
    """Adds the commands to the application."""
    app.command()(report)
    app.command()(measure)


def report(
    output_dirs: Annotated[list[Path], typer.Argument(help="Output directories of runs, or single exports.")],
    html: Annotated[MaybePath, typer.Option("--html", help="Write one self-contained page.")] = None,
    png: Annotated[MaybePath, typer.Option("--png", help="Write the curves as a picture.")] = None,
    csv: Annotated[bool, typer.Option("--csv", help="Print CSV on stdout.")] = False,
    follow: Annotated[bool, typer.Option("--follow", help="Show it again whenever it changes.")] = False,
    fail_below: Annotated[
        MaybeFloat,
        typer.Option("--fail-below", help="Exit 1 if the best export's acceptance length is lower."),
    ] = None,
    compare: Annotated[
        MaybePath, typer.Option("--compare", help="A baseline run; exit 1 if the best export is worse.")
    ] = None,
    max_drop: Annotated[
        str, typer.Option("--max-drop", help="How much worse than the baseline: 2% or 0.05 tokens.")
    ] = "2%",
    as_json: Json = False,
) -> None:
    """Show the exports of one or more runs: which epoch to deploy, at what depth, how sure, and whether it held."""
    with reporting(as_json):
        from eagle3_export.report.gate import against_baseline, against_minimum, parse_max_drop
        from eagle3_export.report.runs import read_run, read_runs

        allowed = parse_max_drop(max_drop)
        if csv and as_json:
            raise UsageError("--csv and --json both print on stdout.", remedy="Choose one.")
        if fail_below is not None and math.isnan(fail_below):
            raise UsageError("--fail-below nan is no acceptance length: nothing would ever fail.")
        if follow:
            _follow(output_dirs, [html, png, fail_below, compare], csv or as_json)
            return
        runs = read_runs(output_dirs)
        _print_report(runs, csv, as_json)
        if html is not None:
            from eagle3_export.report.page import to_html

            _write(html, to_html(runs).encode())
        if png is not None:
            from eagle3_export.report.figures import to_png

            _write(png, to_png(runs))
        checks = [] if fail_below is None else [c for run in runs for c in against_minimum(run, fail_below)]
        if compare is not None:
            baseline = read_run(compare)
            checks += [c for run in runs for c in against_baseline(run, baseline, allowed)]
        colors = {True: "green", False: "red", None: None}
        for check in checks:
            echo(str(check), color=colors[check.passed])
        if any(check.passed is False for check in checks):
            raise typer.Exit(1)


def _follow(output_dirs: list[Path], others: list[object], to_stdout: bool) -> None:
    from rich.console import Console

    from eagle3_export.report.terminal import follow

    if to_stdout or any(other is not None for other in others):
        raise UsageError("--follow shows the table only.", remedy="Leave the other options out.")
    follow(output_dirs, Console())


def _print_report(runs: list[Run], csv: bool, as_json: bool) -> None:
    from eagle3_export.report.tabular import to_csv, to_json

    if csv or as_json:
        answer(to_csv(runs) if csv else to_json(runs), newline=False)
        return
    from eagle3_export.report.terminal import render

    answer_drawn(render(runs))


def _write(path: Path, content: bytes) -> None:
    from eagle3_export.storage.publish import replace_file

    replace_file(path, content)
    echo(f"wrote {path}")


def measure(
    export: Annotated[Path, typer.Argument(help="The export that the server runs, or a pointer such as best.")],
    base_url: Annotated[MaybeText, typer.Option("--base-url", help="http://host:port of a running server.")] = None,
    sweep: Annotated[MaybeText, typer.Option("--sweep", help="Start servers at these depths: 16,10,5")] = None,
    target: Annotated[MaybeText, typer.Option("--target", help="With --sweep: the model to serve.")] = None,
    launch_template: Annotated[
        MaybeText,
        typer.Option("--launch-template", help="With --sweep: the command that starts a server, with {target}, {port} "
                     "and {speculative} in it; srun or docker run may stand in front."),
    ] = None,
    baseline: Annotated[bool, typer.Option(help="With --sweep: measure without a draft first.")] = True,
    prompts: Annotated[MaybePath, typer.Option("--prompts", help="A .jsonl, .json or text file of prompts.")] = None,
    dataset: Annotated[MaybeText, typer.Option("--dataset", help="A data set on the hub or in its cache.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="The first so many prompts.")] = 64,
    skip_bad_prompts: Annotated[
        bool, typer.Option("--skip-bad-prompts", help="Leave out what is no prompt, and say how much that was.")
    ] = False,
    max_new_tokens: Annotated[int, typer.Option("--max-new-tokens", min=1)] = 256,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0)] = 0.0,
    concurrency: Annotated[int, typer.Option("--concurrency", min=1, help="Requests in flight.")] = 1,
    ignore_eos: Annotated[bool, typer.Option("--ignore-eos", help="Always generate --max-new-tokens.")] = False,
    api_key: Annotated[
        MaybeText,
        typer.Option("--api-key", envvar=["SGLANG_API_KEY", "OPENAI_API_KEY"], help="The server's API key. Sent with "
                     "every request, printed and stored nowhere."),
    ] = None,
    served_as: Annotated[
        MaybeText,
        typer.Option("--served-as", help="The path or hub id under which the server sees this export, if another: a "
                     "container, the hub, s3://. Recorded as your word."),
    ] = None,
    as_json: Json = False,
) -> None:  # fmt: skip
    """Measure the acceptance length on a server that runs this export, and write it into its metadata."""
    with reporting(as_json), interruptible("the measurement that was running is not recorded"):
        from eagle3_export.measure.measurement import measure as measure_once
        from eagle3_export.measure.measurement import record
        from eagle3_export.measure.workload import Workload
        from eagle3_export.output_directory import locate_export

        export = locate_export(export)
        if (base_url is None) == (sweep is None):
            raise UsageError("Name either a running server with --base-url, or depths with --sweep.")
        if not math.isfinite(temperature):
            raise UsageError(f"--temperature {temperature} is no temperature.")
        directory = locate_export(export)
        found, source = _prompts(prompts, dataset, limit, skip_bad_prompts)
        workload = Workload(found, source, max_new_tokens, temperature, ignore_eos, concurrency)
        if sweep is not None:
            _sweep(directory, sweep, target, launch_template, baseline, workload, api_key, served_as, as_json)
            return
        assert base_url is not None
        with _progress_bar() as progress:
            measurement = measure_once(
                directory, base_url, workload, api_key=api_key, served_as=served_as, progress=progress
            )
        record(directory, measurement)
        if as_json:
            print_json(measurement.model_dump(mode="json"))
        else:
            answer(f"{measurement.acceptance_length:.4f}")
            echo(f"tokens per verify step, bonus token included, at {measurement.num_steps} draft steps")
            for difference in measurement.differences:
                echo(f"not comparable with others: {difference}", color="yellow")


@contextmanager
def _progress_bar() -> Iterator[Progress | None]:
    """A bar on stderr with prompts done and the acceptance length so far; nothing where stderr is no terminal."""
    from eagle3_export.cli.progress import progress_bar

    with progress_bar() as show:

        def show_counts(done: int, total: int, counts: Counts) -> None:
            if show is not None:
                show(done, total, counts.acceptance_length if counts.verify_steps else None)

        yield None if show is None else show_counts


def _prompts(
    prompts: Path | None, dataset: str | None, limit: int, skip_bad: bool
) -> tuple[list[Prompt], str]:
    from eagle3_export.measure.workload import dataset_prompts, read_prompts

    bad: list[str] = []
    left_out = bad.append if skip_bad else None
    if prompts is not None and dataset is None:
        found, source = read_prompts(prompts, limit=limit, left_out=left_out), str(prompts)
    elif dataset is not None and prompts is None:
        found, source = dataset_prompts(dataset, limit=limit, left_out=left_out), dataset
    else:
        raise UsageError("Name the prompts: --prompts FILE or --dataset NAME.")
    if bad:
        echo(f"left out {len(bad)} that are no prompts, beside the {len(found)} taken; the first: {bad[0]}")
    return found, source


def _sweep(
    export: Path,
    depths: str,
    target: str | None,
    template: str | None,
    baseline: bool,
    workload: Workload,
    api_key: str | None,
    served_as: str | None,
    as_json: bool,
) -> None:
    from eagle3_export.launch import draft_arguments, pair_with_target
    from eagle3_export.measure.sweep import DEFAULT_TEMPLATE, Sweep, sweep_depths

    if target is None:
        raise UsageError("--sweep starts servers itself.", remedy="Name the model to serve with --target.")
    try:
        wanted = [int(depth) for depth in depths.split(",")]
    except ValueError:
        raise UsageError(
            f"--sweep {depths!r} is no list of depths.", remedy="Write it like 16,10,5."
        ) from None
    pair = pair_with_target(export, target)
    echo_findings_briefly(pair.findings, pair.directory)
    plan = Sweep(
        target,
        lambda depth: draft_arguments(export, target, depth, served_as=served_as),
        template or DEFAULT_TEMPLATE,
        served_as=served_as,
        api_key=api_key,
    )
    with _progress_bar() as progress:
        result = sweep_depths(export, wanted, workload, plan, baseline=baseline, say=echo, progress=progress)
    if as_json:
        print_json(result.as_dict())
    else:
        answer_drawn(_sweep_table(result))


def _sweep_table(result: SweepResult) -> Table:
    from rich.table import Table

    columns = ("draft steps", "acceptance length", "tokens/s", "speed-up")
    table = Table(*columns, title="What to deploy: the fastest is marked *")
    undrafted, fastest = result.baseline_tokens_per_second, result.fastest
    drafts_slow_down = undrafted is not None and undrafted > (fastest.tokens_per_second or 0.0)
    for found in sorted(result.measurements, key=lambda found: found.num_steps):
        mark = "*" if found.num_steps == fastest.num_steps and not drafts_slow_down else ""
        speedup = "" if found.speedup is None else f"{found.speedup:.2f}x"
        table.add_row(
            f"{found.num_steps}{mark}",
            f"{found.acceptance_length:.3f}",
            f"{found.tokens_per_second or 0:.1f}",
            speedup,
        )
    if undrafted is not None:
        table.add_row("none*" if drafts_slow_down else "none", "1.000", f"{undrafted:.1f}", "1.00x")
    return table
