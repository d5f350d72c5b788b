"""Starts real training runs of one or several processes.

``start(...)`` goes through the launchers that people use; ``start_forked(...)`` has the ranks forked off a process that
has imported PyTorch and speculators once, so that they train within a second. Either gives a `Run`: what each rank did,
its output, and signals to single ranks. The filesystem under the exporter can be made slow, hanging or failing; see
``on_path/training_trace.py``.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, Protocol

from eagle3_export.ports import free_port

ROOT = Path(__file__).parents[3]
ON_PATH = Path(__file__).parent / "on_path"
MODULE = ("-m", "eagle3_export.train")
BIN = Path(sys.executable).parent
MEETING_POINT = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}


def torchrun(processes: int) -> list[str]:
    return [
        str(BIN / "torchrun"),
        "--nproc-per-node",
        str(processes),
        "--master-port",
        str(free_port()),
        *MODULE,
    ]


def slurm_script(processes: int) -> list[str]:
    """``configs/slurm-torchrun.sh`` without Slurm: ``srun`` and ``scontrol`` are stand-ins for one node."""
    stand_ins = Path(__file__).parent / "slurm"
    allocation = {"SLURM_JOB_ID": free_port(), "SLURM_JOB_NODELIST": "localhost", "SLURM_NNODES": 1}
    allocation |= {"SLURM_GPUS_ON_NODE": processes, "PATH": f"{stand_ins}:{BIN}:{os.environ['PATH']}"}
    settings = [f"{name}={value}" for name, value in allocation.items()]
    return [
        "env",
        *settings,
        "bash",
        str(ROOT / "configs" / "slurm-torchrun.sh"),
        str(stand_ins / "run.yaml"),
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


class Launched(Protocol):
    """What `Run` needs of a launcher's process."""

    pid: int

    def poll(self) -> int | None: ...
    def wait(self, timeout: float | None = None) -> int: ...


@dataclass
class Run:
    """A training run that has been started; `close` ends whatever of it is left."""

    process: Launched
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
        faults: see ``on_path/training_trace.py``.
        environment: variables to add.
        label: tells this run's files from those of others in the same directory.
    """
    run_files = _files(directory, label)
    variables = {
        **os.environ,
        **_variables(run_files[1], faults),
        "PYTHONPATH": os.pathsep.join([str(ON_PATH), str(ROOT)]),
        **(environment or {}),
    }
    with run_files[0].open("wb") as sink:
        process = subprocess.Popen(
            [*launcher, *arguments],
            stdout=sink,
            stderr=subprocess.STDOUT,
            env=variables,
            start_new_session=True,
        )
    return Run(process, *run_files)


def as_torchrun(rank: int, processes: int) -> dict[str, str]:
    return {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(processes), **MEETING_POINT}


def as_srun(rank: int, processes: int) -> dict[str, str]:
    """What srun sets, and what a user exports before it."""
    return {
        "SLURM_PROCID": str(rank),
        "SLURM_LOCALID": str(rank),
        "SLURM_STEP_NUM_TASKS": str(processes),
        **MEETING_POINT,
    }


def start_forked(
    processes: int,
    arguments: Sequence[str],
    directory: Path,
    *,
    faults: Mapping[str, Any] | None = None,
    label: str = "run",
    style: Callable[[int, int], dict[str, str]] = as_torchrun,
) -> Run:
    """Start a run of so many ranks on this machine, supervised as torchrun does: see `_supervise`.

    Args:
        style: the variables that a launcher gives to a rank, by rank and number of ranks.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.training.preload"])
    log, trace = _files(directory, label)
    MEETING_POINT["MASTER_PORT"] = str(free_port())
    variables = [{**_variables(trace, faults), **style(rank, processes)} for rank in range(processes)]
    process = context.Process(target=_supervise, args=(list(arguments), str(log), variables))
    process.start()
    return Run(_Forked(process), log, trace)


class _Forked:
    def __init__(self, process: Any) -> None:
        self._process = process
        self.pid: int = process.pid

    def poll(self) -> int | None:
        return self._process.exitcode  # type: ignore[no-any-return]

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("forked ranks", timeout or 0)
        return self._process.exitcode  # type: ignore[no-any-return]


def _files(directory: Path, label: str) -> tuple[Path, Path]:
    trace = directory / f"{label}-trace"
    trace.mkdir(parents=True, exist_ok=True)
    return directory / f"{label}.log", trace


def _variables(trace: Path, faults: Mapping[str, Any] | None) -> dict[str, str]:
    return {
        "OMP_NUM_THREADS": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TRACE_DIRECTORY": str(trace),
        "TRAINING_FAULTS": json.dumps(dict(faults or {})),
        "GLOO_SOCKET_IFNAME": "lo",
    }


def _supervise(arguments: list[str], log: str, variables: list[dict[str, str]]) -> None:
    """Fork the ranks; once one fails, end the others: SIGTERM, and SIGKILL 30 s later, as torchrun does."""
    os.setsid()
    sink = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(sink, 1)
    os.dup2(sink, 2)
    ranks = set()
    for mine in variables:
        if (pid := os.fork()) == 0:
            _be_rank(arguments, mine)
        ranks.add(pid)
    failed, deadline = 0, float("inf")
    while ranks:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid:
            ranks.discard(pid)
            if status and not failed:
                failed, deadline = 1, time.monotonic() + 30
                for other in ranks:
                    os.kill(other, signal.SIGTERM)
        elif time.monotonic() > deadline:
            for other in ranks:
                os.kill(other, signal.SIGKILL)
        else:
            time.sleep(0.02)
    os._exit(failed)


def _be_rank(arguments: list[str], variables: dict[str, str]) -> NoReturn:
    os.environ.update(variables)
    sys.argv = ["eagle3_export.train", *arguments]
    status = 1
    try:
        sys.path.insert(0, str(ON_PATH))
        import training_trace

        from eagle3_export.train import main

        training_trace.install()
        status = main(arguments)
    except SystemExit as exit:
        status = exit.code if isinstance(exit.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
