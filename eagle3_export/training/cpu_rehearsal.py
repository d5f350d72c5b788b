"""Lets speculators' trainer run where there is no accelerator, so that a training run can be rehearsed on a laptop.

speculators 0.8 and 0.9 assume a GPU in a handful of places; each gets the CPU's answer here. Nothing is touched where
an accelerator exists.
"""

from __future__ import annotations

import logging
import os
from datetime import timedelta
from typing import Any

logger = logging.getLogger("eagle3_export")

GROUP_TIMEOUT = timedelta(minutes=30)  # what torch gives gloo by default


def accelerator_exists() -> bool:
    """True where torch sees an accelerator that works."""
    import torch

    return torch.accelerator.current_accelerator(check_available=True) is not None


def enable_cpu_rehearsal() -> bool:
    """Makes `speculators.train` run on the CPU if there is no accelerator, and says so once.

    Returns:
        True when this process will train on the CPU, False when an accelerator exists (then nothing was changed).
    """
    if accelerator_exists():
        return False
    import torch
    from speculators.train import checkpointer, cli, trainer

    cpu: Any = torch.device("cpu")
    replacements: tuple[tuple[Any, str, Any], ...] = (
        # get_local_rank() is a device index there (speculators 0.9.0, Trainer.__init__).
        (trainer, "get_local_rank", lambda: cpu),
        # "cuda" where current_accelerator() is None (ibid.); assigned in __init__, hence the setter.
        (trainer.Trainer, "device_type", property(lambda self: "cpu", lambda self, value: None)),
        # Called by _StepTimer; raises without an accelerator.
        (torch.accelerator, "synchronize", lambda *args, **kwargs: None),
        # "cuda:0" where there is no accelerator (speculators.utils.util.get_current_device), used on resume.
        (checkpointer, "get_current_device", lambda: "cpu"),
        # Refuses to start a process group without an accelerator (speculators.train.distributed).
        (cli, "maybe_setup_distributed", _setup_distributed_on_cpu),
    )
    for owner, name, value in replacements:
        setattr(owner, name, value)
    if os.environ.get("RANK", "0") == "0":
        logger.warning(
            "No accelerator found: speculators' trainer is made to run on the CPU. A rehearsal, slow."
        )
    return True


def _setup_distributed_on_cpu(sp_size: int = 1) -> None:
    """`speculators.train.distributed.maybe_setup_distributed` with gloo in place of the accelerator's backend."""
    import torch.distributed as dist
    from speculators.train import distributed

    if "LOCAL_RANK" not in os.environ:
        return
    distributed._local_rank = int(os.environ["LOCAL_RANK"])
    distributed._is_distributed = True
    dist.init_process_group("gloo", timeout=GROUP_TIMEOUT)
    distributed._rank = dist.get_rank()
    distributed._world_size = dist.get_world_size()
    distributed._init_sp_process_groups(distributed._rank, distributed._world_size, sp_size)
