"""A toy language of easy and hard stretches, a verifier that speaks it, and answers that it wrote greedily.

Each stretch runs through words of its own, one following from the other. Of the words of hard stretches a reduced draft
vocabulary leaves half out. A mean over positions and a mean over verify steps differ widely on such text.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from tests.support.sglang_cpu import toy
from tests.support.training.tiny_world import AUX_LAYERS

if TYPE_CHECKING:
    import torch

HALF = toy.VOCAB // 2
PROMPT = 6


def successor(word: int) -> int:
    """The word that follows: 40 words of an easy stretch (ids below 64), then 40 of a hard one, and so on."""
    stretch, word = divmod(word, HALF)
    factor, shift, first = ((5, 7, 3), (13, 9, 11))[stretch]
    others_first = (11, 3)[stretch]
    last = first
    for _ in range(39):
        last = (factor * last + shift) % HALF
    if word == last:
        return others_first + HALF * (1 - stretch)
    return (factor * word + shift) % HALF + HALF * stretch


SUCCESSORS = [successor(word) for word in range(toy.VOCAB)]


def text(count: int, length: int, seed: int) -> torch.Tensor:
    """Token ids [count, length], from any word on."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    follow = torch.tensor(SUCCESSORS)
    tokens = [torch.randint(0, toy.VOCAB, (count,), generator=generator)]
    for _ in range(length - 1):
        tokens.append(follow[tokens[-1]])
    return torch.stack(tokens, dim=1)


def make_verifier(folder: Path, *, steps: int = 80) -> Path:
    """Trains a toy Llama verifier on the language and saves it in float32."""
    return toy.make_verifier(folder, steps=steps, text=lambda step: text(16, 16, seed=1000 + step))


def make_answers(folder: Path, verifier: Path, *, count: int, length: int, seed: int = 7) -> list[list[int]]:
    """Writes answers of the verifier's own, with the states behind them, as speculators' offline data.

    Args:
        folder: becomes the data directory.
        verifier: of `make_verifier`.
        count: documents.
        length: tokens of each, the prompt's six included. Every third is shorter by a quarter.
        seed: of the prompts.

    Returns:
        the documents' token ids.
    """
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    ids = text(count, PROMPT, seed=seed)
    before_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    with torch.no_grad():
        ids = model.generate(
            input_ids=ids, attention_mask=torch.ones_like(ids), do_sample=False, eos_token_id=None,
            max_new_tokens=length - PROMPT, min_new_tokens=length - PROMPT, pad_token_id=0,
        )  # fmt: skip
        before_norm.clear()
        states = model(ids, output_hidden_states=True).hidden_states
    layers = torch.stack([*(states[layer] for layer in AUX_LAYERS), before_norm[-1]], dim=2)
    (folder / "hidden_states").mkdir(parents=True)
    documents = []
    for n in range(count):
        size = length if n % 3 else length - length // 4
        save_file(
            {"token_ids": ids[n, :size].contiguous(), "hidden_states": layers[n, :size].contiguous()},
            folder / "hidden_states" / f"hs_{n}.safetensors",
        )
        documents.append(ids[n, :size].tolist())
    dataset = Dataset.from_dict(
        {
            "input_ids": documents,
            "loss_mask": [[0] * PROMPT + [1] * (len(document) - PROMPT) for document in documents],
            "seq_len": [len(document) for document in documents],
        }
    )
    dataset.set_format("torch")
    dataset.save_to_disk(folder)
    counts = torch.bincount(torch.tensor([token for document in documents for token in document]))
    torch.save({token: int(n) for token, n in enumerate(counts)}, folder / "token_freq.pt")
    return documents
