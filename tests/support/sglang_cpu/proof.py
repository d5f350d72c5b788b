"""What the tests of the numeric proof and of the engine share."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.documents.json_files import read_metadata
from eagle3_export.numeric import compare as numeric

NUM_STEPS, NEW_TOKENS = 4, 40
DRAFTS: dict[str, dict[str, Any]] = {
    "exact_in_stock": {"draft_vocab": 96},
    "all_that_stock_drops": {
        "draft_vocab": 96,
        "arch": "qwen3",
        "layers": 2,
        "attention_bias": True,
        "embed_requires_grad": True,
        "windows": [8, None],
        "aux_layer_ids": (4,),
        "norm_before_residual": True,
        "norm_before_fc": True,
        "norm_output": True,
    },
}

WINDOW_FLAG = "--speculative-draft-window-size"

needs_sglang = pytest.mark.skipif(
    any(importlib.util.find_spec(package) is None for package in ("sglang", "speculators")),
    reason="needs sglang and speculators",
)


def window_flag(export: Path) -> int | None:
    """The window that an export's launch arguments give to the server."""
    arguments = read_metadata(export / "metadata.json").sglang.launch_arguments
    return int(arguments[arguments.index(WINDOW_FLAG) + 1]) if WINDOW_FLAG in arguments else None


def assert_exact(report: numeric.NumericReport | None, case: object) -> None:
    """Four draft steps were compared and none differs."""
    assert report is not None
    assert report.problem is None, f"{case}: {report.problem}"
    assert len(report.per_step) == 4
    assert report.ok, f"{case}: {report.per_step}"
