"""A toy language of easy and hard stretches, a verifier that speaks it, and answers that it wrote greedily.

Each stretch runs through words of its own, one following from the other. Of the words of hard stretches a reduced draft
vocabulary leaves half out. A mean over positions and a mean over verify steps differ widely on such text.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
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
    """Trains a toy Llama verifier on the language and saves it in float32, with weights that bfloat16 holds too.

    A trainer saves its frozen copies of these weights in bfloat16: so they are the same in every hand.
    """
    from safetensors.torch import load_file, save_file

    toy.make_verifier(folder, steps=steps, text=lambda step: text(16, 16, seed=1000 + step))
    weights = load_file(folder / "model.safetensors")
    rounded = {name: tensor.bfloat16().float() for name, tensor in weights.items()}
    save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@dataclass
class Document:
    """A conversation with the verifier.

    Attributes:
        tokens: all ids.
        answers: first and last place + 1 of every answer in it. One that is shorter than `longest` ended by the
            end-of-sequence token, which is its last.
        longest: tokens of an answer at most.
    """

    tokens: list[int]
    longest: int
    answers: list[tuple[int, int]] = field(default_factory=list)

    @property
    def mask(self) -> list[int]:
        """1 for the tokens of an answer."""
        return [int(any(first <= n < end for first, end in self.answers)) for n in range(len(self.tokens))]

    def ask(self, prompt: list[int]) -> None:
        """Appends a prompt and begins an answer."""
        self.tokens += prompt
        self.answers.append((len(self.tokens), len(self.tokens)))

    def hear(self, token: int) -> None:
        """Appends a token of the answer."""
        self.tokens.append(token)
        self.answers[-1] = (self.answers[-1][0], len(self.tokens))

    @property
    def ended(self) -> bool:
        """Whether the last answer is complete."""
        first, end = self.answers[-1]
        return end - first == self.longest or (end > first and self.tokens[-1] == toy.EOS)


def make_answers(folder: Path, verifier: Path, *, count: int, longest: int, seed: int = 7) -> list[Document]:
    """Writes conversations with the verifier, and the states behind them, as speculators' offline data.

    Every third has two turns, and the answers of every fourth are shorter by a third.

    Args:
        folder: becomes the data directory.
        verifier: of `make_verifier`.
        count: documents.
        longest: tokens of an answer at most.
        seed: of the prompts.
    """
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    model: Any = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    prompts = text(2 * count, PROMPT, seed=seed).tolist()
    documents = [Document([], longest if n % 4 else longest - longest // 3) for n in range(count)]
    for turn, asked in enumerate((documents, documents[::3])):
        for n, document in enumerate(asked):
            document.ask(prompts[turn * count + n])
        _answer(model, asked)
    before_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    with torch.no_grad():
        states = model(_padded(documents), output_hidden_states=True).hidden_states
    layers = torch.stack([*(states[layer] for layer in AUX_LAYERS), before_norm[-1]], dim=2)
    (folder / "hidden_states").mkdir(parents=True)
    for n, document in enumerate(documents):
        size = len(document.tokens)
        save_file(
            {"token_ids": torch.tensor(document.tokens), "hidden_states": layers[n, :size].contiguous()},
            folder / "hidden_states" / f"hs_{n}.safetensors",
        )
    dataset = Dataset.from_dict(
        {
            "input_ids": [document.tokens for document in documents],
            "loss_mask": [document.mask for document in documents],
            "seq_len": [len(document.tokens) for document in documents],
        }
    )
    dataset.set_format("torch")
    dataset.save_to_disk(folder)
    counts = Counter(token for document in documents for token in document.tokens)
    torch.save({token: counts[token] for token in range(toy.VOCAB)}, folder / "token_freq.pt")
    return documents


def _answer(model: Any, documents: list[Document]) -> None:
    """Greedy answers of the model to the last prompts; what stands right of a token changes nothing for it."""
    import torch

    while going := [document for document in documents if not document.ended]:
        with torch.no_grad():
            choices = model(_padded(going)).logits.argmax(-1)
        for document, row in zip(going, choices.tolist(), strict=True):
            document.hear(row[len(document.tokens) - 1])


def _padded(documents: list[Document]) -> torch.Tensor:
    import torch

    length = max(len(document.tokens) for document in documents)
    return torch.tensor([[*d.tokens, *[0] * (length - len(d.tokens))] for d in documents])
