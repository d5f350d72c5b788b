"""EAGLE-3 draft models for SGLang: its own class, plus what it does not compute.

The config keys are written by `eagle3_export.sglang.config`, whose docstring lists them. Everything here
extends SGLang's classes (models/llama_eagle3.py and models/llama.py, 0.5.12 to 0.5.23): a layer or module
that SGLang has built gets a subclass of its own class, which changes one thing and leaves the rest to SGLang.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from sglang.srt.layers.layernorm import RMSNorm
from sglang.srt.layers.linear import MergedColumnParallelLinear, QKVParallelLinear, RowParallelLinear
from sglang.srt.models import llama_eagle3 as stock
from sglang.srt.models.llama import LlamaAttention, LlamaMLP

from eagle3_export.serving.keys import refuse_unless_complete

logger = logging.getLogger(__name__)

Tensor = torch.Tensor


class NormBeforeResidualLayer(stock.LlamaDecoderLayer):
    """The first draft layer of speculators' `norm_before_residual`: normalises, then takes the residual.

    SGLang's takes the residual first. Compare speculators models/eagle3/model_definitions.py,
    `Eagle3FirstLayerMixin.forward`.
    """

    def forward(
        self,
        positions: Tensor,
        embeds: Tensor,
        hidden_states: Tensor,
        forward_batch: Any,
        residual: Tensor | None,
    ) -> tuple[Tensor, Tensor]:
        """`embeds`, `hidden_states`: [tokens, hidden]. Returns the MLP's output and the residual to add."""
        residual = self.hidden_norm(hidden_states)
        hidden_states = torch.cat([self.input_layernorm(embeds), residual], dim=-1)
        hidden_states = self.self_attn(
            positions=positions, hidden_states=hidden_states, forward_batch=forward_batch
        )
        hidden_states, residual = self.post_attention_layernorm(hidden_states, residual)
        return self.mlp(hidden_states), residual


class LlamaForCausalLMEagle3(stock.LlamaForCausalLMEagle3):
    """SGLang's class with the config's `norm_before_residual` honoured; without that key, to the bit as it is."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)
        if getattr(config, "norm_before_residual", False):
            self.model.layers[0].__class__ = NormBeforeResidualLayer
            logger.info("eagle3-export: the draft's first layer normalises before it takes the residual")


class QKNormAttention(LlamaAttention):
    """Attention with RMSNorm on each head of queries and keys, before the rotation (qwen3 style)."""

    def forward_prepare_native(
        self, positions: Tensor, hidden_states: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        qkv, _ = self.qkv_proj(hidden_states)
        q, k, v = qkv.split([self.q_size, self.kv_size, self.kv_size], dim=-1)
        q = self.q_norm(q.reshape(-1, self.head_dim)).view(q.shape)
        k = self.k_norm(k.reshape(-1, self.head_dim)).view(k.shape)
        q, k = self.rotary_emb(positions, q, k)
        return q, k, v

    def forward_prepare_npu(
        self, positions: Tensor, hidden_states: Tensor, forward_batch: Any
    ) -> tuple[Tensor, Tensor, Tensor]:
        # SGLang's fused kernel knows no q/k norms of this kind
        return self.forward_prepare_native(positions, hidden_states)


class BiasedMLP(LlamaMLP):
    """An MLP whose projections have biases, which SGLang's fused paths for it do not expect."""

    def forward(self, x: Tensor, forward_batch: Any = None, **_: Any) -> Tensor:
        gate_up, _bias = self.gate_up_proj(x)
        x, _bias = self.down_proj(self.act_fn(gate_up))
        return x


class SingleAuxLayerModel(stock.LlamaModel):
    """A draft on one aux layer as wide as the draft itself.

    SGLang tells the target's hidden states from the draft's own by their width and skips `fc` where the two
    coincide. Here the forward mode tells them apart: only draft decoding feeds the draft's own.
    """

    def forward(
        self, input_ids: Tensor, positions: Tensor, forward_batch: Any, *args: Any, **kwargs: Any
    ) -> Any:
        if forward_batch.forward_mode.is_decode():
            return super().forward(input_ids, positions, forward_batch, *args, **kwargs)
        spec_info = forward_batch.spec_info
        aux_hidden_states = spec_info.hidden_states
        spec_info.hidden_states = self._project(aux_hidden_states)
        try:
            return super().forward(input_ids, positions, forward_batch, *args, **kwargs)
        finally:
            spec_info.hidden_states = aux_hidden_states

    def _project(self, aux_hidden_states: Tensor) -> Tensor:
        if getattr(self, "norm_before_fc", False):
            aux_hidden_states = self.input_norm(aux_hidden_states)
        if self.fc_norm is not None:
            aux_hidden_states = self.fc_norm[0](aux_hidden_states)
        projected: Tensor = self.fc(aux_hidden_states)
        return projected


class Eagle3ExportLlamaForCausalLM(LlamaForCausalLMEagle3):
    """For drafts of which SGLang's own class would drop or skip something. Refuses weights that do not fit."""

    def __init__(self, config: Any, quant_config: Any = None, prefix: str = "") -> None:
        super().__init__(config, quant_config, prefix)
        own = getattr(config, "eagle3_export", None) or {}
        self.keep_embed_tokens = bool(own.get("keep_embed_tokens"))
        self._loaded = False
        _add_norm_before_fc(self.model, config)
        if self.model.num_aux_hidden_states == 1 and self.model.hidden_size_in == config.hidden_size:
            self.model.__class__ = SingleAuxLayerModel
        for index, layer in enumerate(self.model.layers):
            if getattr(config, "attention_bias", False):
                _add_qkv_bias(
                    layer, quant_config, f"{prefix}.model.layers.{index}.self_attn.qkv_proj".lstrip(".")
                )
            if getattr(config, "mlp_bias", False):
                _add_mlp_bias(layer, config, quant_config, f"{prefix}.model.layers.{index}.mlp".lstrip("."))
            if getattr(config, "use_qk_norm", False):
                _add_qk_norm(layer, config)
            if index > 0:
                del (
                    layer.input_layernorm
                )  # SGLang builds it and uses hidden_norm: there are no embeddings here
        self._windows = _set_sliding_windows(self.model.layers, own.get("sliding_window"))

    def get_attention_sliding_window_size(self) -> int | None:
        """The window as SGLang counts it: keys before the query itself."""
        if self._windows is None:
            size: int | None = super().get_attention_sliding_window_size()
            return size
        return max(self._windows, default=None)

    def set_embed(self, embed: Tensor) -> None:
        """SGLang's EAGLE worker puts the target's embedding in place of the draft's; a trained one stays."""
        if not self.keep_embed_tokens:
            super().set_embed(embed)

    def load_weights(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """As SGLang loads them; then every parameter must have had its tensors, and every tensor a parameter.

        Later calls, which update some of the weights of a running server, are SGLang's alone.

        Raises:
            ValueError: a tensor is missing or unknown. SGLang alone would serve such a draft without a word, at an
                accept length near 1.
        """
        if self._loaded:
            super().load_weights(weights)
            return
        names: list[str] = []

        def noted() -> Iterator[tuple[str, Tensor]]:
            for name, tensor in weights:
                names.append(name)
                yield name, tensor

        super().load_weights(noted())
        refuse_unless_complete(
            names,
            [name for name, _ in self.named_parameters()],
            vocabulary_map=self.config.draft_vocab_size != self.config.vocab_size,
            embedding=self.keep_embed_tokens,
        )
        self._loaded = True


def _add_norm_before_fc(model: stock.LlamaModel, config: Any) -> None:
    """RMSNorm over all aux hidden states at once, in releases whose LlamaModel lacks it (before 0.5.17)."""
    wanted = (getattr(config, "eagle_config", None) or {}).get(
        "norm_before_fc", getattr(config, "norm_before_fc", False)
    )
    if not wanted or getattr(model, "input_norm", None) is not None:
        return
    model.input_norm = RMSNorm(model.fc.in_features, eps=config.rms_norm_eps)
    model.fc.register_forward_pre_hook(lambda _fc, inputs: (model.input_norm(inputs[0]),))


def _add_qkv_bias(layer: Any, quant_config: Any, prefix: str) -> None:
    attention = layer.self_attn
    attention.qkv_proj = QKVParallelLinear(
        attention.qkv_proj.hidden_size,
        attention.head_dim,
        attention.total_num_heads,
        attention.total_num_kv_heads,
        bias=True,
        quant_config=quant_config,
        prefix=prefix,
    )


def _add_mlp_bias(layer: Any, config: Any, quant_config: Any, prefix: str) -> None:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    layer.mlp.gate_up_proj = MergedColumnParallelLinear(
        hidden, [intermediate] * 2, bias=True, quant_config=quant_config, prefix=f"{prefix}.gate_up_proj"
    )
    layer.mlp.down_proj = RowParallelLinear(
        intermediate, hidden, bias=True, quant_config=quant_config, prefix=f"{prefix}.down_proj"
    )
    layer.mlp.__class__ = BiasedMLP


def _add_qk_norm(layer: Any, config: Any) -> None:
    attention = layer.self_attn
    attention.q_norm = RMSNorm(attention.head_dim, eps=config.rms_norm_eps)
    attention.k_norm = RMSNorm(attention.head_dim, eps=config.rms_norm_eps)
    attention.__class__ = QKNormAttention


def _set_sliding_windows(layers: Any, keys_seen: list[int | None] | None) -> list[int] | None:
    """Gives each layer its window; returns the windows set, or None where the config says nothing.

    SGLang counts the keys before the query, the config the keys that the query sees, itself included. What the
    config says counts, whatever `--speculative-draft-window-size` says.
    """
    if keys_seen is None:
        return None
    if len(keys_seen) != len(layers):
        raise ValueError(
            f"eagle3_export.sliding_window has {len(keys_seen)} entries for {len(layers)} draft layers."
        )
    for layer, seen in zip(layers, keys_seen, strict=True):
        layer.self_attn.attn.sliding_window_size = -1 if seen is None else seen - 1
    return [seen - 1 for seen in keys_seen if seen is not None]


EntryClass = [LlamaForCausalLMEagle3, Eagle3ExportLlamaForCausalLM]
