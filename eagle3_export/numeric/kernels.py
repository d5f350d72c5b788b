"""What the numeric check puts in place of SGLang's compiled kernels."""

from __future__ import annotations

from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import torch


class NoKernels(ModuleType):
    """Stands in for SGLang's compiled package `sgl_kernel`: names import, and raise when called.

    SGLang's layers fall back to plain PyTorch on a CPU without its kernels; a CUDA build of the package would not
    even import there.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = ModuleSpec(name, loader=None)
        self.__path__: list[str] = []

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)

        def kernel(*_: Any, **__: Any) -> None:
            raise RuntimeError(f"the numeric check runs without SGLang's compiled kernel {name}")

        return kernel


class PlainAttention:
    """Causal softmax attention of one request, in place of SGLang's kernels.

    Reads the layer's settings on every call: `sliding_window_size` counts the keys before the query
    itself, -1 or None means all of them (as in SGLang's torch_native, triton and flashattention backends).
    """

    def __init__(self, attention: Any) -> None:
        self.attention = attention
        self.keys: torch.Tensor | None = None
        self.values: torch.Tensor | None = None

    def __call__(self, q: Any, k: Any, v: Any, forward_batch: Any, *_: Any, **__: Any) -> torch.Tensor:
        layer = self.attention
        k = k.view(-1, layer.tp_k_head_num, layer.qk_head_dim)
        v = v.view(-1, layer.tp_v_head_num, layer.v_head_dim)
        if not forward_batch.forward_mode.is_decode() or self.keys is None or self.values is None:
            self.keys, self.values = k, v
        else:
            self.keys, self.values = torch.cat([self.keys, k]), torch.cat([self.values, v])
        heads = q.view(-1, layer.tp_q_head_num, layer.qk_head_dim)
        groups = layer.tp_q_head_num // layer.tp_k_head_num
        keys, values = (t.repeat_interleave(groups, dim=1) for t in (self.keys, self.values))
        scores = torch.einsum("qhd,khd->hqk", heads, keys) * layer.scaling
        total, new = len(keys), len(heads)
        query_at, key_at = torch.arange(total - new, total)[:, None], torch.arange(total)[None, :]
        sees = key_at <= query_at
        window = layer.sliding_window_size
        if window is not None and window >= 0:
            sees &= key_at >= query_at - window
        weights = torch.softmax(scores.masked_fill(~sees, float("-inf")), dim=-1)
        return torch.einsum("hqk,khd->qhd", weights, values).reshape(new, -1)
