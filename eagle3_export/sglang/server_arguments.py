"""The command that serves an export."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from eagle3_export.sglang.capabilities import capabilities
from eagle3_export.sglang.rope import context_length
from eagle3_export.sglang.target import ServingTarget

_DTYPES = ("bfloat16", "float16", "float32")  # of those that SGLang's --dtype takes, what configs say


def window_argument(sliding_windows: Sequence[int | None]) -> int | None:
    """Value for `--speculative-draft-window-size`, or None where one value cannot say it.

    SGLang lets a query see `value` keys before itself, speculators `window` keys including itself
    (sglang 0.5.23, `layers/radix_attention.py`; speculators 0.9.0, `create_combined_mask_mod`).
    """
    windows = set(sliding_windows)
    if len(windows) != 1:
        return None
    (window,) = windows
    return window - 1 if window is not None and window > 1 else None


def launch_arguments(config: Mapping[str, Any], target: ServingTarget, num_steps: int) -> list[str]:
    """Arguments of `sglang.launch_server` that this draft needs, without model paths.

    Args:
        config: the exported config.json.
        target: the release that serves, and the model that it serves.
        num_steps: drafts per verify step, on one chain.
    """
    known = capabilities(target.sglang_version)
    arguments = [
        *("--speculative-algorithm", "EAGLE3"),
        *("--speculative-num-steps", str(num_steps)),
        *("--speculative-eagle-topk", "1"),
        *("--speculative-num-draft-tokens", str(num_steps + 1)),
    ]
    window = window_argument(config["eagle3_export"]["sliding_window"])
    if window is not None and known.window_flag:
        arguments += ["--speculative-draft-window-size", str(window)]
    mine = context_length(config)
    theirs = context_length(target.verifier.config) if target.verifier is not None else None
    if mine is not None and theirs is not None and mine < theirs:
        arguments += ["--context-length", str(mine)]
    dtype = target.verifier.dtype if target.verifier is not None else None
    if dtype in _DTYPES and dtype != config.get("dtype"):
        # Without it each model runs in its own, and the draft's first matrix meets hidden states of another.
        arguments += ["--dtype", dtype]
    if target.verifier is not None and target.verifier.quantization and known.draft_quantization_flag:
        arguments += ["--speculative-draft-model-quantization", "unquant"]
    return arguments


def launch_command(export_dir: str | Path, target_model: str, arguments: Sequence[str]) -> str:
    """One shell command that serves a target with a draft.

    Args:
        export_dir: the export of the draft.
        target_model: path or hub id.
        arguments: of `sglang.launch_server`, as `launch_arguments` gives them.
    """
    return shlex.join(
        [
            *("python", "-m", "sglang.launch_server"),
            *("--model-path", target_model),
            *("--speculative-draft-model-path", str(export_dir)),
            *arguments,
        ]
    )
