"""Reports over runs whose numbers are known: terminal, CSV, JSON, page, picture, gate and depth advice."""

from __future__ import annotations

import csv
import io
import itertools
import json
import re
import shutil
import subprocess
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from rich.console import Console
from typer.testing import CliRunner

from eagle3_export.cli.commands import app
from eagle3_export.documents.depth import recommend_depth
from eagle3_export.documents.index import build_index
from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.json_files import to_json as document
from eagle3_export.documents.metadata import with_measurement
from eagle3_export.documents.model_card import render_model_card
from eagle3_export.errors import UsageError
from eagle3_export.estimates.acceptance import Coverage
from eagle3_export.estimates.replay import ReplayedData
from eagle3_export.report import figures, page, tabular, terminal
from eagle3_export.report.answers import answers
from eagle3_export.report.charts import chart_groups
from eagle3_export.report.gate import against_baseline, against_minimum, parse_max_drop
from eagle3_export.report.runs import read_run, read_runs
from tests.support.documents import export, measurement, replayed, replayed_depths, replayed_documents
from tests.support.machine import program


def accuracies(*full):
    return {f"full_acc_{step}_epoch": value for step, value in enumerate(full)}


def write_run(path: Path, *full_per_epoch, measured=()) -> Path:
    """A run with one export per epoch; None for an epoch that was not validated. Measurements are of the last."""
    for epoch, full in enumerate(full_per_epoch):
        metadata = export(
            str(epoch),
            epoch=epoch,
            step=100 * (epoch + 1),
            metrics=None if full is None else accuracies(*full),
        )
        if epoch == len(full_per_epoch) - 1:
            for changes in measured:
                metadata = with_measurement(metadata, measurement(**changes))
        directory = path / str(epoch)
        directory.mkdir(parents=True)
        (directory / "metadata.json").write_bytes(document(metadata))
    return path


@pytest.fixture
def rising(tmp_path):
    """Estimates 2.4, 2.8 and none; epoch 1 is best."""
    return write_run(tmp_path / "rising", (0.7, 0.4, 0.3), (0.8, 0.6, 0.4), None)


def shown(runs) -> str:
    console = Console(width=160, file=io.StringIO())
    console.print(terminal.render(runs))
    return console.file.getvalue()


class TestTerminal:
    def test_best_is_marked_and_changes_are_against_the_epoch_before(self, rising):
        cells = [line.split() for line in shown([read_run(rising)]).splitlines()]
        assert ["0", "100", "0.7000", "2.400", "-", "-"] in cells
        assert ["★", "1", "200", "0.8000", "2.800", "+0.400", "-"] in cells
        assert ["2", "300", "-", "-", "-", "-"] in cells

    def test_an_interrupted_run_fits_in_eighty_columns(self, rising):
        metadata = read_metadata(rising / "1")
        source = metadata.source.model_copy(update={"kind": "interrupted"})
        cut = metadata.model_copy(update={"name": "interrupted", "global_step": 10000, "source": source})
        (rising / "interrupted").mkdir()
        (rising / "interrupted" / "metadata.json").write_bytes(document(cut))
        console = Console(width=80, file=io.StringIO())
        console.print(terminal.render([read_run(rising)]))
        text = console.file.getvalue()
        (row,) = (line for line in text.splitlines() if "interrupted" in line and "10000" in line)
        assert row.split()[-1] == "cut"
        assert "…" not in text

    def test_runs_stand_beside_each_other(self, rising, tmp_path):
        other = write_run(tmp_path / "other", (0.5, 0.2, 0.1))
        text = shown(read_runs([rising, other]))
        assert re.search(r"rising +1 +2\.800 +3 +validation", text)
        assert re.search(r"other +0 +1\.800 +3 +validation", text)

    def test_runs_of_one_name_are_told_apart(self, tmp_path):
        runs = read_runs([write_run(tmp_path / name / "sglang", (0.5, 0.2)) for name in ("a", "b")])
        assert [run.name for run in runs] == ["a/sglang", "b/sglang"]

    def test_following_shows_an_export_that_appears(self, rising):
        console = Console(width=160, file=io.StringIO(), force_terminal=True)
        looks = []

        def wait(_):
            if looks:
                raise KeyboardInterrupt
            looks.append(None)
            write_run(rising / "later", (0.9, 0.8, 0.7))
            (rising / "later" / "0").rename(rising / "3")

        terminal.follow([rising], console, wait=wait)
        assert "3.400" in console.file.getvalue()

    def test_nothing_to_report(self, tmp_path):
        with pytest.raises(UsageError, match="holds no exports"):
            read_run(tmp_path)
        with pytest.raises(UsageError, match="is no directory"):
            read_run(tmp_path / "missing")


class TestAnswers:
    def test_four_questions(self, tmp_path):
        run = read_run(
            write_run(
                tmp_path / "run", (0.8, 0.6, 0.4), measured=[{"num_steps": 3, "acceptance_length": 2.5}]
            )
        )
        which, depth, sure, true = (answer.answer for answer in answers(run))
        assert (which, depth, sure) == ("epoch 0", "3 draft steps", "no interval")
        assert true == "2.50 measured, estimated 2.80"

    def test_before_any_validation_the_answer_is_why(self, tmp_path):
        (answer,) = answers(read_run(write_run(tmp_path / "run", None)))
        assert answer.answer == "not known yet"
        assert "not been validated" in answer.detail


def counted(*full, positions=1000):
    return accuracies(*full) | {f"full_acc_{step}_total": positions for step in range(len(full))}


class TestOthersThanTheBestWereMeasured:
    """Estimates 2.70, 2.79 and 2.80; the first two were measured 10 % and 20 % below, at concurrency 1."""

    @pytest.fixture
    def run(self, tmp_path):
        for epoch, (full, share) in enumerate(
            [((0.77, 0.56, 0.37), 0.9), ((0.8, 0.6, 0.39), 0.8), ((0.8, 0.6, 0.4), None)]
        ):
            metadata = export(str(epoch), epoch=epoch, step=epoch, metrics=counted(*full))
            if share is not None:
                length = metadata.estimated_acceptance_length * share
                metadata = with_measurement(metadata, measurement(acceptance_length=length))
            directory = tmp_path / "run" / str(epoch)
            directory.mkdir(parents=True)
            (directory / "metadata.json").write_bytes(document(metadata))
        return read_run(tmp_path / "run")

    def test_it_is_said_what_they_did_and_what_to_expect(self, run):
        true = answers(run)[3]
        assert true.answer == "not measured, expect 2.24 to 2.52"  # 2.8 · .8 and 2.8 · .9
        assert (
            "3 draft steps against the estimate: 10 % below for export 0 and 20 % below for export 1."
            in true.detail
        )

    def test_the_interval_is_not_believed(self, run):
        assert answers(run)[2].warning.startswith("2 of 2 measured exports came out outside the interval")

    def test_what_the_intervals_cannot_tell_apart_is_a_tie(self, run):
        # half an interval is 0.07, of a difference 0.1: 2.79 ties with 2.80, and so does 2.70, just
        assert run.ties == ["0", "1"]
        assert "A tie with 0 and 1" in answers(run)[0].detail
        lines = [line.split()[:2] for line in shown([run]).splitlines()]
        assert ["=", "1"] in lines
        assert ["★", "2"] in lines

    def test_measured_under_other_conditions_they_are_not_mixed(self, run):
        exports = list(run.exports)
        later = measurement(
            acceptance_length=2.1, concurrency=64, measured_at="2027-01-01T00:00:00+00:00", num_steps=3
        )
        bare = export("1", epoch=1, step=1, metrics=counted(0.8, 0.6, 0.39))
        exports[1] = with_measurement(bare, later)
        true = answers(replace(run, exports=exports))[3]
        assert true.answer == f"not measured, expect {2.8 * 2.1 / 2.79:.2f}"


def test_text_that_is_not_the_verifiers_is_said_where_one_asks_how_sure(tmp_path):
    replay = replayed_depths({1: 1.5}, computed=1, first_choice_share=0.6)
    (tmp_path / "run" / "0").mkdir(parents=True)
    metadata = export("0", metrics={"full_acc_0": 0.7}, replay=replay)
    (tmp_path / "run" / "0" / "metadata.json").write_bytes(document(metadata))
    run = read_run(tmp_path / "run")
    sure = answers(run)[2]
    said = "Only 60% of the response tokens in the validation are the verifier's first choice"
    assert sure.warning.startswith(said)
    assert "Words outside the draft vocabulary count as misses." in sure.detail
    assert said in " ".join(shown([run]).split())
    assert said in render_model_card(metadata)
    pytest.importorskip("matplotlib")
    assert "What text the estimate is from" in page.to_html([run])


class TestMeasurements:
    """Replays of 1.50 and 1.60 tokens at one draft step. Both were measured on chat, the second on code too."""

    @pytest.fixture
    def run(self, tmp_path):
        chat = {"prompt_source": "/data/chat.jsonl", "prompts_digest": "sha256:0123456789", "num_steps": 1}
        code = chat | {"prompt_source": "code.jsonl", "prompts_digest": "sha256:abcdef0123", "num_steps": 2}
        measured = (
            [chat | {"acceptance_length": 1.45, "accepted_per_position": [0.45]}],
            [
                chat | {"acceptance_length": 1.52, "accepted_per_position": [0.52]},
                code | {"acceptance_length": 1.9, "accepted_per_position": [0.6, 0.3]},
            ],
        )
        for epoch, found in enumerate(measured):
            metadata = export(
                str(epoch),
                epoch=epoch,
                step=epoch,
                metrics={"full_acc_0": 0.7},
                replay=replayed(1.5 + epoch / 10),
            )
            for changes in found:
                metadata = with_measurement(metadata, measurement(**changes))
            directory = tmp_path / "run" / str(epoch)
            directory.mkdir(parents=True)
            (directory / "metadata.json").write_bytes(document(metadata))
        return read_run(tmp_path / "run")

    def test_by_data_and_depth_and_only_what_is_comparable_on_one_line(self, run):
        lines = [line.split("  ") for line in shown([run]).splitlines()]
        lines = [[cell.strip() for cell in line if cell.strip()] for line in lines]
        assert ["prompts", "export", "concurrency", "1 step", "2 steps"] in lines
        chat = [line for line in lines if line and line[0] == "8 of chat.jsonl (01234567)"]
        assert chat == [
            ["8 of chat.jsonl (01234567)", "0", "1", "1.45 / 1.50"],
            ["8 of chat.jsonl (01234567)", "1", "1", "1.52 / 1.60"],
        ]
        assert ["8 of code.jsonl (abcdef01)", "1", "1", "1.90 / -"] in lines

    def test_the_positions_of_the_export_to_deploy(self, run):
        text = " ".join(shown([run]).split())
        assert "position 1, 2, … (export 1, 1 draft steps): measured 0.52; predicted 0.60 (replay)." in text

    def test_the_same_in_json_and_on_the_page(self, run):
        (written,) = json.loads(tabular.to_json([run]))["runs"]
        found = {(m["export"], m["num_steps"]): m for m in written["measurements"]}
        assert set(found) == {("0", 1), ("1", 1), ("1", 2)}
        one = found["1", 1]
        assert (one["measured"], one["predicted"], one["predicted_by"]) == (
            1.52,
            pytest.approx(1.6),
            "replay",
        )
        assert one["measured_to_predicted"] == pytest.approx(0.95)
        assert (one["measured_per_position"], one["predicted_per_position"]) == ([0.52], [pytest.approx(0.6)])
        assert found["1", 2]["predicted"] is found["1", 2]["predicted_per_position"] is None
        pytest.importorskip("matplotlib")
        html = page.to_html([run])
        assert "<td>1.52 / 1.60</td>" in html
        (group,) = chart_groups([run])
        chart = group.charts[-1]
        assert chart.title == "Predicted against measured by position"
        assert "predicted: of verify steps" in chart.note
        svg = figures.to_svg(chart, "light").decode()
        assert "predicted" in svg and "measured" in svg

    def test_a_server_that_ran_the_draft_otherwise_is_marked_and_stands_alone(self, run):
        exports = list(run.exports)
        odd = measurement(num_steps=1, acceptance_length=1.1, differences=["The server ran top-k 4."])
        exports[0] = with_measurement(exports[0], odd)
        text = shown([replace(run, exports=exports)])
        assert re.search(r"8 of prompts.txt +0 \* +1 +1.10 / 1.50", text)
        assert "* 0: The server ran top-k 4." in text

    def test_nothing_measured_takes_no_room(self, tmp_path):
        run = read_run(write_run(tmp_path / "run", (0.8, 0.6, 0.4)))
        assert "Measured / predicted" not in shown([run])
        assert len(chart_groups([run])[0].charts) == 4


class TestTies:
    """Replays of the same three documents: 1.50, 1.60, 1.61 and 1.60 tokens; epoch 0 is worse in each of them."""

    ACCEPTED = ((40, 50, 60), (51, 60, 69), (50, 60, 73), (50, 61, 69))

    def run(self, tmp_path, measured=()):
        for epoch, accepted in enumerate(self.ACCEPTED):
            metadata = export(
                str(epoch),
                epoch=epoch,
                step=epoch + 1,
                metrics={"full_acc_0": 0.7},
                replay=replayed_documents(*accepted),
            )
            for changes in (changes for name, changes in measured if name == epoch):
                metadata = with_measurement(metadata, measurement(num_steps=1, **changes))
            directory = tmp_path / "run" / str(epoch)
            directory.mkdir(parents=True)
            (directory / "metadata.json").write_bytes(document(metadata))
        return read_run(tmp_path / "run")

    def test_of_those_that_tie_document_by_document_the_earliest_is_advised(self, tmp_path):
        run = self.run(tmp_path)
        assert (run.best, run.ties) == ("2", ["1", "3"])
        which = answers(run)[0]
        assert which.answer == "epoch 1"
        # 1.61 - 1.60 = .01; by document -.01, 0, .04 less .01 each, over 3 documents: (-2, -1, 3) / 300;
        # squares 14 / 90000 · 3 / 2, root .01528, times 4.3027 is .0657
        assert which.detail == (
            "1, 2 and 3 are a tie: paired over the same 3 documents, no difference from 2, the highest, is told from"
            " zero (1 is 0.010 below it, 95 % interval -0.056 to 0.076). Advised is 1: the earliest; all of them cost"
            " the same to serve. `best` points to 2."
        )
        (written,) = json.loads(tabular.to_json([run]))["runs"]
        assert (written["best"], written["advised"]) == ("2", "1")
        assert written["ties"]["1"] == {
            "tokens": pytest.approx(0.01),
            "interval": {"low": pytest.approx(-0.0557, abs=1e-4), "high": pytest.approx(0.0757, abs=1e-4)},
            "documents": 3,
        }
        assert "Advised is 1: the earliest" in " ".join(shown([run]).split())
        pytest.importorskip("matplotlib")
        assert "Advised is 1: the earliest" in page.to_html([run])

    def test_what_has_been_measured_is_advised_first(self, tmp_path):
        run = self.run(tmp_path, [(3, {"acceptance_length": 1.55})])
        which, _, _, true = answers(run)
        assert which.answer == "epoch 3"
        assert "Advised is 3: it was measured on a server, 1.55 at 1 draft steps." in which.detail
        assert true.answer == "1.55 measured, estimated 1.60"

    def test_of_several_measured_alike_the_highest(self, tmp_path):
        measured = [(1, {"acceptance_length": 1.6}), (2, {"acceptance_length": 1.5})]
        other = (3, {"acceptance_length": 1.9, "concurrency": 64, "measured_at": "2025-01-01T00:00:00+00:00"})
        which = answers(self.run(tmp_path, [*measured, other]))[0]
        assert "Advised is 1: the highest of those measured on a server, 1.60" in which.detail

    def test_a_single_best_is_advised_itself(self, tmp_path):
        run = self.run(tmp_path)
        alone = replace(run, exports=[run.exports[0], run.exports[2]])
        assert alone.ties == []
        assert answers(alone)[0].answer == "epoch 2"
        assert answers(alone)[0].detail.startswith(
            "Highest estimated acceptance length of 2 rated exports: 1.61"
        )


def test_exports_without_an_estimate_are_named_with_the_reason_below_the_table(rising):
    lines = shown([read_run(rising)]).splitlines()
    assert "No estimate for 2: This checkpoint has not been validated yet." in [
        line.strip() for line in lines
    ]


class TestWhatToTypeForExportsWithoutANumber:
    def write(self, path: Path, checkpoints: Path, **changes) -> None:
        kept = export(path.name)
        source = kept.source.model_copy(update={"checkpoint": str(checkpoints / path.name)})
        path.mkdir(parents=True)
        (path / "metadata.json").write_bytes(document(export(path.name, source=source, **changes)))

    def test_each_has_its_command_in_one_line(self, tmp_path):
        checkpoints, output = tmp_path / "a run" / "checkpoints", tmp_path / ("a-long-name" * 8)
        for name in ("0", "1"):
            (checkpoints / name).mkdir(parents=True)
        (checkpoints / "run.yaml").write_text("train: {}")
        self.write(output / "0", checkpoints, metrics=accuracies(0.8, 0.6, 0.4))
        self.write(output / "1", checkpoints, epoch=1, step=200)
        command = f"eagle3-export estimate '{checkpoints / '1'}' --export {output / '1'}"
        run = read_run(output)
        result = CliRunner().invoke(app, ["report", str(output)])
        assert f"  {command}" in result.stdout.splitlines()
        assert json.loads(tabular.to_json([run]))["runs"][0]["commands"] == [command]
        pytest.importorskip("matplotlib")
        assert "eagle3-export estimate &#39;" in page.to_html([run])

    def test_what_is_not_where_it_was_has_to_be_named(self, tmp_path):
        self.write(tmp_path / "run" / "1", tmp_path / "gone")
        lines = shown([read_run(tmp_path / "run")]).splitlines()
        assert f"  eagle3-export estimate CHECKPOINT --data DATA --export {tmp_path / 'run' / '1'}" in lines

    def test_those_estimated_otherwise_than_the_best_are_named(self, tmp_path):
        output = tmp_path / "run"
        self.write(output / "0", tmp_path, metrics=accuracies(0.8, 0.6, 0.4))
        self.write(output / "1", tmp_path, step=200, replay=replayed(1.5))
        run = read_run(output)
        assert run.best == "1"
        lines = shown([run]).splitlines()
        assert "Not compared: 0, whose estimate is cumulative from validation." in lines
        assert f"  eagle3-export estimate CHECKPOINT --data DATA --export {output / '0'}" in lines
        assert "Not compared: 0" in json.loads(tabular.to_json([run]))["runs"][0]["best_why"]

    def test_a_run_of_many_shows_a_few(self, tmp_path):
        for number in range(9):
            self.write(tmp_path / "run" / str(number), tmp_path, step=number)
        text = shown([read_run(tmp_path / "run")])
        assert text.count("eagle3-export estimate") == 5
        assert "The commands for 5, 6, 7, 8 are like those below." in text


def test_a_change_between_depths_is_that_at_the_common_one(tmp_path):
    run = read_run(write_run(tmp_path / "run", (0.8, 0.6), (0.8, 0.5, 0.4)))
    assert run.change(1) == pytest.approx(-0.1)


@pytest.mark.parametrize("name", ["[/red]", "[bold]x", "a\x1b[2Jb", "$x$", "\x01", "{{ x }}", "<i>"])
def test_names_are_shown_as_they_stand(tmp_path, name):
    pytest.importorskip("matplotlib")
    run = read_run(write_run(tmp_path / name, (0.8, 0.6, 0.4)))
    text = shown([run, run])
    assert "\x1b" not in text
    assert "".join(letter if letter.isprintable() else "?" for letter in Path(name).name) in text
    html = page.to_html([run])
    assert "<i>" not in html
    for chart in chart_groups([run])[0].charts:
        ElementTree.fromstring(figures.to_svg(chart, "dark"))


class TestData:
    def test_the_order_of_a_sweep_makes_no_difference(self, tmp_path):
        shapes = {16: (3.3, 1.2), 10: (3.1, 1.5), 5: (2.9, 1.6)}
        rows = []
        for name, order in (("down", (16, 10, 5)), ("up", (5, 10, 16))):
            measured = [
                {"num_steps": depth, "acceptance_length": shapes[depth][0], "speedup": shapes[depth][1]}
                for depth in order
            ]
            run = read_run(write_run(tmp_path / name / "run", (0.8, 0.6, 0.4), measured=measured))
            entry = build_index(run.exports).exports[0].model_dump(exclude={"created_at"})
            (row,) = json.loads(tabular.to_json([run]))["runs"][0]["exports"]
            section = run.exports[0].measured
            rows.append((entry, row | {"created_at": ""}, section.num_steps, section.cost_ratio))
        assert rows[0] == rows[1]
        assert rows[0][0]["measured_num_steps"] == rows[0][2] == 5  # nearest to the three trained steps

    def test_the_index_and_the_report_show_the_same_measurement(self, tmp_path):
        depths = [{"num_steps": 3, "acceptance_length": 2.5}, {"num_steps": 16, "acceptance_length": 3.3}]
        run = read_run(write_run(tmp_path / "run", (0.8, 0.6, 0.4), measured=depths))
        entry, row = build_index(run.exports).exports[0], tabular.row(run, 0)
        for name in ("measured_acceptance_length", "measured_num_steps"):
            assert getattr(entry, name) == row[name] == getattr(run.exports[0].measured, name[9:])
        assert row["measured_num_steps"] == 3

    def test_the_columns_that_readers_know(self, rising):
        names = next(csv.reader(io.StringIO(tabular.to_csv([read_run(rising)]))))
        assert {
            *("run", "export", "best", "epoch", "global_step", "kind", "full_acc_0"),
            *(
                "estimated_acceptance_length",
                "estimated_num_steps",
                "method",
                "source",
                "includes_bonus_token",
            ),
            *("interval_low", "interval_high", "adjusted_acceptance_length", "change"),
            *("measured_acceptance_length", "measured_num_steps", "measured_tokens_per_second"),
            *("measured_speedup", "bytes", "seconds", "created_at", "acceptance_length_3"),
        } <= set(names)

    def test_csv_has_a_row_per_export_and_a_column_per_depth(self, rising):
        rows = list(csv.DictReader(io.StringIO(tabular.to_csv([read_run(rising)]))))
        assert [row["export"] for row in rows] == ["0", "1", "2"]
        assert float(rows[1]["acceptance_length_3"]) == pytest.approx(2.8)
        assert float(rows[1]["acceptance_length_1"]) == pytest.approx(1.8)
        assert rows[2]["estimated_acceptance_length"] == ""

    def test_json_is_strict_and_explains_nulls(self, rising):
        def refuse(name):
            raise AssertionError(name)

        (run,) = json.loads(tabular.to_json([read_run(rising)]), parse_constant=refuse)["runs"]
        assert run["best"] == "1"
        assert [entry["estimated_acceptance_length"] for entry in run["exports"]] == [
            pytest.approx(2.4),
            pytest.approx(2.8),
            None,
        ]
        assert run["exports"][2]["reasons"]["estimated_acceptance_length"]


def failed(checks) -> list[str]:
    return [str(check) for check in checks if check.passed is False]


class TestGate:
    def test_a_gate_that_passes_shows_both_sides(self, tmp_path):
        # 1 + .5 + .2 + .052 = 1.752; 1 + .45 + .15 + .031 = 1.631; 1.752 / 1.631 = 1.0742
        run = read_run(write_run(tmp_path / "run", (0.5, 0.2, 0.052)))
        baseline = read_run(write_run(tmp_path / "before", (0.45, 0.15, 0.031)))
        (check,) = against_baseline(run, baseline, parse_max_drop("2%"))
        assert str(check) == (
            "run: 0 against before: 0, estimated 1.752 against 1.631 (+7.4 %) at depth 3: passed"
        )
        (check,) = against_minimum(run, 1.631)
        assert (
            str(check)
            == "run: 0 against the minimum, estimated 1.752 against 1.631 (+7.4 %) at depth 3: passed"
        )

    @pytest.mark.parametrize("digest", [None, "sha256:b"])
    def test_a_replay_is_compared_with_replays_of_the_same_text_only(self, tmp_path, digest):
        data = None if digest is None else ReplayedData("/data/b", 0, 1, 0, None, False, digest)
        runs = []
        for name, changes in (
            ("run", {"replay": replayed(1.5)}),
            ("before", {"replay": replayed(1.6, data=data)}),
        ):
            if name == "before" and data is None:
                changes = {}  # from the same validation, but a mean over positions
            (tmp_path / name / "0").mkdir(parents=True)
            metadata = export("0", metrics=accuracies(0.8, 0.6, 0.4), **changes)
            (tmp_path / name / "0" / "metadata.json").write_bytes(document(metadata))
            runs.append(read_run(tmp_path / name))
        (problem,) = failed(against_baseline(*runs, parse_max_drop("2%")))
        other = "cumulative from validation" if data is None else "replay from 1 document of /data/b"
        assert f"replay from validation cannot be compared with {other}" in problem

    def test_estimates_of_two_kinds_are_not_compared(self, tmp_path):
        run = read_run(write_run(tmp_path / "run", (0.9,)))  # one step only: geometric, 9
        baseline = read_run(write_run(tmp_path / "before", (0.8, 0.6, 0.4)))
        (problem,) = failed(against_baseline(run, baseline, parse_max_drop("2%")))
        assert "geometric from validation cannot be compared with cumulative from validation" in problem

    @pytest.mark.parametrize(
        "changes",
        [
            {"concurrency": 64},
            {"prompt_source": "others.txt"},
            {"prompts": 9},
            {"sampling": {"temperature": 1.0}},
            {"hardware": "H200"},
            {"target": "org/other"},
            {"server_version": "0.5.22"},
            {"topk": 2},
        ],
    )
    def test_measurements_under_other_conditions_are_not_compared_and_it_is_said(self, tmp_path, changes):
        full, (condition,) = (0.8, 0.6, 0.4), changes
        baseline = read_run(write_run(tmp_path / "before", full, measured=[{"acceptance_length": 2.6}]))
        measured = [{"acceptance_length": 1.3} | changes]
        checks = against_baseline(
            read_run(write_run(tmp_path / "run", full, measured=measured)), baseline, parse_max_drop("2%")
        )
        assert failed(checks) == []
        assert f"measured: not compared; {condition}: " in str(checks[-1])

    @pytest.mark.parametrize(("minimum", "problems"), [(2.5, 0), (2.8, 0), (2.81, 1)])
    def test_the_estimate_must_reach_the_minimum(self, rising, minimum, problems):
        assert len(failed(against_minimum(read_run(rising), minimum - 1e-9))) == problems

    def test_a_measurement_below_fails_whatever_the_estimate(self, tmp_path):
        run = read_run(write_run(tmp_path / "run", (0.8, 0.6, 0.4), measured=[{"acceptance_length": 2.1}]))
        (problem,) = failed(against_minimum(run, 2.5))
        assert "measured 2.100 against 2.500" in problem

    def test_a_shallower_measurement_does_not_count_against_it(self, tmp_path):
        depths = [{"num_steps": 3, "acceptance_length": 2.7}, {"num_steps": 1, "acceptance_length": 1.7}]
        run = read_run(write_run(tmp_path / "run", (0.8, 0.6, 0.4), measured=depths))
        assert failed(against_minimum(run, 2.5)) == []

    def test_an_unknown_number_passes_nothing(self, tmp_path):
        assert failed(against_minimum(read_run(write_run(tmp_path / "run", None)), 0.1))

    @pytest.mark.parametrize(
        ("allowed", "fails"), [("2%", True), ("4%", False), ("0.05", True), ("0.11", False), ("3.6%", False)]
    )
    def test_a_drop_against_a_baseline(self, tmp_path, allowed, fails):
        baseline = read_run(write_run(tmp_path / "baseline", (0.8, 0.6, 0.4)))
        run = read_run(write_run(tmp_path / "run", (0.75, 0.57, 0.38)))  # 2.7, 3.57 % less
        assert bool(failed(against_baseline(run, baseline, parse_max_drop(allowed)))) == fails

    def test_runs_of_different_depth_are_compared_at_the_baselines(self, tmp_path):
        baseline = read_run(write_run(tmp_path / "baseline", (0.8, 0.6)))
        run = read_run(write_run(tmp_path / "run", (0.8, 0.6, 0.4, 0.3)))
        assert failed(against_baseline(run, baseline, parse_max_drop("0%"))) == []

    def test_measurements_at_one_depth_are_compared_too(self, tmp_path):
        full = (0.8, 0.6, 0.4)
        baseline = read_run(write_run(tmp_path / "baseline", full, measured=[{"acceptance_length": 2.6}]))
        run = read_run(write_run(tmp_path / "run", full, measured=[{"acceptance_length": 2.3}]))
        (problem,) = failed(against_baseline(run, baseline, parse_max_drop("2%")))
        assert "measured 2.300 against 2.600 (-11.5 %) at depth 3: failed" in problem

    @pytest.mark.parametrize("text", ["", "2 percent", "2", "-1%", "100%", "nan", "1e3%"])
    def test_what_is_no_drop(self, text):
        with pytest.raises(UsageError):
            parse_max_drop(text)


@pytest.mark.parametrize(("allowed", "status", "outcome"), [("4%", 0, "passed"), ("2%", 1, "failed")])
def test_the_command_prints_what_the_gate_compared(tmp_path, allowed, status, outcome):
    baseline = write_run(tmp_path / "before", (0.8, 0.6, 0.4))
    run = write_run(tmp_path / "run", (0.75, 0.57, 0.38))
    command = ["report", str(run), "--json", "--compare", str(baseline), "--max-drop", allowed]
    answer = CliRunner().invoke(app, command)
    assert answer.exit_code == status
    assert (
        f"run: 0 against before: 0, estimated 2.700 against 2.800 (-3.6 %) at depth 3: {outcome}"
        in answer.stderr
    )
    assert json.loads(answer.stdout)["runs"][0]["best"] == "0"


class TestDepth:
    def test_throughputs_under_other_conditions_do_not_decide(self):
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        untimed = {"speedup": None, "reasons": {"speedup": "No server without a draft was measured."}}
        for depth, concurrency, speed in ((10, 1, 90.0), (3, 1, 80.0), (3, 64, 5000.0)):
            found = measurement(num_steps=depth, concurrency=concurrency, tokens_per_second=speed, **untimed)
            metadata = with_measurement(metadata, found)
        advice = recommend_depth(metadata)
        assert (advice.num_steps, advice.warning) == (10, None)
        assert "of the depths 3, 10: 90.0 tokens/s at concurrency 1." in advice.reason

    def test_of_two_sweeps_the_newer_decides(self):
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        for concurrency, fastest in ((1, 10), (64, 3)):
            for depth in (3, 10):
                speed = 100.0 if depth == fastest else 50.0
                found = measurement(num_steps=depth, concurrency=concurrency, tokens_per_second=speed)
                metadata = with_measurement(metadata, found)
        assert recommend_depth(metadata).num_steps == 3

    def test_the_cost_of_a_draft_step_is_of_one_set_of_conditions(self):
        # At concurrency 1: 2.8 tokens at 2.1 times the speed, c = 1/9. At 64: 2.8 at 1.4 times, 1 + 3c = 2, c = 1/3.
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        for concurrency, speedup in ((1, 2.1), (64, 1.4)):
            found = measurement(
                acceptance_length=2.8,
                reported_acceptance_length=2.8,
                concurrency=concurrency,
                speedup=speedup,
            )
            metadata = with_measurement(metadata, found)
        assert metadata.measured.cost_ratio == pytest.approx(1 / 3)

    @pytest.mark.parametrize("cost_ratio", [-1.0, float("nan"), float("inf")])
    def test_a_cost_that_makes_no_sense_is_refused(self, cost_ratio):
        for metrics in (accuracies(0.8, 0.6), None):
            with pytest.raises(UsageError, match="cost ratio"):
                recommend_depth(export(metrics=metrics), cost_ratio=cost_ratio)

    # AL(K) of full_acc .8, .6, .4: 1.8, 2.4, 2.8, then + .4·(2/3)^n.
    def test_a_given_cost_decides(self):
        advice = recommend_depth(export(metrics=accuracies(0.8, 0.6, 0.4)), cost_ratio=0.4)
        assert (advice.num_steps, advice.speedup) == (2, pytest.approx(2.4 / 1.8))

    def test_free_drafts_are_drafted_deep(self):
        assert recommend_depth(export(metrics=accuracies(0.8, 0.6, 0.4)), cost_ratio=0.0).num_steps == 16

    @pytest.mark.parametrize(("cost_ratio", "extrapolated"), [(0.4, False), (0.05, True)])
    def test_a_depth_beyond_the_trained_ones_says_so(self, cost_ratio, extrapolated):
        reason = recommend_depth(export(metrics=accuracies(0.8, 0.6, 0.4)), cost_ratio=cost_ratio).reason
        assert f"costs {cost_ratio} of a step without a draft" in reason
        assert ("extrapolated beyond the 3 computed" in reason) == extrapolated

    @pytest.mark.parametrize(
        ("cost_ratio", "depth", "extrapolated"),
        # by hand: 1.5 / 1.1 = 1.364, 1.6 / 1.2, 1.62 / 1.3; 1.5 / 1.01 = 1.485, 1.6 / 1.02 = 1.569, 1.62 / 1.03 = 1.573
        [(0.1, 1, False), (0.01, 3, True)],
    )
    def test_with_a_replay_the_depth_is_chosen_by_it(self, cost_ratio, depth, extrapolated):
        replay = replayed_depths({1: 1.5, 2: 1.6, 3: 1.62}, computed=2)
        # the means over positions, 1.9 and 2.75, would have the deepest of all
        metadata = export(metrics=accuracies(0.9, 0.85), replay=replay)
        advice = recommend_depth(metadata, cost_ratio=cost_ratio)
        assert advice.num_steps == depth
        assert "Of the estimated acceptance lengths (replay)" in advice.reason
        assert ("extrapolated beyond the 2 computed" in advice.reason) == extrapolated
        assert recommend_depth(export(metrics=None, replay=replay)).num_steps == 2, (
            "the depth that was trained"
        )

    def test_without_cost_the_trained_depth_and_how_to_find_out(self):
        advice = recommend_depth(export(metrics=accuracies(0.8, 0.6, 0.4)))
        assert (advice.num_steps, advice.speedup) == (3, None)
        assert "measure --sweep" in advice.reason

    def test_of_measured_depths_the_fastest(self):
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        for depth, speed in ((3, 60.0), (5, 70.0), (10, 50.0)):
            metadata = with_measurement(metadata, measurement(num_steps=depth, tokens_per_second=speed))
        assert recommend_depth(metadata).num_steps == 5

    @pytest.mark.parametrize(("speedups", "slower"), [((1.1, 1.3), False), ((0.5, 0.7), True)])
    def test_drafts_that_slow_the_server_down_are_said_to(self, speedups, slower):
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        for depth, speedup in zip((1, 3), speedups, strict=True):
            found = measurement(num_steps=depth, speedup=speedup, tokens_per_second=100 * speedup)
            metadata = with_measurement(metadata, found)
        assert (recommend_depth(metadata).warning == "Serving without a draft is faster.") == slower
        assert recommend_depth(metadata, cost_ratio=2.0).warning == "Serving without a draft is faster."

    def test_a_time_that_was_noise_does_not_decide(self):
        metadata = export(metrics=accuracies(0.8, 0.6, 0.4))
        noise = {"speedup": None, "tokens_per_second": 900.0, "reasons": {"speedup": "The machine was busy."}}
        for depth, changes in (
            (1, noise),
            (3, {"speedup": 1.5}),
            (5, {"speedup": 1.4, "tokens_per_second": 45.0}),
        ):
            metadata = with_measurement(metadata, measurement(num_steps=depth, **changes))
        assert recommend_depth(metadata).num_steps == 3

    def test_one_measured_speed_up_gives_the_cost(self):
        # 2.8 tokens a step at 2.1 times the speed: a step costs 4/3, three draft steps 1/3, one 1/9.
        metadata = with_measurement(
            export(metrics=accuracies(0.8, 0.6, 0.4)),
            measurement(acceptance_length=2.8, reported_acceptance_length=2.8, speedup=2.1),
        )
        assert metadata.measured.cost_ratio == pytest.approx(1 / 9)
        # by hand: 2.1 at depth 3, 3.067 / 1.444 = 2.123 at 4, 3.244 / 1.556 = 2.086 at 5
        assert recommend_depth(metadata).num_steps == 4

    @pytest.mark.parametrize(
        ("written", "depth"),
        [("5", 5), ("16", 16), ("0", 3), ("five", 3), ("", 3), ("1" * 5000, 3), (None, 3)],
    )
    def test_before_any_validation_the_depth_that_was_exported_for(self, written, depth):
        arguments = [] if written is None else ["--speculative-num-steps", written]
        metadata = export(metrics=None)
        sglang = metadata.sglang.model_copy(update={"launch_arguments": arguments})
        assert recommend_depth(metadata.model_copy(update={"sglang": sglang})).num_steps == depth


@pytest.fixture
def two_runs(rising, tmp_path):
    pytest.importorskip("matplotlib")
    measured = [
        {"num_steps": depth, "acceptance_length": length, "speedup": speedup}
        for depth, length, speedup in ((3, 2.3, 1.6), (5, 2.5, 1.7), (10, 2.6, 1.4))
    ]
    return [
        rising,
        write_run(tmp_path / "other <b>& $\\frac$", (0.75, 0.5, 0.4), (0.8, 0.62, 0.45), measured=measured),
    ]


class TestPage:
    def test_it_stands_alone_and_escapes_what_it_shows(self, two_runs):
        html = page.to_html(read_runs(two_runs))
        assert "<script" not in html
        assert re.findall(r'(?:src|srcset|href)="(?!data:image/svg)[^"]*"', html) == []
        assert "http" not in html
        assert html.count("other &lt;b&gt;&amp; $\\frac$") >= 3
        assert "<b>&</" not in html

    @pytest.mark.parametrize("style", ["light", "dark"])
    def test_what_is_written_in_a_chart_can_be_read(self, style):
        """WCAG's contrast of text: 4.5 and more."""
        style = figures.STYLES[style]
        texts = [
            style["text.color"],
            style["xtick.color"],
            *re.findall("#[0-9a-f]{6}", style["axes.prop_cycle"]),
        ]
        assert [text for text in texts if contrast(text, style["figure.facecolor"]) < 4.5] == []

    def test_each_chart_is_drawn_in_the_colours_of_either_page(self, two_runs):
        html = page.to_html(read_runs(two_runs))
        drawn = re.findall(r'(srcset|src)="data:image/svg\+xml;base64,([^"]+)"', html)
        assert [kind for kind, _ in drawn] == ["srcset", "src"] * 10
        for kind, encoded in drawn:
            svg = b64decode(encoded).decode()
            surface = figures.STYLES["dark" if kind == "srcset" else "light"]["figure.facecolor"]
            assert f"fill: {surface}" in svg

    def test_the_picture_is_a_png_of_some_size(self, two_runs):
        content = figures.to_png(read_runs(two_runs[:1]))
        assert content.startswith(b"\x89PNG")
        assert int.from_bytes(content[16:20], "big") > 1000

    def test_no_title_is_cut_and_nothing_runs_into_the_next_chart(self, two_runs, tmp_path):
        from matplotlib.figure import Figure

        long = tmp_path / "a-run-with-a-name-that-says-everything-about-it" / "output-of-the-exporter"
        shutil.copytree(two_runs[1], long)
        figure = Figure(layout="constrained")
        figures.draw_all(figure, read_runs([two_runs[0], long]))
        figure.draw_without_rendering()
        boxes = [axes.get_tightbbox() for axes in figure.axes]
        assert len(boxes) == 10
        for box in boxes:
            assert figure.bbox.x0 <= box.x0 < box.x1 <= figure.bbox.x1
            assert figure.bbox.y0 <= box.y0 < box.y1 <= figure.bbox.y1
        assert not any(one.overlaps(other) for one, other in itertools.combinations(boxes, 2))

    def test_a_run_without_numbers_has_charts_that_say_so(self, tmp_path):
        pytest.importorskip("matplotlib")
        (group,) = chart_groups([read_run(write_run(tmp_path / "run", None))])
        texts = [figures.to_svg(chart, "light").decode() for chart in group.charts]
        assert "No export has an estimate yet." in texts[0]
        assert "Nothing has been measured yet." in texts[3]

    @pytest.mark.slow
    @pytest.mark.parametrize(("width", "scheme"), [(375, "light"), (1200, "dark")])
    def test_in_chromium_nothing_is_wider_than_the_screen(self, two_runs, tmp_path, width, scheme):
        browser = program("chromium")
        (tmp_path / "report.html").write_text(page.to_html(read_runs(two_runs)))
        measured = in_browser(browser, tmp_path, width, scheme)
        assert measured["wide"] <= measured["screen"] == width
        assert measured["charts"] == 10
        if width == 1200:  # on a phone the table scrolls in its frame
            assert measured["tables"] == 0
        assert measured["background"] == {"light": "rgb(244, 243, 240)", "dark": "rgb(17, 17, 16)"}[scheme]


def contrast(one: str, other: str) -> float:
    """The contrast of two colours as WCAG 2 defines it."""

    def luminance(colour: str) -> float:
        parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    light, dark = sorted((luminance(one), luminance(other)), reverse=True)
    return (light + 0.05) / (dark + 0.05)


def in_browser(browser: str, directory: Path, width: int, scheme: str) -> dict:
    """Lay the page out in a frame of this width and read back how it came out."""
    (directory / "frame.html").write_text(
        f'<iframe id="f" src="report.html" style="width:{width}px;height:900px;border:0"></iframe>'
        "<script>onload = () => { const d = f.contentDocument; document.body.textContent = JSON.stringify({"
        "screen: d.documentElement.clientWidth, wide: d.documentElement.scrollWidth,"
        "charts: [...d.querySelectorAll('figure img')].filter(s => s.getBoundingClientRect().height > 100).length,"
        "tables: [...d.querySelectorAll('.table')].filter(t => t.scrollWidth > t.clientWidth).length,"
        "background: getComputedStyle(d.body).backgroundColor }) }</script>"
    )
    command = [
        *(browser, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
        *(
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--hide-scrollbars",
        ),
        *("--allow-file-access-from-files", f"--user-data-dir={directory / 'profile'}", "--dump-dom"),
        f"--blink-settings=preferredColorScheme={0 if scheme == 'dark' else 1}",
        (directory / "frame.html").as_uri(),
    ]
    dumped = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    return json.loads(re.search(r"<body>(\{.*?\})</body>", dumped)[1])


def test_coverage_is_told_with_the_interval(tmp_path):
    metrics = accuracies(0.8, 0.6, 0.4) | {f"full_acc_{step}_total": 1000 for step in range(3)}
    directory = tmp_path / "run" / "0"
    directory.mkdir(parents=True)
    coverage = Coverage(tokens=100, covered=90, ratio=0.9, source="token_freq.pt")
    (directory / "metadata.json").write_bytes(document(export(metrics=metrics, coverage=coverage)))
    sure = answers(read_run(tmp_path / "run"))[2]
    low, high = map(float, sure.answer.split(" to "))
    # X accepted drafts: P(X>0..2) = .8 .6 .4, E[X] 1.8, E[X²] = .8 + 3·.6 + 5·.4 = 4.6, sd 1.166, / sqrt(1000) · 1.96
    assert (low, high) == (pytest.approx(2.8 - 0.0723, abs=0.006), pytest.approx(2.8 + 0.0723, abs=0.006))
    assert "2.50 when words outside the draft vocabulary are counted" in sure.detail
