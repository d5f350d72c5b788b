"""Serve a model with real SGLang on a CPU, from a test or a script.

The unmodified sglang wheel runs: its config loading, `load_weights`, model code, EAGLE worker, scheduler and
KV pool. Only its compiled kernels are replaced (`on_path/sgl_kernel`, plain PyTorch, slow).

Needs torch, transformers, `pip install --no-deps sglang==0.5.23` and `pip install -r requirements.txt`.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.support.sglang_cpu.generate import ENGINE

FOLDER = Path(__file__).resolve().parent
SHIM_PLUGIN = "sglcpu"  # entry-point name in on_path/sglcpu_shim-0.1.dist-info


class ServingFailedError(RuntimeError):
    """SGLang did not start or did not answer; `log` holds the end of what it printed."""

    def __init__(self, message: str, log: str) -> None:
        super().__init__(f"{message}\n{log[-4000:]}")
        self.log = log


@dataclass(frozen=True)
class Request:
    """What one engine is to generate: see `generate`.

    Attributes:
        max_new_tokens: for every prompt, or one number per prompt.
        ignore_eos: whether to generate beyond an end-of-sequence token.
    """

    target: Path | str
    draft: Path | str | None
    num_steps: int
    prompts: Sequence[Sequence[int]]
    max_new_tokens: int | Sequence[int] = 96
    ignore_eos: bool = True
    options: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        limits = self.max_new_tokens
        return {
            "target": str(self.target),
            "draft": None if self.draft is None else str(self.draft),
            "num_steps": self.num_steps,
            "prompts": [list(map(int, prompt)) for prompt in self.prompts],
            "max_new_tokens": [limits] * len(self.prompts) if isinstance(limits, int) else list(limits),
            "ignore_eos": self.ignore_eos,
            "options": dict(self.options),
        }


def environment(
    *, load_report: Path | None = None, plugin: bool = True, on_path: Sequence[Path] = ()
) -> dict[str, str]:
    """Environment variables for a process that runs SGLang on this CPU.

    Args:
        load_report: where to write what the real `load_weights` loaded, ignored and left unfilled.
        plugin: whether SGLang loads the plugin of eagle3-export too (False: stock SGLang).
        on_path: folders to put in front of the import path, for example another SGLang release.
    """
    paths = [*map(str, on_path), str(FOLDER / "on_path")]
    if os.environ.get("PYTHONPATH"):
        paths.append(os.environ["PYTHONPATH"])
    variables = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(paths),
        "SGLANG_USE_CPU_ENGINE": "1",
        "CUDA_VISIBLE_DEVICES": "",
        "TORCHDYNAMO_DISABLE": "1",
        "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", "1"),
        "TOKENIZERS_PARALLELISM": "false",
        "HF_HUB_OFFLINE": "1",
    }
    variables.pop("SGLCPU_LOAD_REPORT", None)
    variables.pop("SGLANG_PLUGINS", None)
    if load_report is not None:
        variables["SGLCPU_LOAD_REPORT"] = str(load_report)
    if not plugin:
        variables["SGLANG_PLUGINS"] = SHIM_PLUGIN
    return variables


def generate(
    target: Path | str,
    draft: Path | str | None,
    num_steps: int,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int = 96,
    load_report: Path | None = None,
    *,
    plugin: bool = True,
    options: Mapping[str, Any] | None = None,
    on_path: Sequence[Path] = (),
    extra_environment: Mapping[str, str] | None = None,
    timeout: float = 300,
) -> dict[str, Any]:
    """Greedy generation by real SGLang in float32, with an EAGLE-3 chain draft or without one.

    Args:
        target: directory of the target model, tokenizer included.
        draft: directory of an export, or None to generate without a draft.
        num_steps: draft tokens per verify step (`--speculative-num-steps`), chain drafting (top-k 1).
        prompts: token ids.
        max_new_tokens: tokens generated for each prompt; end-of-sequence tokens are ignored.
        load_report: see `environment`.
        plugin: see `environment`.
        options: more keyword arguments for `sglang.Engine`, for example
            `{"speculative_draft_window_size": 15}`.
        on_path: see `environment`.
        extra_environment: more environment variables.
        timeout: seconds until the process is killed.

    Returns:
        `sglang_version` and `output_ids` per prompt; with a draft also `accept_length` (bonus token included),
        `verify_steps`,
        `accepted_drafts_histogram` (index: draft tokens accepted in a verify step) and
        `histogram_per_request`.

    Raises:
        ServingFailedError: SGLang did not start or did not answer in time.
    """
    request = Request(target, draft, num_steps, prompts, max_new_tokens, options=options or {})
    variables = environment(load_report=load_report, plugin=plugin, on_path=on_path)
    variables.update(extra_environment or {})
    (answer,) = _answers([request], variables, timeout)
    return answer


def generate_each(requests: Sequence[Request], *, timeout: float = 300) -> list[dict[str, Any]]:
    """Answers of several engines, one after the other, each as `generate` returns it; faster than one by one."""
    return _answers(requests, environment(), timeout)


def _answers(
    requests: Sequence[Request], variables: Mapping[str, str], timeout: float
) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory(prefix="sglang_cpu_") as folder:
        files = []
        for n, request in enumerate(requests):
            files.append(Path(folder) / f"request-{n}.json")
            files[-1].write_text(json.dumps(request.as_json()))
        command = [sys.executable, str(FOLDER / "generate.py"), *map(str, files)]
        stdout = run_killable(command, variables, timeout)
    lines = [line for line in stdout.splitlines() if line.startswith("{")]
    if len(lines) < len(requests):
        raise ServingFailedError("the process printed no result", stdout)
    return [json.loads(line) for line in lines[-len(requests) :]]


def server_flags() -> list[str]:
    """The settings of `generate.ENGINE` as flags of `sglang.launch_server`."""
    flags = []
    for name, value in ENGINE.items():
        flags.append("--" + name.replace("_", "-"))
        flags += [] if value is True else [str(value)]
    return flags


def run_killable(command: Sequence[str], variables: Mapping[str, str], timeout: float) -> str:
    """Run a command in a process group of its own and return its stdout.

    SGLang starts processes and ends its whole group when one fails: neither may outlive or reach us.

    Raises:
        ServingFailedError: it failed or took longer than `timeout` seconds.
    """
    process = subprocess.Popen(
        command,
        env=dict(variables),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        stdout, stderr = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        _kill_group(process)
        stdout, stderr = process.communicate()
        raise ServingFailedError(f"no answer within {timeout:.0f} s", stdout + stderr) from None
    finally:
        _kill_group(process)
    if process.returncode != 0:
        raise ServingFailedError(f"the process ended with status {process.returncode}", stdout + stderr)
    return stdout


def _kill_group(process: subprocess.Popen[str]) -> None:
    import signal

    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        return
