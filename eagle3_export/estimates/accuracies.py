"""The accuracies that a training run measured, per TTT step, checked before a number is derived from them.

They are speculators' (`speculators.models.eagle3.metrics.compute_metrics`, 0.7 on): `full_acc_k` is
cumulative, the share of positions where the steps 0…k are all right; `cond_acc_k` is the share of positions
right at step k among those right at all steps before. Both are greedy, teacher-forced, one chain, and counted
inside the draft vocabulary.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Real
from typing import Annotated, Any, ClassVar

from annotated_types import Ge, Le

# Far above any draft that is trained; a metric that names a higher step is not one of ours.
MAX_TTT_STEPS = 64
Z95 = 1.959963984540054  # two-sided 95 % quantile of the standard normal distribution

Share = Annotated[float, Ge(0), Le(1)]
# Tokens per verify step; far above any depth, and still a number that can be drawn.
Length = Annotated[float, Ge(0), Le(1e6)]
# Of documents, drafts and verify steps; a float holds each of them exactly.
Count = Annotated[int, Ge(0), Le(2**53)]
Depth = Annotated[int, Ge(1), Le(1024)]
IN_DOCUMENTS = {"use_attribute_docstrings": True, "allow_inf_nan": False}  # read by pydantic only

# Relative: each step counts fewer positions at the edges, one in ten of a ten-token answer.
_RISE_TOLERANCE = 0.1
_INFLATION_TOLERANCE = 0.05
_KEY = re.compile(r"(full_acc|cond_acc)_(\d{1,3})(_total)?(?:_epoch)?")


@dataclass(frozen=True, slots=True)
class Interval:
    """A 95 % confidence interval, in the unit of the value it stands beside."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    low: float
    high: float


@dataclass(frozen=True, slots=True)
class StepAccuracy:
    """The accuracies of one TTT step, shares in [0, 1]; null where the run gave none or an impossible one."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    step: int
    """TTT step, 0 for the first drafted token."""
    full_acc: Share | None
    """Share of positions where steps 0…step are all right (cumulative)."""
    cond_acc: Share | None
    """Share of positions right at this step among those right at all earlier steps."""
    positions: int | None = None
    """Positions that full_acc was counted over; null where the trainer reported only the ratio."""
    full_acc_interval: Interval | None = None
    """95 % Wilson interval of full_acc; null where positions is."""


@dataclass(frozen=True, slots=True)
class StepAccuracies:
    """All TTT steps of one measurement.

    Attributes:
        steps: in order, from step 0 on.
        reasons: why a metric is not usable, by its name, such as `full_acc_1`.
        refusal: why no length may be derived from any of them: they contradict each other. None where they do not.
    """

    steps: tuple[StepAccuracy, ...] = ()
    reasons: Mapping[str, str] = field(default_factory=dict)
    refusal: str | None = None

    @property
    def full_acc_0(self) -> float | None:
        """Share of positions where the first drafted token is right, or None."""
        return self.steps[0].full_acc if self.steps else None


def step_accuracies(metrics: Mapping[str, Any]) -> StepAccuracies:
    """Reads the accuracies of every TTT step out of a trainer's metrics.

    Args:
        metrics: keys `full_acc_<k>` and `cond_acc_<k>`, with or without `_epoch`, as speculators 0.3 to
            0.9 log and save them; `full_acc_<k>_total` is the number of positions counted. Others are
            ignored.

    Returns:
        the steps in order. A value that is not a finite number in [0, 1] becomes None with a reason;
        nothing is clamped. Values that contradict each other (a cumulative accuracy that rises,
        accuracies inflated by the number of ranks) set `refusal`.
    """
    values: dict[tuple[str, int], Any] = {}
    totals: dict[int, Any] = {}
    for key, value in metrics.items():
        match = _KEY.fullmatch(str(key))
        if match is None or int(match[2]) >= MAX_TTT_STEPS:
            continue
        if match[3] is None:
            values[match[1], int(match[2])] = value
        elif match[1] == "full_acc":
            totals[int(match[2])] = value
    reasons: dict[str, str] = {}
    steps = []
    for k in range(max((step for _, step in values), default=-1) + 1):
        full = _share(values.get(("full_acc", k)), f"full_acc_{k}", reasons)
        cond = _share(values.get(("cond_acc", k)), f"cond_acc_{k}", reasons)
        positions = _count(totals.get(k))
        interval = wilson_interval(full, positions) if full is not None and positions else None
        steps.append(StepAccuracy(k, full, cond, positions, interval))
    return StepAccuracies(tuple(steps), reasons, _contradiction(steps))


def _share(value: Any, name: str, reasons: dict[str, str]) -> float | None:
    """Returns `value` as a share in [0, 1], or None and adds the reason to `reasons`."""
    if value is None:
        reasons[name] = f"{name} was not reported."
        return None
    if isinstance(value, bool) or not isinstance(value, Real):
        reasons[name] = f"{name} is {value!r:.80}, which is not a number."
        return None
    number = float(value)
    if not math.isfinite(number):
        reasons[name] = f"{name} is {number}, which is not finite."
        return None
    if not 0.0 <= number <= 1.0:
        cause = " Some speculators releases summed accuracies over the ranks." if number > 1.0 else ""
        reasons[name] = f"{name} is {number:.6g}, and an accuracy lies between 0 and 1.{cause}"
        return None
    return number


def _count(value: Any) -> int | None:
    if isinstance(value, bool) or not isinstance(value, Real):
        return None
    number = float(value)
    return int(number) if math.isfinite(number) and number >= 1 else None


def _contradiction(steps: Sequence[StepAccuracy]) -> str | None:
    """Returns why the accuracies cannot all be what their names say, or None."""
    inflations = []
    for before, step in itertools.pairwise(steps):
        if before.full_acc is None or step.full_acc is None:
            continue
        if _rises(before, step):
            return (
                f"full_acc_{step.step} ({step.full_acc:.4g}) is above full_acc_{before.step}"
                f" ({before.full_acc:.4g}): a cumulative accuracy cannot rise, so these are not cumulative."
            )
        if step.cond_acc and step.full_acc > 0.01:
            inflations.append(step.cond_acc * before.full_acc / step.full_acc)
    ranks = round(inflations[0]) if inflations else 1
    if ranks >= 2 and all(abs(ratio / ranks - 1) < _INFLATION_TOLERANCE for ratio in inflations):
        return (
            f"cond_acc is {ranks} times what full_acc implies at every step: the accuracies were summed over"
            f" {ranks} ranks, as some speculators releases did."
        )
    return None


def _rises(before: StepAccuracy, step: StepAccuracy) -> bool:
    """Whether more chains hold at a step than before it, beyond what the edges of sequences explain."""
    full_before, full = before.full_acc or 0.0, step.full_acc or 0.0
    if before.positions and step.positions:
        return full * step.positions > full_before * before.positions + 0.5
    return full > full_before * (1 + _RISE_TOLERANCE)


def wilson_interval(share: float, positions: int) -> Interval:
    """Returns the 95 % Wilson score interval of a share.

    Args:
        share: in [0, 1].
        positions: number of independent positions it was counted over, at least 1.
    """
    spread = Z95**2 / positions
    centre = (share + spread / 2) / (1 + spread)
    half = Z95 * math.sqrt(share * (1 - share) / positions + spread / (4 * positions)) / (1 + spread)
    return Interval(max(0.0, centre - half), min(1.0, centre + half))
