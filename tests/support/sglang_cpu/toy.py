"""A toy verifier and toy drafts for the serving tests: real transformers and speculators classes, small.

The heavy imports are inside the functions, so that collecting tests stays fast.
Both are trained for a few seconds on a simple language, so that a draft that is served as trained is accepted
nearly always and one that is not shows it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VOCAB = 128
HIDDEN = 64
LAYERS = 8
HEADS = 4
AUX_LAYER_IDS = (2, 4, 5)
EOS = 1


def sentences(count: int, length: int, seed: int = 0) -> torch.Tensor:
    """Token ids [count, length], the next one mostly a function of the last, sometimes of the last two."""
    import torch

    generator = torch.Generator().manual_seed(seed)
    tokens = torch.randint(0, VOCAB, (count, 2), generator=generator)
    for _ in range(length - 2):
        last, before = tokens[:, -1], tokens[:, -2]
        following = torch.where(last % 8 == 0, last * 5 + before + 11, last * 5 + 7) % VOCAB
        tokens = torch.cat([tokens, following[:, None]], dim=1)
    return tokens


def make_verifier(
    folder: Path, *, steps: int = 80, seed: int = 0, text: Callable[[int], torch.Tensor] | None = None
) -> Path:
    """Train a toy Llama verifier and save it in float32.

    Args:
        text: token ids [sequences, tokens] to train on, by step; `sentences` where None.
    """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=VOCAB,
        hidden_size=HIDDEN,
        intermediate_size=2 * HIDDEN,
        num_hidden_layers=LAYERS,
        num_attention_heads=HEADS,
        num_key_value_heads=HEADS // 2,
        head_dim=HIDDEN // HEADS,
        max_position_embeddings=1024,
        initializer_range=0.06,
        tie_word_embeddings=False,
        bos_token_id=0,
        eos_token_id=EOS,
    )
    model = LlamaForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        batch = text(step) if text else sentences(16, 16, seed=1000 + step)
        _descend(optimizer, model(input_ids=batch, labels=batch).loss)
    model.save_pretrained(folder)
    return folder


def _descend(optimizer: torch.optim.Optimizer, loss: torch.Tensor) -> None:
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()


def prompts(count: int = 4, length: int = 12) -> list[list[int]]:
    """Prompts that training did not see."""
    return [row.tolist() for row in sentences(count, length, seed=99)]


def greedy(verifier: Path, prompt: Sequence[int], new_tokens: int) -> list[int]:
    """Greedy continuation by transformers, without a cache: the reference for SGLang's."""
    import torch
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


def build_draft(
    *,
    arch: str = "llama",
    layers: int = 1,
    heads: int = HEADS,
    kv_heads: int = HEADS // 2,
    head_dim: int = HIDDEN // HEADS,
    draft_vocab: int = VOCAB // 2,
    aux_layer_ids: Sequence[int] = AUX_LAYER_IDS,
    rope: str = "default",
    rope_changes: dict[str, Any] | None = None,
    windows: Sequence[int | None] | None = None,
    attention_bias: bool = False,
    mlp_bias: bool = False,
    verifier: Path | str = "toy-verifier",
    **flags: bool,
) -> Any:
    """Speculators' `Eagle3DraftModel` in float32, weights as its constructor leaves them.

    Args:
        rope: a key of ROPE, with `rope_changes` to its parameters.
        windows: per layer the keys that a query sees, None for all.
        flags: of speculators' Eagle3SpeculatorConfig: norm_before_residual, norm_before_fc, fc_norm, norm_output,
            embed_requires_grad.
    """
    from speculators import SpeculatorsConfig, VerifierConfig
    from speculators.models.eagle3 import Eagle3DraftModel, Eagle3SpeculatorConfig
    from speculators.proposals.greedy import GreedyTokenProposalConfig
    from transformers import LlamaConfig, Qwen3Config

    windows = list(windows) if windows is not None else [None] * layers
    window = next((window for window in windows if window is not None), None)
    kinds: dict[str, Any] = (
        {"mlp_bias": mlp_bias} if arch == "llama" else {"use_sliding_window": window is not None}
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
        rope_parameters=rope_parameters(rope, head_dim) | (rope_changes or {}),
        attention_bias=attention_bias,
        tie_word_embeddings=False,
        sliding_window=window,
        layer_types=["full_attention" if window is None else "sliding_attention" for window in windows],
        **kinds,
    )
    decoder._attn_implementation = "eager"
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
    return Eagle3DraftModel(config).float()


def rope_parameters(rope: str, head_dim: int) -> dict[str, Any]:
    """A copy of ROPE[rope], with longrope's factors per rotated pair."""
    parameters = dict(ROPE[rope])
    if rope == "longrope":
        pairs = range(head_dim // 2)
        parameters["short_factor"] = [1.0 + 0.1 * pair for pair in pairs]
        parameters["long_factor"] = [1.0 + 0.5 * pair for pair in pairs]
    return parameters


def random_draft(folder: Path, *, seed: int = 0, **choices: Any) -> Path:
    """Save a draft whose every parameter matters: no zero biases, no norm weights of one.

    Args:
        choices: of `build_draft`.
    """
    import torch

    torch.manual_seed(seed)
    model = build_draft(**choices)
    for name, parameter in model.named_parameters():
        # larger matrices would amplify float32's rounding from layer to layer and from step to step
        std = 0.3 if parameter.dim() == 1 else HIDDEN**-0.5
        torch.nn.init.normal_(parameter, mean=1.0 if "norm" in name else 0.0, std=std)
    _choose_vocabulary(model, torch.randperm(VOCAB)[: model.draft_vocab_size].sort().values)
    model.save_pretrained(folder)
    return folder


def trained_draft(folder: Path, verifier: Path, *, steps: int = 60, seed: int = 0, **choices: Any) -> Path:
    """Train a draft for a few seconds with speculators' own forward and loss, and save it in float32.

    Args:
        choices: of `build_draft`.
    """
    import torch
    from speculators.losses import resolve_loss_config
    from transformers import LlamaForCausalLM

    torch.manual_seed(seed)
    target = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    model = build_draft(verifier=verifier, **choices)
    # the language's most frequent tokens would be chosen in a real run; here any
    _choose_vocabulary(model, torch.arange(model.draft_vocab_size))
    model.load_verifier_weights()
    for name, parameter in model.named_parameters():
        if "bias" in name:
            torch.nn.init.normal_(parameter, std=0.1)
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=5e-3)
    loss_config = resolve_loss_config("ce", "eager")
    for step in range(steps):
        batch = training_batch(target, sentences(8, 24, seed=5000 + step), model.target_layer_ids)
        _, loss, _ = model(**batch, ttt_steps=3, loss_config=loss_config)
        _descend(optimizer, loss)
    model.save_pretrained(folder)
    return folder


def training_batch(
    target: Any, tokens: torch.Tensor, aux_layer_ids: Sequence[int]
) -> dict[str, torch.Tensor]:
    """One packed batch as speculators' data pipeline shapes it: (token j + 1, aux states j, last state j + 1)."""
    import torch

    with torch.no_grad():
        captured: list[torch.Tensor] = []
        hook = target.model.norm.register_forward_pre_hook(lambda _module, inputs: captured.append(inputs[0]))
        states = target.model(tokens, output_hidden_states=True).hidden_states
        hook.remove()
    aux = torch.cat([states[layer] for layer in aux_layer_ids], dim=-1)
    count, length = tokens.shape[0], tokens.shape[1] - 1
    return {
        "hidden_states": aux[:, :-1].reshape(1, count * length, -1),
        "input_ids": tokens[:, 1:].reshape(1, -1),
        "verifier_last_hidden_states": captured[0][:, 1:].reshape(1, count * length, -1),
        "document_ids": torch.arange(count).repeat_interleave(length)[None],
        "position_ids": torch.arange(1, length + 1).repeat(count)[None],
        "loss_mask": torch.ones(1, count * length, dtype=torch.bool),
    }


def _choose_vocabulary(model: Any, chosen: torch.Tensor) -> None:
    import torch

    if model.d2t is None:
        return
    model.d2t.copy_(chosen - torch.arange(len(chosen)))
    model.t2d.fill_(False)
    model.t2d[chosen] = True
