"""Which rank this process is, before any process group exists."""

from __future__ import annotations

import os
from collections.abc import MutableMapping

from eagle3_export.errors import UsageError
from eagle3_export.ports import free_port

# What srun sets for each of its tasks, and what torch.distributed calls it.
SLURM_NAMES = {"RANK": "SLURM_PROCID", "WORLD_SIZE": "SLURM_STEP_NUM_TASKS", "LOCAL_RANK": "SLURM_LOCALID"}


def complete_launch_environment(environment: MutableMapping[str, str] = os.environ) -> None:
    """Fills in what a launcher left out of `RANK`, `WORLD_SIZE`, `LOCAL_RANK` and `MASTER_*`.

    torchrun and `accelerate launch` set all of them: then nothing changes. Several tasks of one `srun` get theirs
    from Slurm; speculators alone would train each as a run of its own, all into one `save_path`. A single process
    with nothing but `LOCAL_RANK` is rank 0 of 1.

    Raises:
        UsageError: several srun tasks, and no address at which they could meet.
    """
    if "LOCAL_RANK" not in environment:
        if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) == 1 or "RANK" in environment:
            return
        environment.update({name: environment[theirs] for name, theirs in SLURM_NAMES.items()})
        if not environment.keys() >= {"MASTER_ADDR", "MASTER_PORT"}:
            raise UsageError(
                f"srun started {environment['WORLD_SIZE']} tasks, but MASTER_ADDR and MASTER_PORT are not set.",
                why="The ranks need an address to meet at.",
                remedy="Export both before srun, or start torchrun with one task per node.",
            )
    elif "RANK" not in environment and "WORLD_SIZE" not in environment:
        environment.update({"RANK": "0", "WORLD_SIZE": "1"})
        environment.setdefault("MASTER_ADDR", "127.0.0.1")
        environment.setdefault("MASTER_PORT", str(free_port()))


def is_rank_zero(environment: MutableMapping[str, str] = os.environ) -> bool:
    """True in the process that speaks for the run."""
    return environment.get("RANK", "0") == "0"
