"""Rotates queries and keys by training's code and by SGLang's, in a process of its own."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ON_PATH = Path(__file__).parent / "sglang_cpu" / "on_path"
_LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "rope_theta": 5e5,
}
_YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32, "rope_theta": 1e4}
_LONGROPE = {
    "rope_type": "longrope",
    "short_factor": [1.0 + i / 10 for i in range(8)],
    "long_factor": [2.0 + i for i in range(8)],
    "original_max_position_embeddings": 128,
    "rope_theta": 1e4,
}
CASES: dict[str, dict[str, Any]] = {
    "default": {"rope_type": "default", "rope_theta": 1e4},
    "default, large theta": {"rope_type": "default", "rope_theta": 5e6},
    "linear": {"rope_type": "linear", "factor": 4.0, "rope_theta": 1e4},
    "dynamic": {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4},
    "llama3": {**_LLAMA3, "original_max_position_embeddings": 64},
    "llama3 without original length": dict(_LLAMA3),
    "yarn": dict(_YARN),
    "yarn, attention_factor": {**_YARN, "attention_factor": 0.7},
    "yarn, mscale": {**_YARN, "mscale": 0.7, "mscale_all_dim": 1.2},
    "yarn, half an mscale": {**_YARN, "mscale": 0.7},
    "yarn, not truncated": {**_YARN, "truncate": False, "beta_fast": 16, "beta_slow": 2},
    "longrope": dict(_LONGROPE),
    "longrope, factor": {**_LONGROPE, "factor": 3.0},
    "longrope, attention_factor": {**_LONGROPE, "attention_factor": 1.3},
    "mrope": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 3, 3]},
    "default, partial": {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5},
}


def compare_in_process(configs: list[tuple[dict[str, Any], dict[str, Any]]], **sizes: int) -> list[float]:
    """Largest differences of the rotated queries, then of the keys, per (trained rope, exported config)."""
    environment = {
        **os.environ,
        "SGLANG_USE_CPU_ENGINE": "1",
        "OMP_NUM_THREADS": "1",
        "PYTHONPATH": os.pathsep.join([str(ON_PATH), os.environ.get("PYTHONPATH", "")]),
    }
    result = subprocess.run(
        [sys.executable, __file__],
        input=json.dumps({"configs": configs, **sizes}),
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return json.loads(result.stdout.splitlines()[-1])


def main() -> None:
    job = json.load(sys.stdin)
    pairs = [_differences(*pair, job["head_dim"], job["positions"]) for pair in job["configs"]]
    print(json.dumps([query for query, _ in pairs] + [key for _, key in pairs]))


def _differences(
    rope: dict[str, Any], exported: dict[str, Any], head_dim: int, length: int
) -> tuple[float, float]:
    import torch
    from sglang.srt.layers.rotary_embedding import get_rope
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

    # As in speculators 0.9.0, Eagle3DraftModel.__init__.
    trained = copy.copy(
        LlamaConfig(
            hidden_size=64,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=head_dim,
            max_position_embeddings=length,
            rope_parameters=copy.deepcopy(rope),
        )
    )
    trained.hidden_size *= 2
    cos, sin = LlamaRotaryEmbedding(trained)(torch.zeros(1, 1, 1), torch.arange(length)[None])
    # As in sglang 0.5.23, models/llama.py:LlamaDecoderLayer and LlamaAttention.
    config = LlamaConfig.from_dict(exported)
    parameters = config.rope_parameters
    served = get_rope(
        head_dim,
        rotary_dim=int(getattr(config, "partial_rotary_factor", 1) * head_dim),
        max_position=config.max_position_embeddings,
        base=parameters.get("rope_theta", 10000),
        rope_scaling=parameters,
        is_neox_style=True,
    )
    generator = torch.Generator().manual_seed(0)
    query = torch.randn(length, 4 * head_dim, generator=generator)
    key = torch.randn(length, 2 * head_dim, generator=generator)
    rotate = getattr(served, "forward_native", served.forward)
    served_pair = rotate(torch.arange(length), query.clone(), key.clone())
    trained_pair = apply_rotary_pos_emb(
        query.view(1, length, 4, head_dim).transpose(1, 2),
        key.view(1, length, 2, head_dim).transpose(1, 2),
        cos,
        sin,
    )
    differences = [
        float((ours.reshape(length, -1) - theirs[0].transpose(0, 1).reshape(length, -1)).abs().max())
        for ours, theirs in zip(served_pair, trained_pair, strict=True)
    ]
    return differences[0], differences[1]


if __name__ == "__main__":
    main()
