"""How a server runs a draft, against how its export asks for it.

A server accepts a draft that runs otherwise without a word: quantised because the target is, without its attention
window, in another dtype. Such a number is recorded with the difference named, and compared with no other. Settings
under which it would be another quantity altogether are refused.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from typing import Any

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.facts import ServerFacts, read_text

# Keys of SGLang's /server_info, which are the names of its ServerArgs (`server_args.py`, from 0.5.22
# `arg_groups/fields/`). Values are those after its own resolution: a draft that inherits the target's quantisation
# has it under its own key, one that was started with `unquant` has null.
SGLANG_SETTINGS = (
    *("speculative_adaptive", "speculative_accept_threshold_single", "speculative_accept_threshold_acc"),
    *("speculative_draft_window_size", "speculative_draft_model_quantization", "quantization", "dtype"),
)
# Keys of vLLM's speculative_config (`vllm/config/speculative.py`).
VLLM_SETTINGS = ("quantization",)

_DTYPES = {"half": "float16", "float": "float32", "bf16": "bfloat16", "f16": "float16", "f32": "float32"}


def known_settings(said: Mapping[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    """Returns those settings that are compared here: texts, numbers and nulls, nothing else."""
    settings = {key: said[key] for key in keys if key in said}
    return {
        key: read_text(value) if isinstance(value, str) else value
        for key, value in settings.items()
        if isinstance(value, str | int | float | None)
    }


def refuse_other_quantity(facts: ServerFacts) -> None:
    """Refuses a server whose settings make its acceptance length another quantity.

    Raises:
        MeasurementError: it changes the draft depth while it runs, or accepts drafts that the target would not say.
    """
    if facts.settings.get("speculative_adaptive"):
        raise MeasurementError(
            "The server adapts its draft depth while it runs (--speculative-adaptive).",
            why="An acceptance length is of one depth.",
            remedy="Start it without --speculative-adaptive.",
        )
    for key in ("speculative_accept_threshold_single", "speculative_accept_threshold_acc"):
        threshold = facts.settings.get(key)
        if threshold is not None and threshold != 1:
            flag = f"--{key.replace('_', '-')}"
            raise MeasurementError(
                f"The server accepts drafts by a lower threshold ({flag} {threshold}).",
                why="It then accepts drafts that the target would not have said, so more than this draft gets right.",
                remedy=f"Start it without {flag}, or with 1.",
            )


def setting_differences(facts: ServerFacts, launch_arguments: Sequence[str], dtype: str | None) -> list[str]:
    """Returns, one sentence each, where the server runs the draft otherwise than its export asks.

    Args:
        facts: of the server.
        launch_arguments: the export's, from its metadata.
        dtype: of the export's weights.
    """
    asked = dict(itertools.pairwise(launch_arguments))
    found = [_topk_difference(facts), _quantization_difference(facts.settings)]
    if facts.kind == "sglang":
        found += [
            _window_difference(facts.settings, asked.get("--speculative-draft-window-size")),
            _dtype_difference(facts.settings, asked.get("--dtype"), dtype),
        ]
    return [difference for difference in found if difference is not None]


def _topk_difference(facts: ServerFacts) -> str | None:
    if facts.topk == 1:
        return None
    return f"The server drafts a tree ({facts.topk} branches per step), the export asks for a chain."


def _quantization_difference(settings: Mapping[str, Any]) -> str | None:
    # Releases before 0.5.7 have no key for the draft: it gets what the target was given.
    key = "speculative_draft_model_quantization"
    method = settings[key] if key in settings else settings.get("quantization")
    if method in (None, "", "unquant"):
        return None
    return f"The server quantises the draft ({method}), the export is not quantised."


def _window_difference(settings: Mapping[str, Any], asked: str | None) -> str | None:
    window = settings.get("speculative_draft_window_size")
    served = None if not window else str(window)
    if served == asked:
        return None
    return (
        f"The server gives the draft an attention window of {served or 'any length'}, the export asks for"
        f" {asked or 'none'}."
    )


def _dtype_difference(settings: Mapping[str, Any], asked: str | None, own: str | None) -> str | None:
    served = settings.get("dtype")
    expected = asked or own
    if served in (None, "auto") or expected is None:
        return None
    if _DTYPES.get(str(served), served) == _DTYPES.get(expected.lower(), expected):
        return None
    return f"The server runs the draft in {served}, the export asks for {expected}."
