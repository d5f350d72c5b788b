"""Which draft depth to serve an export with."""

from __future__ import annotations

import itertools
import re
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.documents.measurements import MeasurementSeries, series
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.estimates.acceptance import computed_steps, estimated_lengths, trained_steps
from eagle3_export.estimates.depth import USUAL_DEPTH, best_depth, require_cost_ratio

MAX_NUM_STEPS = 16
SLOWER = "Serving without a draft is faster."


@dataclass(frozen=True, slots=True)
class Recommendation:
    """A draft depth and why.

    Attributes:
        num_steps: value for SGLang's `--speculative-num-steps`.
        acceptance_length: expected tokens per verify step there, bonus token included; None where unknown.
        speedup: expected against decoding without a draft; None where the cost of a draft step is unknown.
        reason: one sentence.
        warning: one sentence if serving without a draft is faster, else None.
    """

    num_steps: int
    acceptance_length: float | None
    speedup: float | None
    reason: str

    @property
    def warning(self) -> str | None:
        """What speaks against serving this draft at all."""
        return SLOWER if self.speedup is not None and self.speedup < 1 else None


def recommend_depth(metadata: ExportMetadata, *, cost_ratio: float | None = None) -> Recommendation:
    """Returns the draft depth to serve an export with, by the first of these rules that applies.

    1. `cost_ratio` is given: the depth K that maximises AL(K) / (1 + K·c).
    2. Two or more depths were timed under equal conditions: the fastest of them.
    3. One depth has a measured speed-up: as in 1, with the c that follows from it.
    4. The depth that was trained; without a validation that tells it, the one in the export's launch arguments.

    AL(K) is measured if two or more depths were measured under equal conditions, else estimated. If measurements under
    several conditions would do, those made last decide.

    Args:
        metadata: of the export.
        cost_ratio: c, time of one draft step / time of one step without a draft; at least 0.

    Raises:
        UsageError: `cost_ratio` is negative or not finite.
    """
    measured = series(metadata)
    if cost_ratio is not None:
        require_cost_ratio(cost_ratio)
        by_cost = _by_cost(metadata, cost_ratio, "as given", measured)
        if by_cost is not None:
            return by_cost
    else:
        for one in measured:
            if len({m.num_steps for m in one.timed()}) > 1:
                return _fastest(one.timed())
        for one in measured:
            ratio = one.cost_ratio()
            by_cost = None if ratio is None else _by_cost(metadata, ratio, "as measured", [one])
            if by_cost is not None:
                return by_cost
    return _trained(metadata)


def _known_lengths(
    metadata: ExportMetadata, measured: Sequence[MeasurementSeries]
) -> tuple[dict[int, float], str]:
    """Lengths by depth: of the newest series of several depths, else estimated, else of the newest series."""
    several = [one.lengths() for one in measured if len(one.lengths()) > 1]
    estimated = estimated_lengths(metadata.acceptance, MAX_NUM_STEPS)
    if several or not estimated:
        return (several or [one.lengths() for one in measured] or [{}])[0], "measured"
    return estimated, "estimated"


def _by_cost(
    metadata: ExportMetadata, cost_ratio: float, where: str, measured: Sequence[MeasurementSeries]
) -> Recommendation | None:
    """The depth with the highest speed-up for this cost; None where no acceptance length is known."""
    lengths, kind = _known_lengths(metadata, measured)
    if not lengths:
        return None
    best = best_depth(lengths, cost_ratio)
    computed = computed_steps(metadata.acceptance)
    beyond = kind == "estimated" and best.num_steps > computed
    by = f" ({metadata.acceptance.method})" if kind == "estimated" else ""
    extrapolated = f"; extrapolated beyond the {computed} computed" if beyond else ""
    return Recommendation(
        best.num_steps,
        best.acceptance_length,
        best.speedup,
        f"Of the {kind} acceptance lengths{by} this depth promises the highest speed-up, {best.speedup:.2f}, if a draft"
        f" step costs {cost_ratio:.3g} of a step without a draft, {where}{extrapolated}.",
    )


def _fastest(timed: Sequence[Measurement]) -> Recommendation:
    best = max(timed, key=lambda m: (m.tokens_per_second or 0.0, -m.num_steps))
    times = f", {best.speedup:.2f} times as fast as without a draft" if best.speedup else ""
    depths = ", ".join(str(depth) for depth in sorted({m.num_steps for m in timed}))
    return Recommendation(
        best.num_steps,
        best.acceptance_length,
        best.speedup,
        f"Measured fastest of the depths {depths}: {best.tokens_per_second:.1f} tokens/s at concurrency"
        f" {best.concurrency}{times}.",
    )


def _trained(metadata: ExportMetadata) -> Recommendation:
    trained, exported = trained_steps(metadata.acceptance), _exported(metadata)
    depth, what = USUAL_DEPTH, "A usual depth; the trained one is unknown"
    if trained:
        depth, what = trained, "The depth that was trained"
    elif exported is not None:
        depth, what = exported, "The depth that the export's launch arguments name"
    lengths, _ = _known_lengths(metadata, series(metadata))
    return Recommendation(
        depth,
        lengths.get(depth),
        None,
        f"{what}. What a draft step costs is not known; `eagle3-export measure --sweep` finds it.",
    )


def _exported(metadata: ExportMetadata) -> int | None:
    """The depth in the export's launch arguments, or None."""
    arguments = metadata.sglang.launch_arguments
    asked = [value for flag, value in itertools.pairwise(arguments) if flag == "--speculative-num-steps"]
    return int(asked[0]) if asked and re.fullmatch(r"[1-9][0-9]{0,2}", asked[0]) else None
