"""An SGLang plugin for tests: lets a CPU draft with EAGLE, and reports what the real `load_weights` did.

SGLang finds it in every one of its processes: entry point `sglang.srt.plugins` of the dist-info beside it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

STOCK_CLASS = "sglang.srt.models.llama_eagle3.LlamaForCausalLMEagle3"


def activate() -> None:
    """Entry point, run by SGLang's `load_plugins`."""
    _keep_the_attention_backend_that_can_draft()
    if os.environ.get("SGLCPU_LOAD_REPORT"):
        from sglang.srt.plugins.hook_registry import HookRegistry, HookType

        HookRegistry.register(f"{STOCK_CLASS}.load_weights", _load_and_report, HookType.AROUND)


def _keep_the_attention_backend_that_can_draft() -> None:
    """Keep `attention_backend=intel_amx`, the only CPU backend with EAGLE's multi-step drafting.

    SGLang replaces it by torch_native on machines without AMX (0.5.23: arg_groups/overrides.py).
    """
    from sglang.srt.runtime_context import override_platform

    override_platform(has_amx=True).install()


def _load_and_report(
    load_weights: Callable[..., Any], model: Any, weights: Iterable[tuple[str, Any]]
) -> None:
    """Load one key at a time into parameters filled with NaN, and note what each key changed."""
    import torch

    parameters = dict(model.named_parameters())
    for parameter in parameters.values():
        parameter.data.fill_(float("nan"))

    def still_nan() -> dict[str, int]:
        return {name: int(torch.isnan(parameter).sum()) for name, parameter in parameters.items()}

    changed: dict[str, list[str]] = {}
    for key, tensor in weights:
        before, map_before = still_nan(), model.hot_token_id
        load_weights(model, [(key, tensor)])
        after = still_nan()
        changed[key] = [name for name in parameters if after[name] != before[name]]
        if model.hot_token_id is not map_before:
            changed[key].append("<hot_token_id>")
    report = {
        "class": type(model).__name__,
        "loaded": {key: names for key, names in changed.items() if names},
        "ignored": sorted(key for key, names in changed.items() if not names),
        "unfilled": sorted(name for name, count in still_nan().items() if count),
    }
    Path(os.environ["SGLCPU_LOAD_REPORT"]).write_text(json.dumps(report, indent=1))
