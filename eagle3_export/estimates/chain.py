"""The chance that a chain of drafted tokens holds, step by step, and the acceptance length that follows from it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from eagle3_export.estimates.accuracies import Z95, Interval, StepAccuracies

NO_ACCURACIES = "No accuracies were reported."


@dataclass(frozen=True, slots=True)
class Chain:
    """The cumulative accuracies of the trained steps.

    Attributes:
        shares: for each trained step k, the share of positions where the steps 0…k are all right. Empty where
            nothing may be derived.
        method: cumulative if every share was reported, conditional if one is a product of conditional accuracies,
            geometric if there is only one step; None if there are no shares.
        beyond: conditional accuracy that every step after the trained ones is taken to have.
        refusal: why there are no shares; None if there are.
    """

    shares: tuple[float, ...] = ()
    method: Literal["cumulative", "conditional", "geometric"] | None = None
    beyond: float = 0.0
    refusal: str | None = None

    def to_depth(self, num_steps: int) -> list[float]:
        """Returns the cumulative accuracies of the steps 0…num_steps-1, extrapolated beyond the trained ones."""
        shares = list(self.shares)
        while shares and len(shares) < num_steps:
            shares.append(shares[-1] * self.beyond)
        return shares[:num_steps]


def trained_chain(accuracies: StepAccuracies) -> Chain:
    """Returns the chain that the accuracies of a training run describe."""
    if accuracies.refusal is not None:
        return Chain(refusal=accuracies.refusal)
    shares: list[float] = []
    method: Literal["cumulative", "conditional"] = "cumulative"
    for step in accuracies.steps:
        if step.full_acc is not None:
            shares.append(step.full_acc)
        elif step.cond_acc is not None:
            shares.append(step.cond_acc * (shares[-1] if shares else 1.0))
            method = "conditional"
        else:
            return Chain(refusal=accuracies.reasons.get(f"full_acc_{step.step}", NO_ACCURACIES))
    if not shares:
        return Chain(refusal=NO_ACCURACIES)
    beyond = accuracies.steps[-1].cond_acc
    if beyond is None:
        before = shares[-2] if len(shares) > 1 else 1.0
        beyond = min(1.0, shares[-1] / before) if before > 0 else 0.0
    return Chain(tuple(shares), "geometric" if len(shares) == 1 else method, beyond)


def acceptance_length(shares: Sequence[float], coverage: float = 1.0) -> float:
    """Returns 1 + the sum of the cumulative accuracies: tokens per verify step, bonus token included.

    Args:
        shares: cumulative accuracy of every step.
        coverage: share of tokens inside the draft vocabulary, in [0, 1]. A step counts only if none of the tokens
            up to it fell outside.
    """
    return 1.0 + sum(share * coverage ** (k + 1) for k, share in enumerate(shares))


def length_interval(shares: Sequence[float], accuracies: StepAccuracies) -> Interval | None:
    """Returns the 95 % interval of 1 + sum(shares), bonus token included.

    The accepted drafts X of a position have P(X > k) = shares[k]; their variance follows from that. Two successes
    and two failures are added (Agresti and Coull), so that a draft that was never wrong has an interval too.

    Args:
        shares: cumulative accuracy of every step.
        accuracies: the measured steps that the shares are of.

    Returns:
        None where a step's positions are not known, or where there are more shares than measured steps.
    """
    steps = accuracies.steps[: len(shares)]
    counts = [step.positions for step in steps if step.positions and step.full_acc is not None]
    if not shares or len(counts) < len(shares):
        return None
    positions = min(counts)
    added = positions + Z95**2
    smoothed = [(share * positions + Z95**2 / 2) / added for share in shares]
    mean = sum(smoothed)
    variance = sum((2 * k + 1) * share for k, share in enumerate(smoothed)) - mean**2
    half = Z95 * math.sqrt(max(0.0, variance) / added)
    return Interval(max(1.0, 1 + mean - half), min(1.0 + len(shares), 1 + mean + half))
