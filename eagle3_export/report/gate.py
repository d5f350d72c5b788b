"""The regression gate: whether a run is good enough, for a pipeline to act on."""

from __future__ import annotations

import re
from dataclasses import dataclass

from eagle3_export.documents.depth import headline_measurement, measured_lengths
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import UsageError
from eagle3_export.report.runs import Run, estimate_at


@dataclass(frozen=True, slots=True)
class MaxDrop:
    """How much an acceptance length may fall: a share of the baseline's, or tokens.

    Args:
        value: in [0, 1) if relative, else in tokens per verify step.
        relative: which of the two.
    """

    value: float
    relative: bool

    def floor(self, baseline: float) -> float:
        """The lowest length that passes."""
        return baseline * (1 - self.value) if self.relative else baseline - self.value

    def __str__(self) -> str:
        return f"{self.value:.4g}" if not self.relative else f"{self.value * 100:.4g}%"


def parse_max_drop(text: str) -> MaxDrop:
    """``2%`` of the baseline, or ``0.05`` tokens.

    Raises:
        UsageError: neither, or a whole token and more: a percentage whose sign was forgotten.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    if match is None or float(match[1]) >= (100 if match[2] else 1):
        raise UsageError(
            f"{text!r} is no drop.", remedy="Write a percentage such as 2%, or tokens such as 0.05."
        )
    return MaxDrop(float(match[1]) / 100 if match[2] else float(match[1]), bool(match[2]))


def below(run: Run, minimum: float) -> list[str]:
    """Why the run's best export does not reach an acceptance length; empty where it does.

    The estimate must reach it, and so must the measurement at its depth (the newest one where there is none at it).
    A number that is not known reaches nothing.

    Args:
        run: judged by its best export.
        minimum: tokens per verify step, bonus token included.
    """
    best = run.best_export
    if best is None:
        return [f"{run.name}: no export has an estimate from validation."]
    problems = []
    estimate = best.estimated_acceptance_length
    if best.acceptance.method == "geometric":
        problems.append(
            f"{run.name}: {best.name} has only a geometric estimate, which counts no bonus token."
        )
    elif estimate is None or estimate < minimum:
        problems.append(f"{run.name}: {best.name} is estimated at {estimate or 0:.3f}, below {minimum:g}.")
    measured = headline_measurement(best)
    if measured is not None and measured.acceptance_length < minimum:
        problems.append(
            f"{run.name}: {best.name} was measured at {measured.acceptance_length:.3f} with"
            f" {measured.num_steps} draft steps, below {minimum:g}."
        )
    return problems


def dropped(run: Run, baseline: Run, max_drop: MaxDrop) -> list[str]:
    """Why the run's best export is worse than the baseline's; empty where it is not.

    Estimates are compared at the baseline's trained depth, measurements at every depth that both were measured at.
    """
    best, before = run.best_export, baseline.best_export
    if before is None:
        return [f"The baseline {baseline.name} has no estimate from validation."]
    if best is None:
        return [f"{run.name}: no export has an estimate from validation."]
    pairs = [(f"estimated at {depth} draft steps", old, new) for depth, old, new in _estimates(before, best)]
    old_measured, new_measured = measured_lengths(before), measured_lengths(best)
    pairs += [
        (f"measured at {depth} draft steps", old_measured[depth], new_measured[depth])
        for depth in sorted(old_measured.keys() & new_measured.keys())
    ]
    problems = []
    for how, old, new in pairs:
        if new is None:
            problems.append(f"{run.name}: {best.name} has no acceptance length {how}.")
        elif new < max_drop.floor(old) - 1e-12:
            problems.append(
                f"{run.name}: {best.name} has {new:.3f} {how}, {(old - new) / old:.1%} below {old:.3f} of"
                f" {baseline.name}: {before.name}; {max_drop} is allowed."
            )
    return problems


def _estimates(before: ExportMetadata, best: ExportMetadata) -> list[tuple[int, float, float | None]]:
    depth = len(before.acceptance.steps)
    old = estimate_at(before, depth) if depth else None
    return [] if old is None else [(depth, old, estimate_at(best, depth))]
