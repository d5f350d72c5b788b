"""The draft depth with the highest speed-up."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from eagle3_export.errors import UsageError

USUAL_DEPTH = 3  # sglang 0.5.23's choice for Llama-style EAGLE-3 drafts


@dataclass(frozen=True, slots=True)
class DepthCost:
    """What one draft depth yields.

    Attributes:
        num_steps: draft steps per verify step.
        acceptance_length: tokens per verify step, bonus token included.
        speedup: throughput against decoding without a draft.
    """

    num_steps: int
    acceptance_length: float
    speedup: float


def best_depth(acceptance_lengths: Mapping[int, float], cost_ratio: float) -> DepthCost:
    """Returns the depth K that maximises the speed-up AL(K) / (1 + K·c); the shallower of two that are equal.

    Args:
        acceptance_lengths: tokens per verify step, bonus token included, by draft depth; not empty.
        cost_ratio: c, time of one draft step / time of one step without a draft; finite and at least 0.

    Raises:
        UsageError: there are no lengths, or `cost_ratio` is negative or not finite.
    """
    require_cost_ratio(cost_ratio)
    if not acceptance_lengths:
        raise UsageError("No depth can be chosen: no acceptance length is known.")
    costs = [
        DepthCost(depth, length, length / (1 + depth * cost_ratio))
        for depth, length in sorted(acceptance_lengths.items())
    ]
    return max(costs, key=lambda cost: cost.speedup)


def require_cost_ratio(cost_ratio: float) -> None:
    """Refuses what cannot be the time of a draft step.

    Args:
        cost_ratio: time of one draft step / time of one step without a draft.

    Raises:
        UsageError: it is negative or not finite.
    """
    if not math.isfinite(cost_ratio) or cost_ratio < 0:
        raise UsageError(
            f"The cost ratio is {cost_ratio:g}.",
            why="It is the time of one draft step divided by the time of one step without a draft.",
            remedy="Give a number from 0 on, for example 0.05.",
        )
