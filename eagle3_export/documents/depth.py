"""Which draft depth to serve an export with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.estimates.acceptance import best_depth, chain_accuracies, length
from eagle3_export.estimates.accuracies import StepAccuracies

FALLBACK_NUM_STEPS = 3  # sglang 0.5.23's choice for Llama-style EAGLE-3 drafts
MAX_NUM_STEPS = 16


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A draft depth and why.

    Args:
        num_steps: value for SGLang's ``--speculative-num-steps``.
        acceptance_length: expected tokens per verify step there, bonus token included; None where unknown.
        speedup: expected against decoding without a draft; None where the cost of a draft step is unknown.
        reason: one sentence.
    """

    num_steps: int
    acceptance_length: float | None
    speedup: float | None
    reason: str


def estimated_lengths(
    metadata: ExportMetadata, max_num_steps: int = MAX_NUM_STEPS, *, adjusted: bool = False
) -> dict[int, float]:
    """Estimated acceptance length, bonus token included, for every depth from 1 on; empty where unknown.

    Args:
        metadata: of the export.
        max_num_steps: the last depth.
        adjusted: for text that leaves the draft vocabulary as often as the coverage says.
    """
    coverage = metadata.acceptance.coverage
    if metadata.estimated_acceptance_length is None or (adjusted and coverage is None):
        return {}
    accuracies = StepAccuracies(tuple(metadata.acceptance.steps))
    chain = chain_accuracies(accuracies, max_num_steps)
    ratio = coverage.ratio if adjusted and coverage is not None else 1.0
    return {depth: length(chain[:depth], ratio) for depth in range(1, max_num_steps + 1)}


def measured_lengths(metadata: ExportMetadata) -> dict[int, float]:
    """Measured acceptance length by depth, the newest measurement of each."""
    if metadata.measured is None:
        return {}
    return {m.num_steps: m.acceptance_length for m in reversed(metadata.measured.measurements)}


def recommend_depth(metadata: ExportMetadata, *, cost_ratio: float | None = None) -> Recommendation:
    """The depth K that maximises AL(K) / (1 + K·c), or the one that was measured fastest.

    Given c, it decides. Else, where two or more depths were timed on a server, the fastest; where one was, c follows
    from its speed-up. Else the depth that was trained. AL(K) is measured where two or more depths were, estimated
    otherwise.

    Args:
        metadata: of the export.
        cost_ratio: c, time of one draft step / time of one step without a draft.
    """
    measured, lengths, kind = measured_lengths(metadata), estimated_lengths(metadata), "estimated"
    if len(measured) > 1 or (measured and not lengths):
        lengths, kind = measured, "measured"
    trained = len(metadata.acceptance.steps)
    where = "as given"
    if cost_ratio is None and metadata.measured is not None:
        timed = _comparable_times(metadata.measured.measurements)
        if len({m.num_steps for m in timed}) > 1:
            return _fastest(timed)
        cost_ratio, where = metadata.measured.cost_ratio, "as measured"
    if cost_ratio is not None and lengths:
        best = best_depth(lengths, cost_ratio)
        beyond = kind == "estimated" and best.num_steps > trained
        extrapolated = f"; extrapolated beyond the {trained} trained" if beyond else ""
        return Recommendation(
            best.num_steps,
            best.acceptance_length,
            best.speedup,
            f"Of the {kind} acceptance lengths this depth promises the highest speed-up, {best.speedup:.2f}, if a"
            f" draft step costs {cost_ratio:.3g} of a step without a draft, {where}{extrapolated}."
            + _warning(best.speedup),
        )
    depth = trained or FALLBACK_NUM_STEPS
    what = "The depth that was trained" if trained else "A usual depth; the trained one is unknown"
    return Recommendation(
        depth,
        lengths.get(depth),
        None,
        f"{what}. What a draft step costs is not known; `eagle3-export measure --sweep` finds it.",
    )


def _comparable_times(measurements: Sequence[Measurement]) -> list[Measurement]:
    """Those with a throughput; only those with a speed-up too where others have one, for then theirs was noise."""
    timed = [m for m in measurements if m.tokens_per_second]
    sped = [m for m in timed if m.speedup]
    return sped or timed


def _fastest(timed: Sequence[Measurement]) -> Recommendation:
    best = max(timed, key=lambda m: m.tokens_per_second or 0.0)
    times = f", {best.speedup:.2f} times as fast as without a draft" if best.speedup else ""
    depths = ", ".join(str(depth) for depth in sorted({m.num_steps for m in timed}))
    return Recommendation(
        best.num_steps,
        best.acceptance_length,
        best.speedup,
        f"Measured fastest of the depths {depths}: {best.tokens_per_second:.1f} tokens/s{times}."
        + _warning(best.speedup),
    )


def _warning(speedup: float | None) -> str:
    return " Serving without a draft is faster." if speedup is not None and speedup < 1 else ""


def headline_measurement(metadata: ExportMetadata) -> Measurement | None:
    """The measurement to show first: at the trained depth, where the estimate is not extrapolated, else the newest."""
    measurements = metadata.measured.measurements if metadata.measured else []
    trained = len(metadata.acceptance.steps)
    return next(
        (m for m in measurements if m.num_steps == trained), measurements[0] if measurements else None
    )
