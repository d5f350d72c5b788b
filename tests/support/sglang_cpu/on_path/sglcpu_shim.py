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

    SGLang replaces it by torch_native on machines without AMX (0.5.17 to 0.5.23: arg_groups/overrides.py).
    """
    try:
        from sglang.srt.runtime_context import override_platform
    except ImportError:  # before 0.5.20
        from sglang.srt.arg_groups import overrides

        overrides.cpu_has_amx_support = lambda: True
        _use_the_lengths_that_were_built()
    else:
        override_platform(has_amx=True).install()


def _use_the_lengths_that_were_built() -> None:
    """Before 0.5.20 the CPU backend builds lengths for verifying and drafting, and then takes the committed ones.

    Both then miss their own tokens, whatever the model (0.5.17: layers/attention/intel_amx_backend.py, the second
    assignment of `seq_lens` in forward_extend and forward_decode).
    """
    from sglang.srt.plugins.hook_registry import HookRegistry, HookType

    def corrected(metadata: str, position: int) -> Callable[..., Any]:
        def forward(
            original: Any,
            backend: Any,
            q: Any,
            k: Any,
            v: Any,
            layer: Any,
            batch: Any,
            *more: Any,
            **named: Any,
        ) -> Any:
            built = getattr(backend, metadata)
            if built is None:
                return original(backend, q, k, v, layer, batch, *more, **named)
            committed, batch.seq_lens = batch.seq_lens, built[position]
            try:
                return original(backend, q, k, v, layer, batch, *more, **named)
            finally:
                batch.seq_lens = committed

        return forward

    backend = "sglang.srt.layers.attention.intel_amx_backend.IntelAMXAttnBackend"
    HookRegistry.register(f"{backend}.forward_extend", corrected("extend_metadata", 0), HookType.AROUND)
    HookRegistry.register(f"{backend}.forward_decode", corrected("draft_decode_metadata", 1), HookType.AROUND)


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
