"""What the accuracies of a training run say about the acceptance length a server will see.

Lengths are in tokens per verify step; they include the bonus token, as SGLang counts, unless
`includes_bonus_token` says otherwise. Nothing here reads a file or imports a trainer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

from eagle3_export.errors import UsageError
from eagle3_export.estimates.accuracies import (
    IN_DOCUMENTS,
    MAX_TTT_STEPS,
    Interval,
    Length,
    Share,
    StepAccuracies,
    StepAccuracy,
    step_accuracies,
)
from eagle3_export.estimates.chain import (
    NO_ACCURACIES,
    Chain,
    acceptance_length,
    length_interval,
    trained_chain,
)
from eagle3_export.estimates.reasons import explained
from eagle3_export.estimates.replay import TOO_FEW_DOCUMENTS, Replay, ReplayedData

Method = Literal["replay", "cumulative", "conditional", "geometric"]
AccuracySource = Literal["validation", "training", "estimate"]

ESTIMATED_DEPTHS = (1, 3, 5, 10, 16)
MAX_NUM_STEPS = MAX_TTT_STEPS

NO_ESTIMATE = "There is no estimate."
NO_REPLAY = "No validation text was replayed; `eagle3-export estimate` does it."
_NO_POSITIONS = "The trainer reported ratios without the positions behind them."
_ASSUMED_OF_REPLAYS = {
    "replay": "Counted by walking text that exists as a server's verify steps do, with greedy chains. It speaks for"
    " text of that kind, written by the sampling that wrote it; your users' text may be easier or harder.",
    "extrapolated": "Depths whose chains were not computed are extrapolated: a chain that held is taken to hold on for"
    " as long as the chains that start after it in the text hold over their whole trained depth.",
}
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
    ratio: Share
    """covered / tokens, in [0, 1]."""
    source: str
    """What was counted, for example "token_freq.pt"."""


@dataclass(frozen=True, slots=True)
class DepthEstimate:
    """The acceptance length estimated for one draft depth."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    num_steps: int
    """Draft depth: SGLang's --speculative-num-steps, with top-k 1."""
    acceptance_length: Length
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
    """validation: of the trainer, in its own passes; training: a fallback for runs without one; estimate:
    `eagle3-export estimate`, and replay.data says of which text."""
    estimated_acceptance_length: float | None
    """The headline, at depth num_steps."""
    method: Method | None
    """replay: counted over verify steps. Over positions: cumulative: 1 + sum of full_acc_k; conditional: those as
    products of cond_acc; geometric: see below."""
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
    position_mean_acceptance_length: float | None = None
    """1 + sum of full_acc_k at the trained depth, bonus token included: a mean over positions, above what a server
    reports wherever the text is harder in some places than in others."""
    replay: Replay | None = None
    """The walk that the headline comes from, where there is one."""
    assumptions: list[str] = field(default_factory=list)
    """What the estimate takes for granted."""
    reasons: dict[str, str] = field(default_factory=dict)
    """Why a value here is null, by its name; of a step's value, full_acc_<step> or cond_acc_<step>."""


def estimate_acceptance(
    accuracies: StepAccuracies | Mapping[str, Any],
    num_steps: Sequence[int] = ESTIMATED_DEPTHS,
    *,
    source: AccuracySource | None = "validation",
    coverage: Coverage | None = None,
    replay: Replay | None = None,
    missing_reason: str = NO_ACCURACIES,
    no_replay: str = NO_REPLAY,
) -> AcceptanceEstimate:
    """Estimates the acceptance length of a draft at several depths.

    Args:
        accuracies: accuracies per TTT step, or the trainer's metrics they are read from.
        num_steps: draft depths for the table, each a whole number from 1 to 64.
        source: where the accuracies come from; None where there are none.
        coverage: what share of the workload's tokens the draft vocabulary holds, for the adjusted estimate.
        replay: the walk over the same text, which the headline then comes from.
        missing_reason: why there are no accuracies, where there are none.
        no_replay: why there is no replay, where there is none.

    Returns:
        the estimate; values that may not be derived are None with a reason in `reasons`.

    Raises:
        UsageError: a depth that is no whole number from 1 to 64.

    Example:
        >>> estimate = estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 0.6, "full_acc_2": 0.5})
        >>> round(estimate.estimated_acceptance_length, 3)  # 1 + 0.8 + 0.6 + 0.5
        2.9
    """
    depths = _checked_depths(num_steps)
    if not isinstance(accuracies, StepAccuracies):
        accuracies = step_accuracies(accuracies)
    chain = trained_chain(accuracies)
    geometric, no_geometric = _geometric(accuracies)
    values: dict[str, Any] = {
        "source": source if accuracies.steps or replay else None,
        "geometric_acceptance_length": geometric,
        "coverage": coverage,
        "position_mean_acceptance_length": acceptance_length(chain.shares) if chain.shares else None,
        "replay": replay,
        **(_replayed(replay) if replay else _headline(accuracies, chain, geometric, coverage)),
    }
    refusal = no_geometric if chain.method == "geometric" else chain.refusal
    refusal = refusal if accuracies.steps else missing_reason
    because = _because(values, refusal) | {"replay": no_replay}
    if replay or values["estimated_acceptance_length"] is not None:
        because["position_mean_acceptance_length"] = refusal
    if replay or (accuracies.steps and no_geometric != chain.refusal):
        because["geometric_acceptance_length"] = no_geometric if accuracies.steps else refusal
    per_depth = (
        _replayed_depths(replay, depths) if replay else _per_depth(accuracies, chain, depths, coverage)
    )
    return AcceptanceEstimate(
        **values,
        steps=list(accuracies.steps),
        requested_num_steps=depths,
        per_depth=per_depth,
        assumptions=_assumed_of_replay(per_depth)
        if replay
        else _assumptions(chain, source, values["interval"], per_depth),
        reasons={**accuracies.reasons, **explained(values, because, NO_ESTIMATE)},
    )


def estimated_lengths(
    estimate: AcceptanceEstimate, max_num_steps: int, *, adjusted: bool = False
) -> dict[int, float]:
    """Returns the estimated acceptance length, bonus token included, for every depth from 1 on.

    Args:
        estimate: as a document holds it.
        max_num_steps: the last depth; none beyond 64 is estimated.
        adjusted: for text that leaves the draft vocabulary as often as the coverage says. A replay counts that anyway.

    Returns:
        tokens per verify step by depth; empty where they are not known. Depths that a replay left out are missing.
    """
    if estimate.estimated_acceptance_length is None or (adjusted and estimate.coverage is None):
        return {}
    if estimate.replay is not None:
        walks = [walk for walk in estimate.replay.depths if walk.num_steps <= max_num_steps]
        return {} if adjusted else {walk.num_steps: walk.acceptance_length for walk in walks}
    shares = trained_chain(StepAccuracies(tuple(estimate.steps))).to_depth(min(max_num_steps, MAX_NUM_STEPS))
    ratio = estimate.coverage.ratio if adjusted and estimate.coverage is not None else 1.0
    return {depth: acceptance_length(shares[:depth], ratio) for depth in range(1, len(shares) + 1)}


def estimated_positions(estimate: AcceptanceEstimate, num_steps: int) -> list[float]:
    """Returns the share of chains that the estimate has accepted at each position, as a measurement has them.

    Args:
        estimate: as a document holds it.
        num_steps: draft depth.

    Returns:
        as many shares as draft steps: of verify steps for a replay, else of positions in the text; empty where they
        are not known.
    """
    if estimate.replay is not None:
        walk = estimate.replay.at(num_steps)
        return walk.accepted_per_position if walk else []
    if estimate.method not in ("cumulative", "conditional") or num_steps > MAX_NUM_STEPS:
        return []
    return list(trained_chain(StepAccuracies(tuple(estimate.steps))).to_depth(num_steps))


def estimated_interval(estimate: AcceptanceEstimate, num_steps: int) -> Interval | None:
    """Returns the 95 % interval of the estimate at one depth; None where it is not known."""
    if estimate.replay is not None:
        walk = estimate.replay.at(num_steps)
        return walk.interval if walk else None
    if estimate.method != "cumulative" or num_steps > len(estimate.steps):
        return None
    accuracies = StepAccuracies(tuple(estimate.steps))
    return length_interval(trained_chain(accuracies).to_depth(num_steps), accuracies)


def estimate_terms(estimate: AcceptanceEstimate) -> str:
    """Returns what has to stand beside an estimated length: depth, whether it counts the bonus token, method."""
    if estimate.method == "geometric":
        return "geometric, without bonus token"
    return f"{estimate.num_steps} draft steps, bonus token included, {estimate.method}"


def other_data(estimate: AcceptanceEstimate) -> ReplayedData | None:
    """Returns the data of an estimate that is from other text than the run's own; None where it is from that."""
    data = estimate.replay.data if estimate.replay is not None else None
    return None if data is None or data.run_validation else data


def run_text(estimate: AcceptanceEstimate) -> AccuracySource | None:
    """Returns which text of the run an estimate is from: validation, whoever replayed it, or training."""
    return "validation" if estimate.source == "estimate" else estimate.source


def estimate_origin(estimate: AcceptanceEstimate) -> str:
    """Returns in a few words which text an estimate is from."""
    data = other_data(estimate)
    if data is not None:
        return f"{data.documents} document{'s' * (data.documents != 1)} of {data.path}"
    return f"{run_text(estimate)}{', replayed afterwards' * (estimate.source == 'estimate')}"


def _checked_depths(num_steps: Sequence[int]) -> list[int]:
    """Returns the depths in order, each once."""
    for depth in num_steps:
        if isinstance(depth, bool) or not isinstance(depth, int) or not 1 <= depth <= MAX_NUM_STEPS:
            raise UsageError(
                f"num_steps holds {depth!r:.80}.",
                why="A draft depth is the number of tokens drafted before each verify step.",
                remedy=f"Name whole numbers from 1 to {MAX_NUM_STEPS}.",
            )
    return sorted(set(num_steps))


def _headline(
    accuracies: StepAccuracies, chain: Chain, geometric: float | None, coverage: Coverage | None
) -> dict[str, Any]:
    """The headline, by the best method that the accuracies allow, and what belongs to it."""
    names = ("estimated_acceptance_length", "method", "includes_bonus_token", "num_steps")
    values: dict[str, Any] = dict.fromkeys((*names, "adjusted_acceptance_length", "interval"))
    if chain.method == "geometric":
        if geometric is not None:
            values.update(zip(names, (geometric, "geometric", False, None), strict=True))
    elif chain.method is not None:
        depth = len(chain.shares)
        values.update(zip(names, (acceptance_length(chain.shares), chain.method, True, depth), strict=True))
        if coverage is not None:
            values["adjusted_acceptance_length"] = acceptance_length(chain.shares, coverage.ratio)
        if chain.method == "cumulative":
            values["interval"] = length_interval(chain.shares, accuracies)
    return values


def trained_steps(estimate: AcceptanceEstimate) -> int:
    """Returns the depth that the draft was trained for; 0 where it is not known."""
    return estimate.replay.num_steps if estimate.replay is not None else len(estimate.steps)


def computed_steps(estimate: AcceptanceEstimate) -> int:
    """Returns the deepest depth that the estimate is not extrapolated to; 0 where there is none."""
    return estimate.replay.computed_steps if estimate.replay is not None else len(estimate.steps)


def _replayed(replay: Replay) -> dict[str, Any]:
    """The headline of a replay, and what belongs to it."""
    walk = replay.at(replay.num_steps)
    return {
        "estimated_acceptance_length": walk.acceptance_length if walk else None,
        "method": "replay",
        "includes_bonus_token": True,
        "num_steps": replay.num_steps,
        "adjusted_acceptance_length": None,
        "interval": walk.interval if walk else None,
    }


def _replayed_depths(replay: Replay, depths: Sequence[int]) -> list[DepthEstimate]:
    walks = [walk for depth in depths if (walk := replay.at(depth)) is not None]
    return [
        DepthEstimate(walk.num_steps, walk.acceptance_length, walk.extrapolated, walk.interval)
        for walk in walks
    ]


def _assumed_of_replay(rows: Sequence[DepthEstimate]) -> list[str]:
    extrapolated = any(row.extrapolated for row in rows)
    return [text for name, text in _ASSUMED_OF_REPLAYS.items() if name != "extrapolated" or extrapolated]


def _because(values: Mapping[str, Any], refusal: str | None) -> dict[str, str | None]:
    """Why a value may be null. Where there is no estimate at all, only the length itself says why."""
    because: dict[str, str | None] = {"coverage": "The token frequencies of the run are not known."}
    if values["estimated_acceptance_length"] is None:
        return because | {"estimated_acceptance_length": refusal}
    if values["method"] == "replay":
        return because | {
            "adjusted_acceptance_length": "The replay counts words outside the draft vocabulary as they occur.",
            "interval": TOO_FEW_DOCUMENTS,
        }
    if values["method"] == "geometric":
        return because | {
            "num_steps": "The geometric estimate has no depth.",
            "adjusted_acceptance_length": "The geometric estimate is not adjusted.",
            "interval": "The geometric estimate has no interval.",
        }
    return because | {
        "adjusted_acceptance_length": "The coverage of the draft vocabulary is not known.",
        "interval": _NO_POSITIONS
        if values["method"] == "cumulative"
        else "Only cumulative accuracies give an interval, and one of them was not reported.",
    }


def _geometric(accuracies: StepAccuracies) -> tuple[float | None, str | None]:
    """full_acc_0 / (1 - full_acc_0), or why there is none."""
    if accuracies.refusal is not None or not accuracies.steps:
        return None, accuracies.refusal or NO_ACCURACIES
    first = accuracies.steps[0].full_acc
    if first is None:
        first = accuracies.steps[0].cond_acc  # at step 0 the two are the same by definition
    if first is None:
        return None, accuracies.reasons.get("full_acc_0", NO_ACCURACIES)
    if first == 1.0:
        return None, "full_acc_0 is 1, where the geometric estimate grows without limit."
    return first / (1.0 - first), None


def _per_depth(
    accuracies: StepAccuracies, chain: Chain, depths: Sequence[int], coverage: Coverage | None
) -> list[DepthEstimate]:
    if chain.method is None:
        return []
    rows = []
    for depth in depths:
        shares = chain.to_depth(depth)
        rows.append(
            DepthEstimate(
                num_steps=depth,
                acceptance_length=acceptance_length(shares),
                extrapolated=depth > len(accuracies.steps),
                interval=length_interval(shares, accuracies),
                adjusted_acceptance_length=acceptance_length(shares, coverage.ratio) if coverage else None,
            )
        )
    return rows


def _assumptions(
    chain: Chain, source: AccuracySource | None, interval: Interval | None, rows: Sequence[DepthEstimate]
) -> list[str]:
    applies = {
        "training": source == "training",
        "geometric": chain.method == "geometric",
        "extrapolated": any(row.extrapolated for row in rows),
        "independent": interval is not None,
    }
    return [text for name, text in _ASSUMPTIONS.items() if chain.method and applies.get(name, True)]
