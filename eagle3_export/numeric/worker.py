"""The process behind `numeric`: builds speculators' model and SGLang's class in float32 and compares logits.

Reads one JSON request on stdin, `{"plugin": bool, "cases": [NumericCase]}`, and prints one line per case.
SGLang's server is not started: its model class runs on its own configuration of one process, with a plain
attention in place of its kernels, which honours `sliding_window_size` as SGLang's backends do.
"""

from __future__ import annotations

import gc
import hashlib
import json
import sys
import traceback
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from eagle3_export.numeric.compare import RESULT_PREFIX
from eagle3_export.numeric.kernels import NoKernels, PlainAttention
from eagle3_export.numeric.trained_model import trained_model
from eagle3_export.ports import free_port
from eagle3_export.speculators_format.checkpoint import read_checkpoint

SEED = 20


def main() -> None:
    """Answers every case of the request, each on its own: one that fails does not stop the others."""
    request = json.load(sys.stdin)
    torch.set_grad_enabled(False)
    torch.set_default_dtype(torch.float32)
    start_sglang(plugin=request["plugin"])
    gc.freeze()  # SGLang collects garbage whenever an embedding is set: a second over all that is imported
    for case in request["cases"]:
        try:
            answer = compare_case(**case)
        except Exception as error:  # anything that either system raises is this case's answer
            traceback.print_exc()
            answer = {"problem": f"{type(error).__name__}: {error}"[:2000]}
        print(RESULT_PREFIX + json.dumps(answer), flush=True)


def compare_case(
    export: str, source: str, plugin: bool, draft_window: int | None, steps: int, context: int
) -> dict[str, Any]:
    """Fields of a NumericReport for one case; arguments as `numeric.NumericCase`."""
    model_class, config = resolve_served(Path(export))
    trained = load_trained(Path(source))
    served = load_served(Path(export), model_class, config, trained.embed_tokens.weight, draft_window)
    inputs = random_inputs(trained, context + steps)
    reference = trained_logits(trained, *inputs, steps)
    worst, digest = [0.0] * steps, hashlib.sha256()
    for length in sorted({2, context // 2 + 1, context}):
        logits = served_logits(served, *inputs, length, steps)
        for step in range(steps):
            digest.update(logits[step].contiguous().numpy().tobytes())
            # the prefill answers for every position, each decode step for the last one
            rows = slice(0, length) if step == 0 else slice(length - 1, length)
            worst[step] = max(worst[step], relative_difference(reference[step][rows], logits[step]))
    served_class = type(served)
    return {
        "served_class": f"{served_class.__module__}.{served_class.__name__}",
        "per_step": worst,
        "logits_digest": digest.hexdigest(),
    }


def relative_difference(expected: torch.Tensor, actual: torch.Tensor) -> float:
    """`max|a - b| / max|a|` of each row's logits, worst row; infinite where either is not finite."""
    if expected.shape != actual.shape:
        raise ValueError(f"logits of shape {tuple(actual.shape)} where training has {tuple(expected.shape)}")
    if not (torch.isfinite(expected).all() and torch.isfinite(actual).all()):
        raise ValueError("logits that are not finite")
    return float(((expected - actual).abs().amax(-1) / expected.abs().amax(-1)).max())


def random_inputs(trained: Any, length: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Token ids [length] and aux hidden states [length, aux layers * hidden], the same for both systems."""
    generator = torch.Generator().manual_seed(SEED)
    tokens = torch.randint(0, trained.verifier_vocab_size, (length,), generator=generator)
    return tokens, torch.randn(length, trained.fc.in_features, generator=generator)


# --- the trained side: speculators ---------------------------------------------------------------------


def load_trained(source: Path) -> Any:
    """Speculators' `Eagle3DraftModel` in float32, with the checkpoint's tensors."""
    return trained_model(read_checkpoint(source), "eager")


def trained_logits(
    model: Any, tokens: torch.Tensor, hidden_states: torch.Tensor, steps: int
) -> list[torch.Tensor]:
    """Logits [positions, draft vocabulary] of each TTT step, teacher-forced, from speculators' own forward.

    One thing is not as in training: at TTT step k speculators lets a query of a sliding-window layer see the window
    of step 0 and k drafted keys more, W + k in all. Drafting, in SGLang and in vLLM, sees the last W. So the masks
    here keep the last W; within the first W tokens the two are the same.
    """
    from unittest import mock

    from speculators.models.eagle3 import core

    build, extend = model._build_attn_mask, core.extend_dense_mask_for_draft_tokens

    def build_mask(*args: Any, **kwargs: Any) -> torch.Tensor:
        mask: torch.Tensor = build(*args, **kwargs)
        mask.window = args[3] if len(args) > 3 else kwargs.get("sliding_window")  # type: ignore[attr-defined]
        return mask

    def extend_mask(mask: torch.Tensor, length: int) -> torch.Tensor:
        window = mask.window  # type: ignore[attr-defined]
        extended = keep_last_keys(extend(mask, length), window)
        extended.window = window  # type: ignore[attr-defined]
        return extended

    collected: list[torch.Tensor] = []
    hook = model.lm_head.register_forward_hook(lambda _module, _inputs, output: collected.append(output[0]))
    try:
        with (
            mock.patch.object(model, "_build_attn_mask", build_mask),
            mock.patch.object(core, "extend_dense_mask_for_draft_tokens", extend_mask),
        ):
            model(
                hidden_states=hidden_states[None],
                input_ids=tokens[None],
                document_ids=torch.zeros_like(tokens)[None],
                ttt_steps=steps,
            )
    finally:
        hook.remove()
    return collected


def keep_last_keys(mask: torch.Tensor, window: int | None) -> torch.Tensor:
    """An additive mask [.., queries, keys] in which each query sees the last `window` of the keys it saw."""
    if window is None:
        return mask
    seen = torch.isfinite(mask)
    newer = seen.flip(-1).cumsum(-1).flip(-1)  # keys seen from here on, this one included
    return mask.masked_fill(newer > window, float("-inf"))


# --- the serving side: SGLang --------------------------------------------------------------------------


def start_sglang(*, plugin: bool) -> None:
    """SGLang's configuration and process groups for one CPU process (0.5.23), with or without our plugin."""
    sys.modules["sgl_kernel"] = NoKernels("sgl_kernel")
    if plugin:
        from eagle3_export.serving.plugin import activate

        activate()
    try:
        from sglang.srt.distributed.bootstrap import init_parallel_runtime
        from sglang.srt.runtime_context import SpawnRanks, publish
        from sglang.srt.server_args import ServerArgs
    except ImportError as error:
        sys.exit(
            f"The numeric check is written for SGLang 0.5.23; {metadata.version('sglang')} lacks a part: {error}"
        )

    arguments = ServerArgs(
        model_path="dummy", device="cpu", dtype="float32", attention_backend="torch_native"
    )
    publish(arguments, role="scheduler", ranks=SpawnRanks(world_rank=0, gpu_id=0))
    init_parallel_runtime(server_args=arguments, device="cpu", dist_port=free_port())


def resolve_served(export: Path) -> tuple[Any, Any]:
    """The class that SGLang's registry knows for an export, and the config it is built with."""
    from sglang.srt.models.registry import ModelRegistry
    from transformers import AutoConfig

    config = AutoConfig.from_pretrained(str(export))
    if not ModelRegistry.is_arch_supported(config.architectures[0]):
        raise ValueError(f"SGLang's model registry does not know {config.architectures[0]}")
    return ModelRegistry.resolve_model_cls(config.architectures)[0], config


def load_served(
    export: Path, model_class: Any, config: Any, target_embedding: torch.Tensor, draft_window: int | None
) -> Any:
    """The class of an export, built and loaded as SGLang does it, in float32."""
    from safetensors.torch import load_file
    from sglang.srt.runtime_context import get_context

    get_context().override("numeric check", speculative_draft_window_size=draft_window)
    model = model_class(config).float().eval()
    for parameter in model.parameters():
        parameter.requires_grad_(False)
    tensors = load_file(str(export / "model.safetensors"))
    model.load_weights(iter(tensors.items()))
    # SGLang's EAGLE worker does this after loading; the target's embedding is the one trained with
    model.set_embed(torch.nn.Parameter(target_embedding.clone(), requires_grad=False))
    for layer in model.model.layers:
        layer.self_attn.attn.forward = PlainAttention(layer.self_attn.attn)
    return model


def served_logits(
    model: Any, tokens: torch.Tensor, hidden_states: torch.Tensor, length: int, steps: int
) -> list[torch.Tensor]:
    """Logits of a prefill over `length` positions, then of one decode step after the other.

    Returns:
        Step 0: [length, draft vocabulary]; later steps: [1, draft vocabulary].
    """
    from sglang.srt.model_executor.forward_batch_info import ForwardMode

    positions = torch.arange(len(tokens))
    normed, recurrent = _forward(
        model, ForwardMode.EXTEND, tokens[:length], positions[:length], hidden_states[:length]
    )
    logits = [normed @ model.lm_head.weight.T]
    for step in range(1, steps):
        at = slice(length - 1 + step, length + step)
        normed, recurrent = _forward(model, ForwardMode.DECODE, tokens[at], positions[at], recurrent[-1:])
        logits.append(normed @ model.lm_head.weight.T)
    vocabulary = model.config.draft_vocab_size
    return [step_logits[:, :vocabulary] for step_logits in logits]


def _forward(
    model: Any, mode: Any, tokens: torch.Tensor, positions: torch.Tensor, hidden_states: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One forward of SGLang's LlamaModel: what goes to lm_head, and what the next draft step is fed."""
    batch = SimpleNamespace(
        forward_mode=mode,
        spec_info=SimpleNamespace(hidden_states=hidden_states),
        mm_input_embeds=None,
        contains_mm_inputs=lambda: False,
    )
    to_logits, aux = model.model(tokens, positions, batch)
    return to_logits, aux[0]


if __name__ == "__main__":
    main()
