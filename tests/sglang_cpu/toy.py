"""A toy verifier and toy drafts for the serving tests: real transformers and speculators classes, small.

Both are trained for a few seconds on a simple language, so that a draft that is served as trained is accepted
nearly always and one that is not shows it.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

VOCAB = 128
HIDDEN = 64
LAYERS = 8
HEADS = 4
AUX_LAYER_IDS = (2, 4, 5)


def sentences(count: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token ids [count, length], the next one mostly a function of the last, sometimes of the last two."""
    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (count, 2), generator=generator)
    for _ in range(length - 2):
        last, before = tokens[:, -1], tokens[:, -2]
        following = torch.where(last % 8 == 0, last * 5 + before + 11, last * 5 + 7) % VOCAB
        tokens = torch.cat([tokens, following[:, None]], dim=1)
    return tokens


def make_verifier(folder: Path, *, steps: int = 60, seed: int = 0, **changes: Any) -> Path:
    """Train a toy Llama verifier and save it in float32."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    sizes: dict[str, Any] = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": 2 * HIDDEN,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS // 2,
        "head_dim": HIDDEN // HEADS,
        "max_position_embeddings": 1024,
        "tie_word_embeddings": False,
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    model = LlamaForCausalLM(LlamaConfig(**(sizes | changes)))
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for step in range(steps):
        batch = sentences(8, 32, seed=1000 + step)
        loss = model(input_ids=batch, labels=batch).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


def prompts(count: int = 4, length: int = 12) -> list[list[int]]:
    """Prompts that training did not see."""
    return [row.tolist() for row in sentences(count, length, seed=99)]


def greedy(verifier: Path, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Greedy continuation by transformers, without a cache: the reference for SGLang's."""
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    tokens = torch.tensor([list(prompt)])
    with torch.no_grad():
        for _ in range(new_tokens):
            tokens = torch.cat([tokens, model(tokens).logits[:, -1:].argmax(-1)], dim=1)
    generated: list[int] = tokens[0, len(prompt) :].tolist()
    return generated


ROPE = {
    "default": {"rope_type": "default", "rope_theta": 500000.0},
    "linear": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 500000.0,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "yarn": {
        "rope_type": "yarn",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "factor": 4.0,
        "original_max_position_embeddings": 256,
    },
}


def random_draft(
    folder: Path,
    *,
    arch: str = "llama",
    layers: int = 1,
    heads: int = HEADS,
    kv_heads: int = HEADS // 2,
    head_dim: int = HIDDEN // HEADS,
    draft_vocab: int = VOCAB // 2,
    aux_layer_ids: Sequence[int] = AUX_LAYER_IDS,
    rope: str = "default",
    windows: Sequence[int | None] | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    verifier: Path | str = "toy-verifier",
    seed: int = 0,
    **flags: bool,
) -> Path:
    """Save a speculators draft in float32 whose every parameter matters: no zero biases, no norm weights of one.

    Args:
        windows: per layer the keys that a query sees, None for all.
        flags: of speculators' Eagle3SpeculatorConfig: norm_before_residual, norm_before_fc, fc_norm, norm_output,
            embed_requires_grad.
    """
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    torch.manual_seed(seed)
    rope_parameters = dict(ROPE[rope])
    if rope == "longrope":
        half = head_dim // 2
        rope_parameters |= {
            "short_factor": [1.0 + 0.1 * i for i in range(half)],
            "long_factor": [1.0 + 0.5 * i for i in range(half)],
        }
    windows = list(windows) if windows is not None else [None] * layers
    seen = next((window for window in windows if window is not None), None)
    kinds: dict[str, Any] = (
        {"mlp_bias": mlp_bias} if arch == "llama" else {"use_sliding_window": seen is not None}
    )
    decoder = (LlamaConfig if arch == "llama" else Qwen3Config)(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        head_dim=head_dim,
        max_position_embeddings=1024,
        rope_parameters=rope_parameters,
        attention_bias=attention_bias,
        tie_word_embeddings=False,
        sliding_window=seen,
        layer_types=["full_attention" if window is None else "sliding_attention" for window in windows],
        **kinds,
    )
    config = Eagle3SpeculatorConfig(
        transformer_layer_config=decoder,
        draft_vocab_size=draft_vocab,
        eagle_aux_hidden_state_layer_ids=list(aux_layer_ids),
        speculators_config=SpeculatorsConfig(
            algorithm="eagle3",
            proposal_methods=[GreedyTokenProposalConfig(speculative_tokens=3)],
            default_proposal_method="greedy",
            verifier=VerifierConfig(name_or_path=str(verifier), architectures=["LlamaForCausalLM"]),
        ),
        **flags,
    )
    model = Eagle3DraftModel(config).float()
    for name, parameter in model.named_parameters():
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=0.3)
    if model.d2t is not None:
        chosen = torch.randperm(VOCAB)[:draft_vocab].sort().values
        model.d2t.copy_(chosen - torch.arange(draft_vocab))
        model.t2d[chosen] = True
    model.save_pretrained(folder)
    return folder
