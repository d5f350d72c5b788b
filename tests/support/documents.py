"""Documents as an export carries them, made by hand: metadata and measurements."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from eagle3_export.documents.metadata import build_metadata
from eagle3_export.documents.schema import ExportMetadata, Measurement, Serving, Source, Weights
from eagle3_export.estimates.replay import DepthCounts, Replay, ReplayCounts, ReplayedData, replay_record

# Of a validation, as the trainer records it.
GOOD = {"full_acc_0_epoch": 0.8, "full_acc_1_epoch": 0.6, "full_acc_2_epoch": 0.4, "loss_epoch": 1.5}


def export(
    name: str = "0",
    *,
    epoch: int = 0,
    step: int = 100,
    metrics: Mapping[str, Any] | None = None,
    **changes: Any,
) -> ExportMetadata:
    """The metadata of an export of step `step`; `changes` replace arguments of `build_metadata`."""
    values: dict[str, Any] = {
        "name": name,
        "epoch": epoch,
        "global_step": step,
        "sglang": Serving(
            runtime="stock",
            version="0.5.23",
            minimum_version="0.5.12",
            architecture="LlamaForCausalLMEagle3",
            launch_arguments=["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"],
            findings=[],
        ),
        "source": Source(
            checkpoint=f"checkpoints/{name}",
            kind="end_of_epoch",
            local_step=0,
            speculators_version="0.9.0",
            verifier="org/verifier",
            size=1234,
            digest=None,
            reasons={"digest": "Not computed."},
        ),
        "weights": Weights(
            tensors=16,
            bytes=1234,
            dtype="BF16",
            copy_method="reflink",
            bytes_copied=1000,
            embed_tokens="kept",
            seconds=0.5,
        ),
        "metrics": metrics,
    }
    return build_metadata(**(values | changes))


def measurement(**changes: Any) -> Measurement:
    """What `measure` records of a server that accepts 1.5 drafts a verify step; `changes` replace fields."""
    values: dict[str, Any] = {
        "acceptance_length": 2.5,
        "num_steps": 3,
        "topk": 1,
        "verify_steps": 40,
        "accepted_per_position": [0.8, 0.5, 0.2],
        "reported_acceptance_length": 2.4,
        "prompts": 8,
        "prompt_source": "prompts.txt",
        "completion_tokens": 100,
        "sampling": {"temperature": 0.0},
        "tokens_per_second": 50.0,
        "concurrency": 1,
        "speedup": 1.7,
        "server": "sglang",
        "server_version": "0.5.23",
        "target": "org/verifier",
        "hardware": "CPU",
        "measured_at": "2026-01-01T00:00:00+00:00",
    }
    return Measurement(**(values | changes))


def replayed(length: float, *, steps: int = 1, data: ReplayedData | None = None) -> Replay:
    """A replay of 100 verify steps that either accept nothing or all of `steps` drafts; `length` is its headline."""
    accepted = round((length - 1) * 100 / steps)
    counts = {
        depth: DepthCounts([100 - accepted, *[0] * (depth - 1), accepted], documents=1)
        for depth in range(1, steps + 1)
    }
    return replay_record(ReplayCounts(steps, counts, documents=1, spans=1), data=data)


def replayed_depths(
    lengths: Mapping[int, float], *, computed: int, first_choice_share: float = 1.0
) -> Replay:
    """A replay of 1000 verify steps at each depth, extrapolated beyond `computed`; chains hold whole or not at all."""
    counts = {}
    for depth, length in lengths.items():
        accepted = round((length - 1) * 1000 / depth)
        counts[depth] = DepthCounts([1000 - accepted, *[0] * (depth - 1), accepted], documents=1)
    chosen = round(1000 * first_choice_share)
    return replay_record(ReplayCounts(computed, counts, 1, 1, response_tokens=1000, first_choices=chosen))


def replayed_documents(*accepted: int) -> Replay:
    """A replay of documents of 100 verify steps each, of so many that accept the only draft."""
    number, total = len(accepted), sum(accepted)
    squares = sum(each**2 for each in accepted)
    depth = DepthCounts([100 * number - total, total], number, squares, total * 100, 10000 * number)
    per_document = {str(n): (100, each) for n, each in enumerate(accepted)}
    return replay_record(ReplayCounts(1, {1: depth}, number, number, per_document=per_document))
