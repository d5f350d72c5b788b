"""The command as a user runs it: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from eagle3_export.cli.commands import app
from eagle3_export.cli.given import watch_announcement
from eagle3_export.cli.paths import home_expanded
from eagle3_export.config import ExportConfig
from tests.support.drafts import END_OF_EPOCH, METRICS, write_checkpoint


@dataclass(frozen=True)
class Answer:
    returncode: int
    stdout: str
    stderr: str


def run(*arguments: object) -> Answer:
    """The command in this process; an exception that is no exit fails the test with its own traceback."""
    result = CliRunner().invoke(app, [str(argument) for argument in arguments], prog_name="eagle3-export")
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return Answer(result.exit_code, result.stdout, result.stderr)


def run_apart(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """The command in a process of its own."""
    command = [sys.executable, "-m", "eagle3_export", *map(str, arguments)]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
    return subprocess.run(command, text=True, **streams)  # type: ignore[call-overload,no-any-return]


@pytest.fixture(scope="module")
def save_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three epochs, the last interrupted; epoch 1 is the best."""
    run_dir = tmp_path_factory.mktemp("training") / "run"
    state: dict[str, Any] = {"local_step": 0}
    write_checkpoint(run_dir / "0", training_state={**state, "epoch": 0, "global_step": 100}, seed=1)
    write_checkpoint(run_dir / "1", training_state=END_OF_EPOCH, val_metrics=METRICS, seed=2)
    write_checkpoint(run_dir / "interrupted", seed=3)
    (run_dir / "checkpoint_best").symlink_to("1")
    (run_dir / "run.yaml").write_text("train: {}\n")
    return run_dir


def test_convert_verify_launch(save_path: Path, tmp_path: Path) -> None:
    converted = run("convert", save_path / "checkpoint_best", tmp_path / "out")
    assert (converted.returncode, converted.stdout) == (0, f"{tmp_path / 'out'}\n"), converted.stderr

    verified = run("verify", tmp_path / "out", "--source", save_path / "1", "--json")
    assert verified.returncode == 0
    assert json.loads(verified.stdout)["problems"] == []

    (tmp_path / "latest").symlink_to("out")
    assert run("verify", tmp_path / "latest").stdout == f"{tmp_path / 'latest'} -> out: verified\n"

    wrong = run("verify", tmp_path / "out", "--source", save_path / "0")
    assert wrong.returncode == 1
    assert "fc.weight" in wrong.stderr

    launched = run("launch", tmp_path / "out", "--target", "org/target model")
    assert launched.returncode == 0
    assert launched.stdout == (
        "python -m sglang.launch_server --model-path 'org/target model'"
        f" --speculative-draft-model-path {tmp_path / 'out'} --speculative-algorithm EAGLE3"
        " --speculative-num-steps 3 --speculative-eagle-topk 1 --speculative-num-draft-tokens 4\n"
    )


def test_convert_all_makes_pointers_and_an_index(save_path: Path, tmp_path: Path) -> None:
    out = tmp_path / "exports"
    first = run("convert", save_path, out, "--all", "--json")
    assert first.returncode == 0, first.stderr
    answer = json.loads(first.stdout)["exports"]
    assert [(Path(e["checkpoint"]).name, e["status"]) for e in answer] == [
        ("0", "exported"),
        ("1", "exported"),
        ("interrupted", "exported"),
    ]
    index = json.loads((out / "index.json").read_text())
    assert index["latest"] == "interrupted"
    assert index["best"] == "1"
    assert (out / "latest").readlink() == Path("interrupted")
    assert (out / "best").readlink() == Path("1")
    assert [entry["name"] for entry in index["exports"]] == ["0", "1", "interrupted"]

    again = run("convert", save_path, out, "--all", "--json")
    assert {e["status"] for e in json.loads(again.stdout)["exports"]} == {"exists"}


def test_findings_that_many_checkpoints_share_are_printed_once(tmp_path: Path) -> None:
    for epoch in range(3):
        write_checkpoint(
            tmp_path / "run" / str(epoch), edit_config=lambda config: config.update(norm_before_residual=True)
        )
    printed = run("convert", tmp_path / "run", tmp_path / "out", "--all").stderr
    assert printed.count("inexact [norm-before-residual]: norm_before_residual is on") == 1
    assert printed.count("as above: inexact [norm-before-residual]") == 2
    assert printed.count("The verifier's config is not at hand") == 1, (
        "though it names a path of each checkpoint"
    )


def test_one_bad_checkpoint_does_not_keep_the_others_from_export(save_path: Path, tmp_path: Path) -> None:
    bad_run = tmp_path / "run"
    write_checkpoint(bad_run / "0", training_state=END_OF_EPOCH)
    broken = write_checkpoint(bad_run / "1")
    (broken / "model.safetensors").write_bytes(b"not a safetensors file")
    result = run("convert", bad_run, tmp_path / "out", "--all")
    assert result.returncode == 1
    assert "model.safetensors" in result.stderr
    assert result.stdout == f"{tmp_path / 'out' / '0'}\n"
    assert sorted(p.name for p in (tmp_path / "out").iterdir() if not p.name.startswith(".")) == [
        "0",
        "index.json",
        "latest",
    ]


@pytest.mark.parametrize(
    ("arguments", "status", "named"),
    [
        (["convert", "nowhere", "out"], 1, "nowhere"),
        (["convert", "{run}/0", "out", "--runtime", "fast"], 2, "--runtime"),
        (["convert", "{run}/0", "out", "--sglang-version", "new"], 2, "new"),
        (["convert", "{run}/0", "out", "--sglang-version", "0.4.9"], 1, "0.4.9"),
        (["convert", "{run}/0"], 2, "out"),
        (["convert", "{run}", "out"], 1, "--all"),
        (["convert", "{run}", "{run}/exports", "--all"], 2, "save_path"),
        (["convert", "{run}/0", "out", "--surprise"], 2, "--surprise"),
        (["verify", "nowhere"], 1, "nowhere"),
        (["verify", "{run}/0"], 1, "is a checkpoint, not an export"),
        (["verify", "{run}"], 1, "is the save_path of a training run"),
        (["launch", "{run}/0", "--target", "x"], 1, "is a checkpoint, not an export"),
        (["convert", "{run}/0", "out", "--all"], 2, "is one checkpoint, not the save_path"),
        (["watch", "{run}/0", "out"], 2, "is one checkpoint, not the save_path"),
        (["report", "{run}"], 2, "is the save_path of a training run"),
        (["report", "{run}/0"], 2, "is a checkpoint, not an export"),
        (["launch", "{run}/0"], 2, "--target"),
        (["no-such-command"], 2, "no-such-command"),
    ],
)
def test_bad_input_gets_a_message_and_a_status(
    save_path: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    status: int,
    named: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run(*(argument.replace("{run}", str(save_path)) for argument in arguments))
    assert result.returncode == status, result.stderr
    assert named.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    assert list(tmp_path.iterdir()) == []


def test_a_refusal_as_json(save_path: Path, tmp_path: Path) -> None:
    result = run("convert", save_path / "0", tmp_path / "out", "--sglang-version", "0.5.11", "--json")
    assert result.returncode == 1
    error = json.loads(result.stdout)["error"]
    assert error["type"] == "IncompatibleDraftError"
    assert {"norm-before-fc", "norm-output"} <= {finding["id"] for finding in error["findings"]}
    assert not (tmp_path / "out").exists()


def test_paths_need_not_be_utf_8(save_path: Path, tmp_path: Path) -> None:
    out = os.fsencode(tmp_path) + b"/caf\xe9"
    result = run_apart("convert", save_path / "0", os.fsdecode(out), errors="surrogateescape")
    assert result.returncode == 0, result.stderr
    assert os.fsencode(result.stdout) == out + b"\n"
    assert json.loads(Path(os.fsdecode(out), "metadata.json").read_bytes())["name"] == "caf\\xe9"


def test_a_terminal_of_few_characters_takes_any_text(tmp_path: Path) -> None:
    """Paths, and the table of the report, in Latin-1 (click itself takes ASCII for UTF-8)."""
    checkpoint = write_checkpoint(tmp_path / "1", training_state=END_OF_EPOCH, val_metrics=METRICS)
    out = tmp_path / "\u0142\u00f3d\u017a"
    assert run("convert", checkpoint, out).returncode == 0
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    for arguments in (("verify", out), ("report", out)):
        result = run_apart(*arguments, env=environment, encoding="latin-1")
        assert result.returncode == 0, result.stderr
        assert "\\u0142\u00f3d\\u017a" in result.stdout


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_cannot_be_written_is_an_error(save_path: Path, tmp_path: Path) -> None:
    for options in ((), ("--json",)):
        out = tmp_path / f"out{len(options)}"
        with Path("/dev/full").open("w") as full:
            result = run_apart("convert", save_path / "0", out, *options, stdout=full)
        assert result.returncode == 1
        assert "error: The answer could not be written: No space left on device." in result.stderr
        assert "Traceback" not in result.stderr


# What a path is, and what to type instead ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def out(save_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exports of that run."""
    directory = tmp_path_factory.mktemp("exports") / "out"
    assert run("convert", save_path, directory, "--all").returncode == 0
    return directory


@pytest.fixture(scope="module")
def unrated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The exports of a run that was never validated, so that none of them can be the best."""
    directory = tmp_path_factory.mktemp("unrated")
    write_checkpoint(directory / "run" / "0")
    assert run("convert", directory / "run", directory / "out", "--all").returncode == 0
    return directory / "out"


@pytest.mark.parametrize(
    "command", [["verify"], ["launch", "--target", "t"], ["measure", "--base-url", "http://x"]]
)
@pytest.mark.parametrize(
    ("given", "told"),
    [
        ("{out}", "is the output directory of a run, not one of its exports.\n  do: Name one of them, such as "
                  "{out}/best"),
        ("{run}", "is the save_path of a training run, not an export.\n  do: Name one of its exports, or make them: "
                  "eagle3-export convert --all {run}"),
        ("{run}/0", "is a checkpoint, not an export.\n  do: Name its export, or make it: eagle3-export convert "
                    "{run}/0"),
        ("{run}/run.yaml", "is a file, not an export."),
        ("{unrated}/best", "There is no {unrated}/best.\n  why: No export has an estimate from validation yet."),
        ("nowhere", "There is no nowhere."),
    ],
)  # fmt: skip
def test_what_is_no_export_is_recognised(
    save_path: Path, out: Path, unrated: Path, command: list[str], given: str, told: str
) -> None:
    places = {"out": out, "run": save_path, "unrated": unrated}
    result = run(command[0], given.format_map(places), *command[1:])
    assert (result.returncode, result.stdout) == (1, "")
    assert told.format_map(places) in result.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("convert", "{out}/0", "new"), "{out}/0 is an export already, not a checkpoint."),
        (("convert", "{out}", "new", "--all"), "{out} holds exports, not checkpoints."),
        (("convert", "{run}/0", "new", "--all"), "Name its parent {run}, or export it alone: eagle3-export convert "
                                                 "{run}/0 new"),
        (("watch", "{run}/0"), "{run}/0 is one checkpoint, not the save_path of a run."),
        (("watch", "{out}"), "{out} holds exports, not checkpoints."),
        (("watch", "{out}/latest"), "is an export already, not a checkpoint."),
    ],
)  # fmt: skip
def test_what_is_no_run_or_checkpoint_is_recognised(
    save_path: Path,
    out: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    told: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"out": out, "run": save_path}
    result = run(*(argument.format_map(places) for argument in arguments))
    assert result.returncode == 2
    assert told.format_map(places) in result.stderr
    assert list(tmp_path.iterdir()) == []


# watch: what it watches and what it waits for -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("given", "options", "first"),
    [
        ("run", ["--once"],
         "watching {here}/run (1 checkpoint there), exports go to {here}/run-sglang; this looks once and ends"),
        ("run", ["--stop-file", "{here}/stop"],
         "watching {here}/run (1 checkpoint there), exports go to {here}/run-sglang; {here}/stop exists already, so "
         "this looks once and ends (remove it to go on watching)"),
        ("empty", ["--stop-file", "{here}/stop"], "watching {here}/empty (no checkpoint there yet), exports go to"),
        ("later", ["--stop-file", "{here}/stop"], "watching {here}/later (not there yet), exports go to"),
    ],
)  # fmt: skip
def test_watch_says_what_it_watches(tmp_path: Path, given: str, options: list[str], first: str) -> None:
    write_checkpoint(tmp_path / "run" / "0")
    (tmp_path / "empty").mkdir()
    (tmp_path / "stop").touch()
    result = run("watch", tmp_path / given, *(option.format(here=tmp_path) for option in options))
    assert result.returncode == 0, result.stderr
    assert result.stderr.splitlines()[0].startswith(first.format(here=tmp_path))


def test_watch_says_what_ends_it(tmp_path: Path) -> None:
    announced = watch_announcement(tmp_path, ExportConfig(), once=False, stop_file=tmp_path / "stop")
    assert announced.endswith(f"ends with Ctrl+C or when {tmp_path / 'stop'} appears")
    assert "Ctrl+C ends it" in watch_announcement(tmp_path, ExportConfig(), once=False, stop_file=None)


# Findings, estimates, errors ----------------------------------------------------------------------------------


def test_findings_are_told_in_full_once_and_then_in_one_line(tmp_path: Path) -> None:
    checkpoint = write_checkpoint(
        tmp_path / "1", edit_config=lambda config: config.update(norm_before_residual=True)
    )
    out = tmp_path / "out"
    converted = run("convert", checkpoint, out).stderr
    assert "acceptance length 1.510 instead of 1.516" in converted
    assert "  do: Train with --no-norm-before-residual" in converted
    for arguments in (("verify", out), ("launch", out, "--target", "org/model")):
        told = run(*arguments).stderr.splitlines()
        brief = "inexact [norm-before-residual]: norm_before_residual is on; no stock SGLang computes it."
        assert brief in told
        assert told.count(f"  in full, with what to do: {out}/README.md") == 1
        assert not any("1.510" in line or "--no-norm-before-residual" in line for line in told)
    card = (out / "README.md").read_text()
    assert "1.510 instead of 1.516" in card
    assert "--no-norm-before-residual" in card


def test_a_finding_that_is_new_is_told_in_full(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The verifier was at hand at export and is gone at verification."""
    verifier = tmp_path / "verifier"
    verifier.mkdir()
    layer = {"vocab_size": 40, "hidden_size": 16, "num_hidden_layers": 8, "max_position_embeddings": 512}
    (verifier / "config.json").write_text(json.dumps({"architectures": ["LlamaForCausalLM"], **layer}))

    def name_it(config: dict[str, Any]) -> None:
        config["speculators_config"]["verifier"]["name_or_path"] = str(verifier)

    out = tmp_path / "out"
    assert (
        "verifier-unknown"
        not in run("convert", write_checkpoint(tmp_path / "1", edit_config=name_it), out).stderr
    )
    (verifier / "config.json").unlink()
    told = run("verify", out).stderr
    assert "info [verifier-unknown]: " in told
    assert "  do: Make the verifier's config.json available" in told


def test_every_export_without_an_estimate_is_named_with_the_reason(save_path: Path, tmp_path: Path) -> None:
    first = run("convert", save_path, tmp_path / "out", "--all").stderr
    again = run("convert", save_path, tmp_path / "out", "--all").stderr
    for told in (first, again):
        lines = told.splitlines()
        unrated = [lines[i - 1] for i, line in enumerate(lines) if line.startswith("  no estimate: ")]
        # Epoch 1 alone was validated; what was said before the line is about the same checkpoint.
        assert len(unrated) == 2
        assert not any("/run/1:" in line for line in unrated)
        typed = [line for line in lines if line.startswith("  to get one: eagle3-export estimate ")]
        assert [line.split(" --export ")[1] for line in typed] == [
            str(tmp_path / "out" / n) for n in ("0", "interrupted")
        ]


def test_an_error_has_one_form_in_every_json(save_path: Path, tmp_path: Path) -> None:
    keys = {"type", "what", "why", "remedy", "findings"}
    write_checkpoint(tmp_path / "run" / "0")
    (write_checkpoint(tmp_path / "run" / "1") / "model.safetensors").write_bytes(b"no tensors")
    failed = [
        run("convert", "nowhere", tmp_path / "new", "--json"),
        run("convert", save_path / "0", tmp_path / "new", "--sglang-version", "0.5.11", "--json"),
        run("verify", "nowhere", "--json"),
        run("launch", "nowhere", "--target", "t", "--json"),
        run("report", "nowhere", "--json"),
    ]
    errors = [json.loads(answer.stdout)["error"] for answer in failed]
    exports = json.loads(run("convert", tmp_path / "run", tmp_path / "out", "--all", "--json").stdout)[
        "exports"
    ]
    errors.append(exports[1]["error"])
    assert [set(error) for error in errors] == [keys] * 6
    assert [bool(error["findings"]) for error in errors] == [False, True, False, False, False, False]
    assert exports[0]["error"] is None


@pytest.mark.parametrize(
    "option", ["--sglang-version=newest", "--sglang-version=", "--runtime=fast", "--embed-tokens=no"]
)
def test_a_wrong_option_is_named_as_it_is_typed(save_path: Path, tmp_path: Path, option: str) -> None:
    result = run("convert", save_path / "0", tmp_path / "out", option)
    assert result.returncode == 2
    assert option.partition("=")[0] in result.stderr


# The home directory -------------------------------------------------------------------------------------------


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


def test_the_home_directory_is_expanded_everywhere(home: Path) -> None:
    write_checkpoint(home / "run" / "0", training_state=END_OF_EPOCH, val_metrics=METRICS)
    assert run("convert", "~/run/0", "~/out/0").returncode == 0
    assert run("verify", "~/out/0", "--source=~/run/0").returncode == 0
    assert f"--model-path {home}/models/m" in run("launch", "~/out/0", "--target", "~/models/m").stdout
    assert run("report", "~/out/0", "--html=~/page.html").returncode == 0
    assert run("watch", "~/run", "~/watched", "--once").returncode == 0
    prompts = run("measure", "~/out/0", "--base-url", "http://localhost:1", "--prompts", "~/none.txt")
    assert f"{home}/none.txt" in prompts.stderr
    assert {"page.html", "watched", "out"} <= {path.name for path in home.iterdir()}


@pytest.mark.parametrize("argument", ["~nobody-of-that-name/x", "a~/b", "--x", "", "--=~", "org/model"])
def test_what_is_no_home_directory_stays(home: Path, argument: str) -> None:
    assert home_expanded(argument) == argument
