"""Starts real training runs of one or several processes, through the launchers that people use.

``start(...)`` gives a `Run`: its processes' ids, what each rank did, its output, and signals to single ranks. The
filesystem under the exporter can be made slow, hanging or failing; see ``on_path/sitecustomize.py``.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
ON_PATH = Path(__file__).parent / "on_path"
MODULE = ("-m", "eagle3_export.train")
BIN = Path(sys.executable).parent


def torchrun(processes: int) -> list[str]:
    return [
        str(BIN / "torchrun"),
        "--nproc-per-node",
        str(processes),
        "--master-port",
        str(free_port()),
        *MODULE,
    ]


def accelerate_launch(processes: int) -> list[str]:
    """With the repository's accelerate config; without one, accelerate starts a single process where no GPU is."""
    options = {
        "config_file": ROOT / "configs" / "accelerate-8gpu.yaml",
        "num_processes": processes,
        "main_process_port": free_port(),
    }
    spelled = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    return [str(BIN / "accelerate"), "launch", *spelled, *MODULE]


def plain() -> list[str]:
    return [sys.executable, *MODULE]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass
class Run:
    """A training run that has been started; `close` ends whatever of it is left."""

    process: subprocess.Popen[bytes]
    log: Path
    trace: Path

    @property
    def output(self) -> str:
        return self.log.read_text(errors="replace")

    def events(self, rank: int) -> list[dict[str, Any]]:
        """What that rank did so far, in order."""
        path = self.trace / f"rank-{rank}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def count(self, rank: int, event: str) -> int:
        return sum(entry["event"] == event for entry in self.events(rank))

    def pid(self, rank: int) -> int:
        return next(entry["pid"] for entry in self.events(rank) if entry["event"] == "attach")

    def wait_until(self, condition: Callable[[], bool], timeout: float = 120) -> None:
        """Poll for a condition while the run lives."""
        deadline = time.monotonic() + timeout
        while not condition():
            assert self.process.poll() is None, f"the run ended early:\n{self.output[-4000:]}"
            assert time.monotonic() < deadline, f"nothing came:\n{self.output[-4000:]}"
            time.sleep(0.02)

    def signal_rank(self, rank: int, signum: signal.Signals) -> None:
        os.kill(self.pid(rank), signum)

    def wait(self, timeout: float = 180) -> int:
        """The launcher's exit status; fails the test, with the output, if it does not end."""
        try:
            return self.process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.close()
            raise AssertionError(f"the run did not end:\n{self.output[-6000:]}") from None

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def start(
    launcher: Sequence[str],
    arguments: Sequence[str],
    directory: Path,
    *,
    faults: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    label: str = "run",
) -> Run:
    """Start a run.

    Args:
        launcher: from `torchrun`, `accelerate_launch`, `plain`, or any command line that they can follow.
        arguments: of ``eagle3_export.train``.
        directory: for its log and traces.
        faults: see ``on_path/sitecustomize.py``.
        environment: variables to add.
        label: tells this run's files from those of others in the same directory.
    """
    trace = directory / f"{label}-trace"
    trace.mkdir(parents=True, exist_ok=True)
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ON_PATH), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRACE_DIRECTORY": str(trace),
        "TRAINING_FAULTS": json.dumps(dict(faults or {})),
        "GLOO_SOCKET_IFNAME": "lo",
        **(environment or {}),
    }
    log = directory / f"{label}.log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            [*launcher, *arguments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    return Run(process, log, trace)
