"""Several real training processes (gloo on the CPU) through the launchers that people use."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.training.checks import (
    accuracies,
    assert_mirrors,
    checkpoints,
    expected_coverage,
    exported_accuracies,
    exports,
    metadata,
    output_of,
)
from tests.support.training.harness import Run, accelerate_launch, slurm_script, start, start_forked
from tests.support.training.tiny_world import TinyWorld, train_arguments

pytestmark = [pytest.mark.slow, pytest.mark.training]

GROUP_TIMEOUT = 60  # seconds; a rank that waited for an export would wait forever in these tests
ALLOWED_CALLERS = re.compile(r"/speculators/|/transformers/")


def assert_nobody_waited(run: Run, ranks: int, epochs: int) -> None:
    """Every rank trained and saved all epochs, and entered collectives from the trainer's code only."""
    steps = {run.count(rank, "step") for rank in range(ranks)}
    assert len(steps) == 1
    assert steps.pop() >= epochs
    for rank in range(ranks):
        assert run.count(rank, "save ends") == epochs
        assert run.count(rank, "left training") == 1
        callers = {event["caller"] for event in run.events(rank) if event["event"] == "collective"}
        assert callers
        assert all(ALLOWED_CALLERS.search(caller) for caller in callers), callers


def assert_kept_out(run: Run, ranks: int) -> None:
    """No training thread touches the exporter's directory, and other ranks say nothing in its name."""
    for rank in range(ranks):
        assert not [e for e in run.events(rank) if e["event"] in ("reaches output", "logs")]


@pytest.mark.parametrize(
    ("launcher", "ranks", "changes"),
    [
        pytest.param(slurm_script, 2, {}, id="slurm-torchrun-2-ddp"),
        pytest.param(accelerate_launch, 4, {"fsdp_shard": True}, id="accelerate-4-fsdp"),
        pytest.param(None, 2, {"fsdp_shard": True}, id="forked-2-fsdp"),
        pytest.param(None, 4, {}, id="forked-4-ddp"),
    ],
)
def test_one_export_per_save_and_nobody_waits(
    world: TinyWorld, save_path: Path, tmp_path: Path, launcher: Any, ranks: int, changes: dict[str, Any]
) -> None:
    """No byte of an export moves before every other rank has left training; then all exports come."""
    output = output_of(save_path)
    faults = {"output": str(output), "kind": "slow", "group_timeout": GROUP_TIMEOUT}
    arguments = train_arguments(world, save_path, epochs=2, **changes)
    if launcher is None:
        run = start_forked(ranks, arguments, tmp_path, faults=faults)
    else:
        run = start(launcher(ranks), arguments, tmp_path, faults=faults)
    assert run.wait() == 0, run.output[-4000:]

    assert_mirrors(save_path, {"0", "1"})
    assert_nobody_waited(run, ranks, epochs=2)
    assert_kept_out(run, ranks)
    # The trainer writes the reduced metrics of every epoch that becomes the best.
    written = [epoch for epoch in ("0", "1") if (save_path / epoch / "val_metrics.json").exists()]
    assert written
    for epoch in written:
        validation = json.loads((save_path / epoch / "val_metrics.json").read_text())
        assert exported_accuracies(output / epoch) == accuracies(validation)
    assert metadata(output / "1")["full_acc_0"] is not None
    coverage = metadata(output / "1")["acceptance"]["coverage"]["ratio"]
    assert coverage == expected_coverage(world.data, save_path / "1") < 1


def test_a_hanging_filesystem(world: TinyWorld, save_path: Path, tmp_path: Path) -> None:
    output = output_of(save_path)
    faults = {"output": str(output), "kind": "hang", "group_timeout": GROUP_TIMEOUT, "end_of_run": 1}
    arguments = train_arguments(world, save_path, fsdp_shard=True)
    run = start_forked(2, arguments, tmp_path, faults=faults)
    assert run.wait() == 0, run.output[-4000:]
    assert_nobody_waited(run, 2, epochs=2)
    assert_kept_out(run, 2)
    assert run.count(0, "hangs") == 2, (
        "the look at whose exports are there, before the first step, and the export"
    )
    assert checkpoints(save_path) == {"0", "1"}
    assert exports(output) == set()
    assert run.output.count("Checkpoints without an export") == 1


@pytest.mark.parametrize("epochs", [1, 50], ids=["after-the-last-step", "during-training"])
def test_a_failure_ends_every_rank(world: TinyWorld, save_path: Path, tmp_path: Path, epochs: int) -> None:
    faults = {"output": str(output_of(save_path)), "kind": "fail", "group_timeout": GROUP_TIMEOUT}
    arguments = train_arguments(world, save_path, epochs=epochs)
    run = start_forked(2, [*arguments, "--sglang-export.on-failure=raise"], tmp_path, faults=faults)
    assert run.wait() != 0
    messages = re.findall(r"^eagle3-export train: (Exporting .*)$", run.output, re.MULTILINE)
    assert len(messages) == 2, run.output[-4000:]
    assert messages[0] == messages[1]
    assert str(save_path / "0") in messages[0]
    # Every rank left by itself, at the same step: no launcher had to end it.
    assert run.count(0, "step") == run.count(1, "step")
    assert "interrupting training" not in run.output
    assert len(checkpoints(save_path)) < 50


@pytest.mark.parametrize(
    ("flags", "option", "remedy"),
    [
        pytest.param(
            {"norm_before_residual": True},
            "runtime=stock",
            "--no-norm-before-residual",
            id="by its arguments",
        ),
        pytest.param(
            {"embed_requires_grad": True}, "embed-tokens=drop", "embed_tokens: keep", id="by its model"
        ),
    ],
)
def test_a_refusal_is_said_once(
    flags: dict[str, bool], option: str, remedy: str, world: TinyWorld, save_path: Path, tmp_path: Path
) -> None:
    arguments = train_arguments(world, save_path, **flags)
    run = start_forked(2, [*arguments, f"--sglang-export.{option}"], tmp_path)
    assert run.wait() != 0
    assert run.output.count("eagle3-export train:") == 1, run.output[-4000:]
    assert remedy in run.output
    assert [run.count(rank, "step") for rank in (0, 1)] == [0, 0]
    assert not list(save_path.glob("*/model.safetensors"))
