"""The space of drafts that the numeric proof walks, and samples of it in which every pair of choices occurs."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.sglang_cpu.toy import HEADS, HIDDEN, ROPE, VOCAB

Case = dict[str, Any]

# Arguments of toy.build_draft, and `runtime` of the export.
CHOICES: Mapping[str, Sequence[Any]] = {
    "norm_before_residual": (True, False),
    "input_norm": (None, "norm_before_fc", "fc_norm"),
    "norm_output": (True, False),
    "layers": (1, 2),
    "draft_vocab": (VOCAB // 2, VOCAB),
    "kv_heads": (HEADS // 2, HEADS, 1),
    "head_dim": (HIDDEN // HEADS, 2 * HIDDEN // HEADS),
    "aux_layer_ids": ((2, 4, 5), (4,), (1, 2, 4, 5)),
    "rope": tuple(ROPE),
    "arch": ("llama", "qwen3"),
    "window": (None, "every layer", "last layer"),
    "attention_bias": (False, True),
    "mlp_bias": (False, True),
    "embed_requires_grad": (False, True),
    "runtime": ("auto", "exact"),
}
# The part of it that auto exports for SGLang's own class.
STOCK_CHOICES: Mapping[str, Sequence[Any]] = {
    **CHOICES,
    "aux_layer_ids": ((2, 4, 5), (1, 2, 4, 5)),
    "arch": ("llama",),
    "window": (None, "every layer"),
    "attention_bias": (False,),
    "mlp_bias": (False,),
    "embed_requires_grad": (False,),
    "runtime": ("auto",),
}
WINDOW = 8


def pairwise(choices: Mapping[str, Sequence[Any]], seed: int = 0) -> list[Case]:
    """Cases in which every two values of two different choices occur together at least once."""
    rng = random.Random(seed)
    names = list(choices)
    uncovered = {
        (a, x, b, y)
        for a, b in itertools.combinations(names, 2)
        for x in range(len(choices[a]))
        for y in range(len(choices[b]))
    }
    cases = []
    while uncovered:
        candidates = [{name: rng.randrange(len(choices[name])) for name in names} for _ in range(60)]
        best = max(candidates, key=lambda candidate: len(_pairs(candidate) & uncovered))
        if not _pairs(best) & uncovered:
            a, x, b, y = min(uncovered)
            best |= {a: x, b: y}
        uncovered -= _pairs(best)
        cases.append({name: choices[name][best[name]] for name in names})
    return cases


def _pairs(indexes: Mapping[str, int]) -> set[tuple[str, int, str, int]]:
    return {(a, x, b, y) for (a, x), (b, y) in itertools.combinations(indexes.items(), 2)}


def draft_arguments(case: Case) -> dict[str, Any]:
    """The case as arguments of `toy.random_draft`."""
    arguments = {key: value for key, value in case.items() if key not in ("input_norm", "window", "runtime")}
    if case["input_norm"]:
        arguments[case["input_norm"]] = True
    if case["arch"] == "qwen3":
        arguments["mlp_bias"] = False  # Qwen3's MLP has none
    windows = {None: [None] * case["layers"], "every layer": [WINDOW] * case["layers"]}
    arguments["windows"] = windows.get(case["window"], [None] * (case["layers"] - 1) + [WINDOW])
    return arguments
