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
