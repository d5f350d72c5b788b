"""What the accuracies of a training run say about the acceptance length a server will see.

Lengths are in tokens per verify step; they include the bonus token, as SGLang counts, unless
``includes_bonus_token`` says otherwise. Nothing here reads a file or imports a trainer.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from eagle3_export.estimates.accuracies import (
    IN_DOCUMENTS,
    Z95,
    Interval,
    StepAccuracies,
    StepAccuracy,
    step_accuracies,
)

Method = Literal["cumulative", "conditional", "geometric"]
AccuracySource = Literal["validation", "training"]

DEFAULT_NUM_STEPS = (1, 3, 5, 10, 16)

NO_ACCURACIES = "No accuracies were reported."
_ASSUMPTIONS = {
    "training": "From the last logged training batches, not from held-out data: noisy, and higher than a"
    " validation would say.",
    "teacher_forced": "Measured teacher-forced and greedy, one chain, on the run's own data; a server"
    " drafts on its own tokens and its users' text.",
    "upper_bound": "Accuracies are counted inside the draft vocabulary, where the right token always exists;"
    " text outside it makes the served length shorter, so for the same text this is an upper bound. Greedy text"
    " that repeats itself is easier than the run's data and may be accepted longer.",
    "geometric": "Only full_acc_0 is known: full_acc_0 / (1 - full_acc_0) takes every step to be as"
    " accurate as the first, counts draft tokens only (no bonus token) and has no depth limit.",
    "extrapolated": "Depths beyond the trained steps are extrapolated: every further step is taken to be as"
    " accurate, while the chain still holds, as the last trained one.",
    "independent": "The interval counts positions as independent; neighbours in a text are not, so the"
    " true one is wider.",
}


@dataclass(frozen=True, slots=True)
class Coverage:
    """How much of the run's text the draft vocabulary can spell."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    tokens: int
    """Tokens counted."""
    covered: int
    """Those of them that are in the draft vocabulary."""
    ratio: float
    """covered / tokens, in [0, 1]."""
    source: str
    """What was counted, for example "token_freq.pt"."""


@dataclass(frozen=True, slots=True)
class DepthEstimate:
    """The acceptance length estimated for one draft depth."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    num_steps: int
    """Draft depth: SGLang's --speculative-num-steps, with top-k 1."""
    acceptance_length: float
    """Tokens per verify step, bonus token included: 1 + sum of full_acc_k over k < num_steps."""
    extrapolated: bool
    """True where num_steps exceeds the steps that were trained and measured."""
    interval: Interval | None = None
    """95 % interval; null where counts are unknown or the depth is extrapolated."""
    adjusted_acceptance_length: float | None = None
    """The same for text that leaves the draft vocabulary as often as the coverage says."""


@dataclass(frozen=True, slots=True)
class AcceptanceEstimate:
    """An estimate of the acceptance length and all that is needed to compare it with another number."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    source: AccuracySource | None
    """validation, or training as a fallback for runs without one."""
    estimated_acceptance_length: float | None
    """The headline, at depth num_steps."""
    method: Method | None
    """cumulative: 1 + sum of full_acc_k; conditional: those as products of cond_acc; geometric: see below."""
    includes_bonus_token: bool | None
    """Whether the headline counts the verifier's own token, as SGLang and vLLM do; not so for geometric."""
    num_steps: int | None
    """Draft depth of the headline: the steps trained. Null for geometric, which has none."""
    geometric_acceptance_length: float | None
    """full_acc_0 / (1 - full_acc_0), often quoted: draft tokens only, no bonus token, no depth limit."""
    adjusted_acceptance_length: float | None
    """The headline for text that leaves the draft vocabulary as often as the coverage says."""
    interval: Interval | None
    """95 % interval of the headline."""
    steps: list[StepAccuracy] = field(default_factory=list)
    """Accuracies per TTT step."""
    requested_num_steps: list[int] = field(default_factory=list)
    """The depths asked for."""
    per_depth: list[DepthEstimate] = field(default_factory=list)
    """Estimates for the depths asked for, bonus token included in each."""
    coverage: Coverage | None = None
    """How much of the run's text the draft vocabulary can spell."""
    assumptions: list[str] = field(default_factory=list)
    """What the estimate takes for granted."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a value here is null, by its name; of a step's value, full_acc_<step> or cond_acc_<step>."""


def estimate_acceptance(
    accuracies: StepAccuracies | Mapping[str, Any],
    num_steps: Sequence[int] = DEFAULT_NUM_STEPS,
    *,
    source: AccuracySource | None = "validation",
    coverage: Coverage | None = None,
    missing_reason: str = NO_ACCURACIES,
) -> AcceptanceEstimate:
    """Estimate the acceptance length of a draft at several depths.

    Args:
        accuracies: accuracies per TTT step, or the trainer's metrics they are read from.
        num_steps: draft depths for the table, each at least 1.
        source: where the accuracies come from; None where there are none.
        coverage: what share of the workload's tokens the draft vocabulary holds, for the adjusted estimate.
        missing_reason: why there are no accuracies, where there are none.

    Returns:
        the estimate; values that may not be derived are None with a reason in ``reasons``.
    """
    if not isinstance(accuracies, StepAccuracies):
        accuracies = step_accuracies(accuracies)
    chain, method, refusal = _trained_chain(accuracies)
    geometric, no_geometric = _geometric(accuracies)
    if not accuracies.steps:
        refusal = no_geometric = missing_reason
    if method == "geometric":
        headline, trained, refusal = geometric, None, no_geometric
    else:
        headline, trained = (length(chain), len(chain)) if chain else (None, None)
    interval = _length_interval(chain, accuracies) if method == "cumulative" else None
    adjusted = length(chain, coverage.ratio) if trained and coverage else None
    depths = sorted(set(num_steps))
    per_depth = _per_depth(accuracies, depths, coverage)
    values: dict[str, Any] = {
        "source": source if accuracies.steps else None,
        "estimated_acceptance_length": headline,
        "method": method if headline is not None else None,
        "includes_bonus_token": None if headline is None else method != "geometric",
        "num_steps": trained,
        "geometric_acceptance_length": geometric,
        "adjusted_acceptance_length": adjusted,
        "interval": interval,
        "coverage": coverage,
    }
    because = {
        "num_steps": "The geometric estimate has no depth.",
        "geometric_acceptance_length": no_geometric,
        "adjusted_acceptance_length": None
        if refusal
        else "The coverage of the draft vocabulary is not known."
        if trained
        else "The geometric estimate is not adjusted.",
        "interval": None if refusal else "The trainer reported ratios without the positions behind them.",
        "coverage": "The token frequencies of the run are not known.",
    }
    if any(step.positions is None for step in accuracies.steps):
        because["positions"] = "The trainer reported ratios without the positions behind them."
    if headline is None:
        because["num_steps"] = refusal
    missing = {
        name: because.get(name) or refusal or missing_reason for name, v in values.items() if v is None
    }
    applies = {
        "training": source == "training",
        "geometric": method == "geometric",
        "extrapolated": any(row.extrapolated for row in per_depth),
        "independent": interval is not None,
    }
    return AcceptanceEstimate(
        **values,
        steps=list(accuracies.steps),
        requested_num_steps=depths,
        per_depth=per_depth,
        assumptions=[text for name, text in _ASSUMPTIONS.items() if method and applies.get(name, True)],
        reasons={**accuracies.reasons, **missing},
    )


def _trained_chain(accuracies: StepAccuracies) -> tuple[list[float], Method | None, str | None]:
    """Cumulative accuracies per trained step, how they were had, and why there are none."""
    if accuracies.refusal is not None:
        return [], None, accuracies.refusal
    chain: list[float] = []
    method: Method = "cumulative"
    for step in accuracies.steps:
        if step.full_acc is not None:
            chain.append(step.full_acc)
        elif step.cond_acc is not None:
            chain.append(step.cond_acc * (chain[-1] if chain else 1.0))
            method = "conditional"
        else:
            return [], None, accuracies.reasons[f"full_acc_{step.step}"]
    if not chain:
        return [], None, NO_ACCURACIES
    return chain, "geometric" if len(chain) == 1 else method, None


def chain_accuracies(accuracies: StepAccuracies, num_steps: int) -> list[float]:
    """Cumulative accuracy of steps 0…num_steps-1, extrapolated beyond the trained ones.

    Beyond them every step keeps the last step's conditional accuracy. Empty where nothing may be derived.
    """
    chain, _, _ = _trained_chain(accuracies)
    if not chain:
        return []
    last = accuracies.steps[-1].cond_acc
    if last is None:
        before = chain[-2] if len(chain) > 1 else 1.0
        last = min(1.0, chain[-1] / before) if before > 0 else 0.0
    while len(chain) < num_steps:
        chain.append(chain[-1] * last)
    return chain[:num_steps]


def length(chain: Sequence[float], coverage: float = 1.0) -> float:
    """1 + sum of the cumulative accuracies: tokens per verify step, bonus token included.

    Args:
        chain: cumulative accuracy of every step.
        coverage: share of tokens inside the draft vocabulary; a step counts only if none so far fell outside.
    """
    return 1.0 + sum(share * coverage ** (k + 1) for k, share in enumerate(chain))


def _geometric(accuracies: StepAccuracies) -> tuple[float | None, str | None]:
    """full_acc_0 / (1 - full_acc_0), or why there is none."""
    if accuracies.refusal is not None or not accuracies.steps:
        return None, accuracies.refusal or NO_ACCURACIES
    first = accuracies.steps[0].full_acc
    if first is None:
        first = accuracies.steps[0].cond_acc  # at step 0 the two are the same by definition
    if first is None:
        return None, accuracies.reasons["full_acc_0"]
    if first == 1.0:
        return None, "full_acc_0 is 1, where the geometric estimate grows without limit."
    return first / (1.0 - first), None


def _length_interval(chain: Sequence[float], accuracies: StepAccuracies) -> Interval | None:
    """95 % interval of 1 + sum(chain), bonus token included; None where positions are not known.

    The accepted drafts X of a position have P(X > k) = chain[k]; their variance follows from that. Two
    successes and two failures are added (Agresti and Coull), so that a draft never wrong has an interval too.
    """
    counts = [step.positions for step in accuracies.steps if step.positions and step.full_acc is not None]
    if len(chain) > len(accuracies.steps) or len(counts) < len(accuracies.steps):
        return None
    positions = min(counts)
    added = positions + Z95**2
    shares = [(share * positions + Z95**2 / 2) / added for share in chain]
    mean = sum(shares)
    variance = sum((2 * k + 1) * share for k, share in enumerate(shares)) - mean**2
    half = Z95 * math.sqrt(max(0.0, variance) / added)
    return Interval(max(1.0, 1 + mean - half), min(1.0 + len(chain), 1 + mean + half))


def _per_depth(
    accuracies: StepAccuracies, depths: Sequence[int], coverage: Coverage | None
) -> list[DepthEstimate]:
    rows = []
    for depth in depths:
        chain = chain_accuracies(accuracies, depth)
        if not chain:
            return []
        rows.append(
            DepthEstimate(
                num_steps=depth,
                acceptance_length=length(chain),
                extrapolated=depth > len(accuracies.steps),
                interval=_length_interval(chain, accuracies),
                adjusted_acceptance_length=length(chain, coverage.ratio) if coverage else None,
            )
        )
    return rows


@dataclass(frozen=True, slots=True)
class DepthCost:
    """What one draft depth yields: see :func:`best_depth`."""

    num_steps: int
    acceptance_length: float
    speedup: float


def best_depth(acceptance_lengths: Mapping[int, float], cost_ratio: float) -> DepthCost:
    """The depth K that maximises the speed-up AL(K) / (1 + K·c); the shallower of two that are equal.

    Args:
        acceptance_lengths: tokens per verify step, bonus token included, by draft depth; not empty.
        cost_ratio: c, time of one draft step / time of one verify step, at least 0.
    """
    costs = [
        DepthCost(depth, length, length / (1 + depth * cost_ratio))
        for depth, length in sorted(acceptance_lengths.items())
    ]
    return max(costs, key=lambda cost: cost.speedup)
