"""A run whose machine is taken away, again and again: in the end every checkpoint has its export, none made twice."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from tests.support.training.checks import assert_mirrors, checkpoints, metadata, output_of, published
from tests.support.training.harness import as_srun, start_forked
from tests.support.training.tiny_world import TinyWorld, train_arguments

pytestmark = [pytest.mark.slow, pytest.mark.training]

PACE = 0.4  # seconds a step takes longer, so that a signal meets all ranks in the same step


def inodes(output: Path) -> dict[str, int]:
    """A published export that is made again gets another inode."""
    return {name: (output / name / "model.safetensors").stat().st_ino for name in published(output)}


def test_preempted_killed_and_resumed(world: TinyWorld, save_path: Path, tmp_path: Path) -> None:
    output = output_of(save_path)
    arguments = train_arguments(world, save_path, epochs=4)

    # SIGTERM to all ranks in the middle of an epoch, while the export of the epoch before is in flight.
    run = start_forked(
        2, arguments, tmp_path, label="first", faults={"pace": PACE, "kind": "slow", "output": str(output)}
    )
    run.wait_until(lambda: min(run.count(0, "step"), run.count(1, "step")) == 3)
    assert published(output) == set()
    for rank in (0, 1):
        run.signal_rank(rank, signal.SIGTERM)
    assert run.wait() == 0, run.output[-4000:]
    assert_mirrors(save_path, {"0", "interrupted"})
    # The trainer counts a step after the optimizer's hook, in which the signal met it.
    assert metadata(output / "interrupted")["global_step"] in (2, 3)
    made = inodes(output)

    # kill -9 of rank 0, when epoch 1 is saved and none of its export is written.
    run = start_forked(
        2, arguments, tmp_path, label="second", faults={"pace": PACE, "kind": "hang", "output": str(output)}
    )
    run.wait_until(lambda: min(run.count(0, "save ends"), run.count(1, "save ends")) == 1)
    run.signal_rank(0, signal.SIGKILL)
    assert run.wait() != 0
    assert checkpoints(save_path) == {"0", "1", "interrupted"}
    assert inodes(output) == made

    # kill -9 of another rank, in the next epoch; the start of this run made up for the export of epoch 1.
    run = start_forked(2, arguments, tmp_path, label="third", faults={"pace": PACE})
    run.wait_until(lambda: run.count(0, "step") == 1 and "1" in published(output))
    run.signal_rank(1, signal.SIGKILL)
    assert run.wait() != 0
    # Rank 0 was told to stop and saved once more: its barrier failed with the other rank gone, but the files are whole.
    assert_mirrors(save_path, {"0", "1", "interrupted"})
    assert inodes(output)["0"] == made["0"]
    made = inodes(output)

    # Left alone, it ends well. Only what the trainer wrote in this run is new.
    run = start_forked(2, arguments, tmp_path, label="fourth")
    assert run.wait() == 0, run.output[-4000:]
    assert_mirrors(save_path, {"0", "1", "2", "3", "interrupted"})
    after = inodes(output)
    assert {name: after[name] for name in ("0", "1")} == {name: made[name] for name in ("0", "1")}
    assert (output / "latest").readlink() == Path("3")
    assert [metadata(output / name)["full_acc_0"] is None for name in ("2", "3")] == [False, False]


def lone(rank: int, processes: int) -> dict[str, str]:
    return {"LOCAL_RANK": "0"}


@pytest.mark.parametrize(("style", "ranks"), [(as_srun, 2), (lone, 1)])
def test_other_launchers(
    world: TinyWorld, save_path: Path, tmp_path: Path, style: object, ranks: int
) -> None:
    """srun's own variables, and a single process that only has LOCAL_RANK set."""
    run = start_forked(ranks, train_arguments(world, save_path, epochs=1), tmp_path, style=style)  # type: ignore[arg-type]
    assert run.wait() == 0, run.output[-4000:]
    assert_mirrors(save_path, {"0"})
    assert [run.count(rank, "attach") for rank in range(ranks)] == [1] * ranks
