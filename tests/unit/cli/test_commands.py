"""The command as a user runs it: what it prints where, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.drafts import END_OF_EPOCH, METRICS, write_checkpoint


def run(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "eagle3_export", *map(os.fspath, map(str, arguments))],
        capture_output=True,
        text=True,
        cwd=cwd,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )


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
        (["launch", "{run}/0"], 2, "--target"),
        (["no-such-command"], 2, "no-such-command"),
    ],
)
def test_bad_input_gets_a_message_and_a_status(
    save_path: Path, tmp_path: Path, arguments: list[str], status: int, named: str
) -> None:
    result = run(*(argument.replace("{run}", str(save_path)) for argument in arguments), cwd=tmp_path)
    assert result.returncode == status, result.stderr
    assert named.lower() in result.stderr.lower()
    assert "Traceback" not in result.stderr
    assert result.stdout == "" or arguments[0] == "verify"
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
    result = subprocess.run(
        [sys.executable, "-m", "eagle3_export", "convert", str(save_path / "0"), out], capture_output=True
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout == out + b"\n"
    assert json.loads(Path(os.fsdecode(out), "metadata.json").read_bytes())["name"] == "caf\\xe9"


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here")
def test_an_answer_that_cannot_be_written_is_an_error(save_path: Path, tmp_path: Path) -> None:
    with Path("/dev/full").open("w") as full:
        result = subprocess.run(
            [sys.executable, "-m", "eagle3_export", "convert", str(save_path / "0"), str(tmp_path / "out")],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert result.returncode == 1
    assert "No space left" in result.stderr
    assert "Traceback" not in result.stderr
