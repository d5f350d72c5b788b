"""The command `measure`: pointers, names, keys, and how it ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_export.cli.commands import app
from eagle3_export.documents.json_files import read_metadata
from tests.support.measuring import files_of, make_export
from tests.support.stand_in_server import running, sglang

KEY = "sk-very-secret"


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    return make_export(tmp_path / "out", "0")


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.txt"
    path.write_text("one\ntwo\nthree\n")
    return path


def run(*arguments: str | Path, **environment: str) -> Any:
    return CliRunner().invoke(app, ["measure", *map(str, arguments)], env=environment)


def test_a_pointer_that_moves_while_the_server_answers_is_followed_once(draft: Path, prompts: Path) -> None:
    other = make_export(draft.parent, "1")
    best = draft.parent / "best"
    best.symlink_to("0")
    answers = sglang(str(draft))
    reply = answers["/generate"]

    def answer(_: Any) -> Any:
        best.unlink()
        best.symlink_to("1")
        return reply

    with running(answers | {"/generate": answer}) as server:
        result = run(best, "--base-url", server.url, "--prompts", prompts)
    assert (result.exit_code, result.stdout) == (0, "2.9000\n"), result.output
    measured = read_metadata(draft).measured
    assert measured is not None
    assert measured.acceptance_length == pytest.approx(2.9)
    assert read_metadata(other).measured is None


def test_a_prompts_file_whose_name_is_no_utf_8(draft: Path, tmp_path: Path) -> None:
    name = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.txt")
    Path(name).write_text("one\n")
    with running(sglang(str(draft))) as server:
        result = run(draft, "--base-url", server.url, "--prompts", name)
    assert result.exit_code == 0, result.output
    measured = read_metadata(draft).measured
    assert measured is not None
    assert measured.measurements[0].prompt_source == f"{tmp_path}/caf\\xe9.txt"


def test_prompts_left_out_are_counted(draft: Path, tmp_path: Path) -> None:
    prompts = tmp_path / "p.jsonl"
    prompts.write_text('"one"\n{\n{"prompt": 3}\n')
    with running(sglang(str(draft))) as server:
        strict = run(draft, "--base-url", server.url, "--prompts", prompts)
        assert strict.exit_code == 2
        assert "Line 2 of" in strict.stderr
        result = run(draft, "--base-url", server.url, "--prompts", prompts, "--skip-bad-prompts")
    assert result.exit_code == 0, result.output
    assert "left out 2 that are no prompts, beside the 1 taken; the first: Line 2 of" in result.stderr


@pytest.mark.parametrize("name", ["--api-key", "SGLANG_API_KEY", "OPENAI_API_KEY"])
def test_the_key_goes_with_every_request_and_nowhere_else(draft: Path, prompts: Path, name: str) -> None:
    arguments, environment = ([name, KEY], {}) if name.startswith("-") else ([], {name: KEY})
    with running(sglang(str(draft))) as server:
        result = run(draft, "--base-url", server.url, "--prompts", prompts, *arguments, **environment)
    assert result.exit_code == 0, result.output
    assert {headers.get("Authorization") for headers in server.headers} == {f"Bearer {KEY}"}
    assert KEY not in result.output
    assert KEY not in "".join(str(content) for content in files_of(draft).values())


def test_help_shows_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    assert KEY not in run("--help", SGLANG_API_KEY=KEY).output


@pytest.mark.parametrize("as_json", [[], ["--json"]])
def test_a_refused_key_is_not_shown(draft: Path, prompts: Path, as_json: list[str]) -> None:
    with running({"/server_info": KEY.encode()}) as server:
        server.status = 401
        result = run(draft, "--base-url", server.url, "--prompts", prompts, "--api-key", KEY, *as_json)
    assert result.exit_code == 1
    assert KEY not in result.output


def test_a_difference_is_told(draft: Path, prompts: Path) -> None:
    with running(sglang(str(draft), speculative_draft_model_quantization="fp8")) as server:
        result = run(draft, "--base-url", server.url, "--prompts", prompts)
    assert "not comparable with others: The server quantises the draft (fp8)" in result.stderr


@pytest.mark.parametrize("temperature", ["nan", "inf"])
def test_what_is_no_temperature(draft: Path, prompts: Path, temperature: str) -> None:
    result = run(
        draft, "--base-url", "http://127.0.0.1:9", "--prompts", prompts, "--temperature", temperature
    )
    assert (result.exit_code, "temperature" in result.stderr) == (2, True), result.output


def test_an_address_that_is_none(draft: Path, prompts: Path) -> None:
    result = run(draft, "--base-url", "http://gpu..node:30000", "--prompts", prompts)
    assert (result.exit_code, "no server address" in result.stderr) == (2, True), result.output


def test_a_target_that_cannot_be_served_is_refused_before_a_server_starts(draft: Path, prompts: Path) -> None:
    (draft / "config.json").write_text("{}")
    template = f"{sys.executable} -c 'raise SystemExit(7)' {{port}} {{speculative}}"
    options = ["--sweep", "3", "--target", "org/target", "--launch-template", template]
    result = run(draft, *options, "--prompts", prompts)
    assert result.exit_code == 1
    assert "baseline" not in result.stderr


def test_ctrl_c_ends_it_at_once_with_nothing_written(draft: Path, prompts: Path) -> None:
    before = files_of(draft)
    asked, released = threading.Event(), threading.Event()
    answers = sglang(str(draft))
    reply, calls = answers["/generate"], []

    def answer(_: Any) -> Any:
        calls.append(None)
        if len(calls) > 1:  # the warm-up is answered, the first counted request is not
            asked.set()
            released.wait(60)
        return reply

    with running(answers | {"/generate": answer}) as server:
        command = [sys.executable, "-m", "eagle3_export", "measure", str(draft), "--base-url", server.url]
        process = subprocess.Popen(
            [*command, "--prompts", str(prompts)],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={name: value for name, value in os.environ.items() if "proxy" not in name.lower()},
        )
        assert asked.wait(60)
        process.send_signal(signal.SIGINT)
        stdout, stderr = process.communicate(timeout=30)  # the request itself would go on for 60 s
        released.set()
    assert (process.returncode, stdout) == (130, "")
    assert stderr.strip().splitlines()[-1].startswith("interrupted:")
    assert "Traceback" not in stderr
    assert files_of(draft) == before


def test_json_is_the_measurement(draft: Path, prompts: Path) -> None:
    with running(sglang(str(draft))) as server:
        result = run(draft, "--base-url", server.url, "--prompts", prompts, "--json")
    found = json.loads(result.stdout)
    assert found["acceptance_length"] == pytest.approx(2.9)
    assert found["differences"] == []
