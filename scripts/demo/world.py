"""A small world to train drafts in: a verifier that has learnt real text, and its hidden states on disk.

Both functions are deterministic for a given size, machine and number of threads.
"""

from __future__ import annotations

import math
import shutil
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scripts.demo.corpus import read_corpus, token_rows, train_tokenizer

if TYPE_CHECKING:
    import torch
    from transformers import LlamaForCausalLM

Say = Callable[[str], None]


@dataclass(frozen=True)
class WorldSize:
    """How large the verifier is, how long it learns, and how much of its hidden states is written."""

    vocab_size: int = 1024
    hidden_size: int = 128
    intermediate_size: int = 384
    # SGLang's default aux layers coincide in models of six layers and fewer.
    num_layers: int = 8
    num_heads: int = 4
    num_kv_heads: int = 2
    row_length: int = 256  # tokens
    batch_rows: int = 4
    steps: int = 400
    # Nine in ten, which is speculators' default train_data_ratio.
    training_rows: int = 324
    held_out_rows: int = 36
    seed: int = 0


DEMO = WorldSize()


def train_verifier(directory: Path, size: WorldSize = DEMO, *, say: Say = print) -> Path:
    """Train a Llama-style model on this Python's documentation and save it with its tokenizer.

    Returns:
        `directory`, loadable by transformers, speculators and SGLang (float32 safetensors).
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(size.seed)
    corpus = read_corpus(seed=size.seed)
    tokenizer = train_tokenizer(corpus.training, size.vocab_size)
    rows = torch.tensor(token_rows(tokenizer, corpus.training, size.row_length))
    held_out = torch.tensor(token_rows(tokenizer, corpus.held_out, size.row_length)[:32])
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=size.vocab_size,
            hidden_size=size.hidden_size,
            intermediate_size=size.intermediate_size,
            num_hidden_layers=size.num_layers,
            num_attention_heads=size.num_heads,
            num_key_value_heads=size.num_kv_heads,
            max_position_embeddings=1024,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=None,
            tie_word_embeddings=False,
            dtype="float32",
        )
    )
    parameters = sum(parameter.numel() for parameter in model.parameters())
    say(
        f"verifier: {parameters / 1e6:.1f}M parameters, {size.num_layers} layers; text: "
        f"{len(corpus.training)} documents, {rows.numel():,} tokens, {len(corpus.held_out)} documents held out"
    )
    _learn(model, rows, size, say)
    say(
        f"verifier: loss on held-out text {_loss(model, held_out):.2f} (uniform: {math.log(size.vocab_size):.2f})"
    )
    model.save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return directory


def _learn(model: LlamaForCausalLM, rows: torch.Tensor, size: WorldSize, say: Say) -> None:
    """Muon for the matrices: on so few tokens it gets much further than AdamW does."""
    import torch

    layers = {id(parameter) for parameter in model.model.layers.parameters() if parameter.ndim == 2}
    others = [parameter for parameter in model.parameters() if id(parameter) not in layers]
    optimizers = [
        torch.optim.Muon([p for p in model.parameters() if id(p) in layers], lr=0.02, weight_decay=0.01),
        torch.optim.AdamW(others, lr=0.01, betas=(0.9, 0.95), weight_decay=0.01),
    ]

    def rate(step: int) -> float:
        """Rises for 20 steps, falls during the second half."""
        return min(1.0, (step + 1) / 20) * min(1.0, 0.02 + 2 * (1 - step / size.steps))

    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    generator = torch.Generator().manual_seed(size.seed)
    model.train()
    began = last = time.monotonic()
    for step in range(1, size.steps + 1):
        batch = rows[torch.randint(len(rows), (size.batch_rows,), generator=generator)]
        loss = model(input_ids=batch, labels=batch).loss
        model.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        if time.monotonic() - last > 5 or step == size.steps:
            last = time.monotonic()
            left = (last - began) / step * (size.steps - step)
            say(f"verifier: step {step}/{size.steps}, loss {loss.item():.2f}, {left:.0f} s left")
    model.eval()


def _loss(model: LlamaForCausalLM, rows: torch.Tensor) -> float:
    import torch

    with torch.inference_mode():
        return float(model(input_ids=rows, labels=rows).loss)


def write_offline_data(
    verifier: Path, directory: Path, aux_layer_ids: Sequence[int], size: WorldSize = DEMO, *, say: Say = print
) -> float:
    """Write what `speculators train --data-path` reads: token ids, hidden states, token frequencies.

    The rows of the training documents come first, those of the held-out ones last: speculators validates on the
    last part of a dataset (0.9.0, `speculators.train.data.ArrowDataset`).

    Args:
        aux_layer_ids: layers whose *inputs* the draft sees.

    Returns:
        The share of rows to train on, for `train_data_ratio`.
    """
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from speculators.train.vocab_mapping import save_token_frequency_distribution
    from transformers import AutoTokenizer, LlamaForCausalLM

    corpus = read_corpus(seed=size.seed)
    tokenizer: Any = AutoTokenizer.from_pretrained(verifier)
    training = _spread(token_rows(tokenizer, corpus.training, size.row_length), size.training_rows)
    held_out = _spread(token_rows(tokenizer, corpus.held_out, size.row_length), size.held_out_rows)
    rows = training + held_out

    # speculators caches a vocabulary map beside the data and would take an older run's for this one.
    shutil.rmtree(directory, ignore_errors=True)
    Dataset.from_dict(
        {
            "input_ids": rows,
            "loss_mask": [[1] * len(row) for row in rows],
            "seq_len": [len(row) for row in rows],
        }
    ).with_format("torch").save_to_disk(directory)
    (directory / "hidden_states").mkdir()

    model = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    last = time.monotonic()
    for start in range(0, len(rows), size.batch_rows):
        token_ids = torch.tensor(rows[start : start + size.batch_rows])
        for offset, states in enumerate(hidden_states(model, token_ids, aux_layer_ids)):
            save_file(
                {"token_ids": token_ids[offset].clone(), "hidden_states": states.contiguous()},
                directory / "hidden_states" / f"hs_{start + offset}.safetensors",
            )
        if time.monotonic() - last > 5:
            last = time.monotonic()
            say(f"hidden states: {start + len(token_ids)}/{len(rows)} rows")

    training_rows = Dataset.from_dict(
        {"input_ids": training, "loss_mask": [[1] * len(row) for row in training]}
    )
    save_token_frequency_distribution(training_rows.with_format("torch"), directory / "token_freq.pt")
    say(
        f"hidden states: {len(training)} rows to train on, {len(held_out)} held out, {size.row_length} tokens "
        f"each; inputs of layers {list(aux_layer_ids)} and the output of the last"
    )
    return len(training) / len(rows)


def hidden_states(
    model: LlamaForCausalLM, token_ids: torch.Tensor, aux_layer_ids: Sequence[int]
) -> torch.Tensor:
    """What a draft is trained on, for token ids [batch, seq].

    Returns:
        [batch, seq, n_aux + 1, hidden]: the inputs of the aux layers in layer order, then the final hidden state
        before the last norm.
    """
    import torch

    modules = [*(model.model.layers[index] for index in sorted(aux_layer_ids)), model.model.norm]
    with _captured_inputs(modules) as captured, torch.inference_mode():
        model(input_ids=token_ids, use_cache=False)
    return torch.stack([captured[module] for module in modules], dim=2)


@contextmanager
def _captured_inputs(modules: Sequence[Any]) -> Iterator[dict[Any, Any]]:
    captured: dict[Any, Any] = {}

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        captured[module] = args[0] if args else kwargs["hidden_states"]

    handles = [module.register_forward_pre_hook(keep, with_kwargs=True) for module in modules]
    try:
        yield captured
    finally:
        for handle in handles:
            handle.remove()


def held_out_prompts(verifier: Path, count: int, length: int, size: WorldSize = DEMO) -> list[list[int]]:
    """The beginnings of `count` held-out documents, `length` token ids each."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(verifier)
    documents: list[str] = read_corpus(seed=size.seed).held_out
    encoded = (tokenizer(document, add_special_tokens=False)["input_ids"] for document in documents)
    return [ids[:length] for ids in encoded if len(ids) >= length][:count]


def _spread(rows: list[list[int]], count: int) -> list[list[int]]:
    """`count` rows, evenly spaced over all of them."""
    count = min(count, len(rows))
    return [rows[index * len(rows) // count] for index in range(count)]
