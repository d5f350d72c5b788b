"""A world small enough to train in on a CPU within seconds: a random Llama verifier and its hidden states on disk.

Everything is written in the formats that the real tools read: the verifier by transformers, the data as speculators'
offline format (``speculators.train.data.ArrowDataset``, speculators 0.9.0).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

AUX_LAYERS = (2, 4, 5)
VOCABULARY = 128


@dataclass(frozen=True, slots=True)
class TinyWorld:
    """Where a verifier and the hidden states it produced lie."""

    verifier: Path
    data: Path


def make_world(directory: Path, *, seed: int = 0, sequences: int = 40, tokens: int = 32) -> TinyWorld:
    """Write a verifier and offline data below ``directory``; takes about two seconds once torch is imported."""
    verifier = make_verifier(directory / "verifier", seed=seed)
    return TinyWorld(verifier, make_data(directory / "data", verifier, sequences=sequences, tokens=tokens))


def make_verifier(directory: Path, *, seed: int = 0, **overrides: Any) -> Path:
    """Save a random Llama (8 layers, hidden size 64, vocabulary 128, float32) with transformers.

    Args:
        directory: made if missing.
        seed: for the weights.
        overrides: LlamaConfig fields to change.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes: dict[str, Any] = {
        "vocab_size": VOCABULARY,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 8,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "max_position_embeddings": 512,
        "tie_word_embeddings": False,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "initializer_range": 0.1,
    }
    torch.manual_seed(seed)
    model = LlamaForCausalLM(LlamaConfig(**{**sizes, **overrides}))
    model.save_pretrained(directory)
    return directory


def make_data(
    directory: Path, verifier: Path, *, sequences: int = 40, tokens: int = 32, seed: int = 1
) -> Path:
    """Write offline training data: greedy continuations of random prompts and the hidden states behind them.

    Per sequence i, ``hidden_states/hs_<i>.safetensors`` holds ``token_ids`` [tokens] int64 and ``hidden_states``
    [tokens, 4, hidden] bfloat16: the inputs of layers 2, 4 and 5, then the last layer's output before the final norm.
    """
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file
    from transformers import LlamaForCausalLM

    model = LlamaForCausalLM.from_pretrained(verifier).eval()
    vocabulary = model.config.vocab_size
    generator = torch.Generator().manual_seed(seed)
    ids = torch.randint(3, vocabulary, (sequences, 4), generator=generator)
    before_norm: list[torch.Tensor] = []
    model.model.norm.register_forward_pre_hook(lambda _, args: before_norm.append(args[0]))
    with torch.no_grad():
        while ids.shape[1] < tokens:
            ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], dim=1)
        states = model(ids, output_hidden_states=True).hidden_states
    layers = torch.stack([*(states[i] for i in AUX_LAYERS), before_norm[-1]], dim=2).to(torch.bfloat16)

    (directory / "hidden_states").mkdir(parents=True)
    for i in range(sequences):
        save_file(
            {"token_ids": ids[i].contiguous(), "hidden_states": layers[i].contiguous()},
            directory / "hidden_states" / f"hs_{i}.safetensors",
        )
    mask = [[0] * 4 + [1] * (tokens - 4)] * sequences
    dataset = Dataset.from_dict(
        {"input_ids": ids.tolist(), "loss_mask": mask, "seq_len": [tokens] * sequences}
    )
    dataset.set_format("torch")
    dataset.save_to_disk(directory)
    counts = torch.bincount(ids.flatten(), minlength=vocabulary)
    torch.save({token: int(count) for token, count in enumerate(counts)}, directory / "token_freq.pt")
    return directory


def train_flags(world: TinyWorld, save_path: Path, **changes: Any) -> dict[str, Any]:
    """The ``speculators train`` options that train on a CPU, as a mapping of destination to value.

    ``draft_vocab_size`` 96 of 128, four optimizer steps an epoch, two validation batches. A change to None leaves an
    option out.
    """
    flags: dict[str, Any] = {
        "speculator_type": "eagle3",
        "verifier_name_or_path": str(world.verifier),
        "data_path": str(world.data),
        "save_path": str(save_path),
        "log_dir": str(save_path) + "-logs",
        "target_layer_ids": list(AUX_LAYERS),
        "draft_vocab_size": 96,
        "mask_token_id": 0,
        "total_seq_len": 256,
        "train_data_ratio": 0.8,
        "epochs": 2,
        "lr": 0.003,
        "optimizer": "adamw",
        "draft_attn_impl": "eager",
        "loss_implementation": "eager",
        "hidden_states_dtype": "float32",
        "num_workers": 0,
        "on_missing": "raise",
        "norm_before_residual": False,
    }
    return {key: value for key, value in {**flags, **changes}.items() if value is not None}


def as_arguments(flags: Mapping[str, Any]) -> list[str]:
    """Spell options as command-line arguments: ``--epochs 2``, ``--save-best``, ``--no-norm-before-residual``."""
    arguments: list[str] = []
    for key, value in flags.items():
        name = key.replace("_", "-")
        if isinstance(value, bool):
            arguments.append(f"--{name}" if value else f"--no-{name}")
        elif isinstance(value, (list, tuple)):
            arguments += [f"--{name}", *map(str, value)]
        else:
            arguments += [f"--{name}", str(value)]
    return arguments


def train_arguments(world: TinyWorld, save_path: Path, **changes: Any) -> list[str]:
    """The arguments of a CPU training run: see ``train_flags``."""
    return as_arguments(train_flags(world, save_path, **changes))


def in_float32(checkpoint: Path, directory: Path) -> Path:
    """Copy a saved draft with its tensors in float32, as a CPU needs them to start from (`from_pretrained`)."""
    import json

    from safetensors.torch import load_file, save_file

    directory.mkdir(parents=True)
    tensors = load_file(checkpoint / "model.safetensors")
    wide = {name: t.float() if t.is_floating_point() else t for name, t in tensors.items()}
    save_file(wide, directory / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((checkpoint / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps({**config, "dtype": "float32"}))
    return directory
