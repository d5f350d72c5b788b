"""Chain drafting in plain PyTorch, independent of SGLang, of speculators' model code and of this package.

The draft's weights and config are read straight from the speculators checkpoint, the target runs in transformers.
Nothing is cached: every step computes all positions anew, in float32.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch.nn.functional import linear, silu

Tensor = torch.Tensor


@dataclass
class Simulated:
    """What one prompt gave.

    Attributes:
        output_ids: the tokens, equal to greedy decoding by the target.
        histogram: index n counts the verify steps that accepted n draft tokens.
    """

    output_ids: list[int]
    histogram: list[int]


class PlainDraft:
    """An EAGLE-3 draft of speculators, written out."""

    def __init__(self, checkpoint: Path) -> None:
        self.weights = {
            name: tensor.float() for name, tensor in load_file(checkpoint / "model.safetensors").items()
        }
        config = json.loads((checkpoint / "config.json").read_text())
        self.config, self.decoder = config, config["transformer_layer_config"]
        # absent from transformers' diff: the config class's default
        self.eps: float = self.decoder.get("rms_norm_eps", 1e-6)
        self.head_dim: int = self.decoder["head_dim"]
        rope = self.decoder["rope_parameters"]
        assert rope["rope_type"] == "default"
        exponents = torch.arange(0, self.head_dim, 2).float() / self.head_dim
        self.frequencies = 1.0 / rope["rope_theta"] ** exponents

    def project(self, aux: Tensor) -> Tensor:
        """Aux hidden states [positions, aux layers * hidden] to [positions, hidden]."""
        if self.config.get("norm_before_fc"):
            aux = self._norm("input_norm", aux)
        if self.config.get("fc_norm"):
            count = len(self.config["eagle_aux_hidden_state_layer_ids"])
            aux = torch.cat(
                [self._norm(f"fc_norm.{i}", part) for i, part in enumerate(aux.chunk(count, -1))], -1
            )
        return linear(aux, self.weights["fc.weight"])

    def draft(self, aux: Tensor, tokens: Tensor, steps: int) -> list[int]:
        """The `steps` tokens that follow. `tokens[j]` is the token after the one that gave `aux[j]`."""
        hidden, drafted = self.project(aux), []
        for _ in range(steps):
            output = self._layers(hidden, tokens)[-1:]
            normed = self._norm("norm", output)
            choice = int(linear(normed, self.weights["lm_head.weight"]).argmax())
            choice += int(self.weights["d2t"][choice]) if "d2t" in self.weights else 0
            drafted.append(choice)
            recurrent = normed if self.config.get("norm_output") else output
            hidden = torch.cat([hidden, recurrent])
            tokens = torch.cat([tokens, torch.tensor([choice])])
        return drafted

    def _layers(self, hidden: Tensor, tokens: Tensor) -> Tensor:
        for index in range(self.decoder["num_hidden_layers"]):
            hidden = self._layer(index, hidden, tokens)
        return hidden

    def _layer(self, index: int, hidden: Tensor, tokens: Tensor) -> Tensor:
        name, residual = f"layers.{index}", hidden
        if index == 0:
            embeds = self._norm(f"{name}.input_layernorm", self.weights["embed_tokens.weight"][tokens])
            normed = self._norm(f"{name}.hidden_norm", hidden)
            residual = normed if self.config.get("norm_before_residual") else hidden
            hidden = torch.cat([embeds, normed], dim=-1)
        else:
            hidden = self._norm(f"{name}.input_layernorm", hidden)
        hidden = residual + self._attention(index, hidden)
        normed = self._norm(f"{name}.post_attention_layernorm", hidden)
        gated = silu(self._linear(f"{name}.mlp.gate_proj", normed)) * self._linear(
            f"{name}.mlp.up_proj", normed
        )
        return hidden + self._linear(f"{name}.mlp.down_proj", gated)

    def _attention(self, index: int, hidden: Tensor) -> Tensor:
        name, count = f"layers.{index}.self_attn", len(hidden)
        q, k, v = (
            self._linear(f"{name}.{part}_proj", hidden).view(count, -1, self.head_dim).transpose(0, 1)
            for part in "qkv"
        )
        if f"{name}.q_norm.weight" in self.weights:
            q, k = self._norm(f"{name}.q_norm", q), self._norm(f"{name}.k_norm", k)
        q, k = self._rotate(q), self._rotate(k)
        k, v = (t.repeat_interleave(len(q) // len(t), dim=0) for t in (k, v))
        query_at, key_at = torch.arange(count)[:, None], torch.arange(count)[None, :]
        sees = key_at <= query_at
        kinds = self.decoder.get("layer_types") or ["full_attention"] * (index + 1)
        if kinds[index] == "sliding_attention":
            sees &= key_at > query_at - self.decoder["sliding_window"]
        scores = (q @ k.transpose(-1, -2) * self.head_dim**-0.5).masked_fill(~sees, float("-inf"))
        mixed = (torch.softmax(scores, -1) @ v).transpose(0, 1).reshape(count, -1)
        return self._linear(f"{name}.o_proj", mixed)

    def _rotate(self, x: Tensor) -> Tensor:
        angles = torch.arange(x.shape[1]).float()[:, None] * self.frequencies
        cos, sin = torch.cat([angles.cos()] * 2, -1), torch.cat([angles.sin()] * 2, -1)
        first, second = x.chunk(2, dim=-1)
        return x * cos + torch.cat([-second, first], -1) * sin

    def _norm(self, name: str, x: Tensor) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps) * self.weights[f"{name}.weight"]

    def _linear(self, name: str, x: Tensor) -> Tensor:
        return linear(x, self.weights[f"{name}.weight"], self.weights.get(f"{name}.bias"))


class Target:
    """A transformers model that gives greedy choices and the inputs of some of its layers."""

    def __init__(self, folder: Path, aux_layer_ids: Sequence[int]) -> None:
        from transformers import AutoModelForCausalLM

        self.model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        self.aux_layer_ids = list(aux_layer_ids)

    def run(self, tokens: Sequence[int]) -> tuple[list[int], Tensor]:
        """The greedy next token after each position, and the aux hidden states [positions, layers * hidden]."""
        output = self.model(torch.tensor([list(tokens)]), output_hidden_states=True)
        aux = torch.cat([output.hidden_states[layer][0] for layer in self.aux_layer_ids], dim=-1)
        choices: list[int] = output.logits[0].argmax(-1).tolist()
        return choices, aux

    def go_on(self, tokens: Sequence[int], count: int) -> list[int]:
        """The tokens, and so many greedy ones after them."""
        longer = list(tokens)
        for _ in range(count):
            longer.append(self.run(longer)[0][-1])
        return longer


@torch.no_grad()
def accepted_from(
    target: Target, draft: PlainDraft, prompt: Sequence[int], answer: Sequence[int], num_steps: int
) -> list[int]:
    """For every token of a greedy answer, the drafts in a row that the target confirms after it.

    Args:
        target: wrote the answer.
        draft: drafts `num_steps` tokens at every place.
        prompt: token ids.
        answer: token ids. The target goes on where it ends, so that its last chains are confirmed in full too.
        num_steps: drafts per chain.
    """
    tokens = target.go_on([*prompt, *answer], num_steps)
    _, aux = target.run(tokens)
    accepted = []
    for known in range(len(prompt) + 1, len(prompt) + len(answer) + 1):
        drafted = draft.draft(aux[: known - 1], torch.tensor(tokens[1:known]), num_steps)
        right = [one == other for one, other in zip(drafted, tokens[known:], strict=False)]
        accepted.append([*right, False].index(False))
    return accepted


def with_the_targets_embedding(draft: PlainDraft, target: Target) -> PlainDraft:
    """The draft's is the target's, frozen, and perhaps rounded when it was saved."""
    if not draft.config.get("embed_requires_grad"):
        draft.weights["embed_tokens.weight"] = target.model.get_input_embeddings().weight
    return draft


@torch.no_grad()
def simulate(
    target_folder: Path,
    checkpoint: Path,
    num_steps: int,
    prompts: Sequence[Sequence[int]],
    max_new_tokens: int,
) -> list[Simulated]:
    """Greedy speculative decoding with a chain of `num_steps` drafts, one prompt after the other."""
    draft = PlainDraft(checkpoint)
    target = Target(target_folder, draft.config["eagle_aux_hidden_state_layer_ids"])
    with_the_targets_embedding(draft, target)
    return [_decode(target, draft, num_steps, prompt, max_new_tokens) for prompt in prompts]


def _decode(
    target: Target, draft: PlainDraft, num_steps: int, prompt: Sequence[int], max_new_tokens: int
) -> Simulated:
    choices, aux = target.run(prompt)
    tokens = [*prompt, choices[-1]]
    histogram = [0] * (num_steps + 1)
    while len(tokens) - len(prompt) < max_new_tokens:
        drafted = draft.draft(aux, torch.tensor(tokens[1:]), num_steps)
        choices, aux = target.run([*tokens, *drafted])
        at = len(tokens) - 1  # choices[at] is the target's word on the first draft
        accepted = 0
        while accepted < num_steps and drafted[accepted] == choices[at + accepted]:
            accepted += 1
        tokens += [*drafted[:accepted], choices[at + accepted]]
        aux = aux[: len(tokens) - 1]
        histogram[accepted] += 1
    return Simulated(tokens[len(prompt) :][:max_new_tokens], histogram)
