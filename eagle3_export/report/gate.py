"""The regression gate: whether a run is good enough, for a pipeline to act on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from eagle3_export.documents.measurements import differing_conditions, headline_measurement, series
from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.errors import UsageError
from eagle3_export.estimates.acceptance import estimate_origin
from eagle3_export.estimates.comparison import Basis
from eagle3_export.report.runs import Run


@dataclass(frozen=True, slots=True)
class Check:
    """One comparison that the gate made.

    Attributes:
        text: the two sides and what they are.
        passed: True or False; None where the two could not be compared and nothing follows from it.
        remark: more about the outcome.
    """

    text: str
    passed: bool | None
    remark: str = ""

    def __str__(self) -> str:
        outcome = {True: "passed", False: "failed", None: "not compared"}[self.passed]
        return f"{self.text}: {outcome}{f'; {self.remark}' if self.remark else ''}"


@dataclass(frozen=True, slots=True)
class MaxDrop:
    """How much an acceptance length may fall: a share of the baseline's, or tokens.

    Attributes:
        value: in [0, 1) if relative, else in tokens per verify step.
        relative: which of the two.
    """

    value: float
    relative: bool

    def floor(self, baseline: float) -> float:
        """Returns the lowest length that passes."""
        return baseline * (1 - self.value) if self.relative else baseline - self.value

    def __str__(self) -> str:
        return f"{self.value * 100:.4g} %" if self.relative else f"{self.value:.4g}"


def parse_max_drop(text: str) -> MaxDrop:
    """Reads `2%` of the baseline, or `0.05` tokens.

    Args:
        text: as given on the command line.

    Raises:
        UsageError: neither, or a whole token and more: a percentage whose sign was forgotten.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*(%?)\s*", text)
    if match is None or float(match[1]) >= (100 if match[2] else 1):
        raise UsageError(
            f"--max-drop {text!r} cannot be read.",
            remedy="Write a percentage below 100 such as 2%, or tokens below 1 such as 0.05.",
        )
    return MaxDrop(float(match[1]) / 100 if match[2] else float(match[1]), bool(match[2]))


def against_minimum(run: Run, minimum: float) -> list[Check]:
    """Compares a run's best export with a minimum; every check must pass.

    The estimate must reach it, and so must the measurement that is shown first. A number that is not known reaches
    nothing.

    Args:
        run: judged by its best export.
        minimum: tokens per verify step, bonus token included.
    """
    best = run.best_export
    if best is None:
        return [Check(f"{run.name}: no export has an estimate from validation", False)]
    what = f"{run.name}: {best.name} against the minimum"
    estimate, measured = best.estimated_acceptance_length or 0.0, headline_measurement(best)
    if best.acceptance.includes_bonus_token:
        depth = best.acceptance.num_steps
        checks = [_check(f"{what}, estimated", estimate, minimum, depth, minimum)]
    else:
        checks = [Check(what, False, "it has only a geometric estimate, which counts no bonus token")]
    if measured is not None:
        length = measured.acceptance_length
        checks.append(_check(f"{what}, measured", length, minimum, measured.num_steps, minimum))
    return checks


def against_baseline(run: Run, baseline: Run, max_drop: MaxDrop) -> list[Check]:
    """Compares a run's best export with the baseline's; no check may fail.

    Estimates are compared at the depth that both were trained for, and fail if they are of different kinds.
    Measurements are compared at every depth that both were measured at under equal conditions; if there is none, that
    is said and nothing follows.

    Args:
        run: judged by its best export.
        baseline: the same.
        max_drop: how much lower a length may be.
    """
    best, before = run.best_export, baseline.best_export
    if before is None:
        return [Check(f"The baseline {baseline.name} has no estimate from validation", False)]
    if best is None:
        return [Check(f"{run.name}: no export has an estimate from validation", False)]
    what = f"{run.name}: {best.name} against {baseline.name}: {before.name}"
    return [
        _estimates(what, best, before, max_drop),
        *_measurements(what, best, before, max_drop),
    ]


def _estimates(what: str, best: ExportMetadata, before: ExportMetadata, max_drop: MaxDrop) -> Check:
    basis = Basis.common([best.acceptance, before.acceptance])
    if basis is None:
        kinds = [f"{a.method} from {estimate_origin(a)}" for a in (best.acceptance, before.acceptance)]
        return Check(f"{what}, estimated", False, f"{kinds[0]} cannot be compared with {kinds[1]}")
    new, old = basis.length(best.acceptance), basis.length(before.acceptance)
    return _check(f"{what}, estimated", new, old, basis.num_steps, max_drop.floor(old), max_drop)


def _measurements(
    what: str, best: ExportMetadata, before: ExportMetadata, max_drop: MaxDrop
) -> Iterator[Check]:
    theirs, ours = series(before), series(best)
    if not theirs:
        return
    what = f"{what}, measured"
    if not ours:
        yield Check(what, None, f"{best.name} has not been measured")
        return
    pairs = [(n, o) for n in ours for o in theirs if not differing_conditions(n.newest, o.newest)]
    depths = [(n, o, sorted(n.lengths().keys() & o.lengths().keys())) for n, o in pairs]
    for new, old, common in [found for found in depths if found[2]][:1]:
        for depth in common:
            a, b = new.lengths()[depth], old.lengths()[depth]
            yield _check(what, a, b, depth, max_drop.floor(b), max_drop)
        return
    differing = differing_conditions(ours[0].newest, theirs[0].newest)
    yield Check(what, None, "; ".join(differing) if not pairs else "no depth in common")


def _check(
    what: str, new: float, old: float, depth: int | None, floor: float, max_drop: MaxDrop | None = None
) -> Check:
    """Both sides, how far apart they are, and whether the new one reaches the floor."""
    apart = f" ({new / old - 1:+.1%})".replace("%", " %") if old > 0 else ""
    where = "" if depth is None else f" at depth {depth}"
    passed = new >= floor - 1e-12
    remark = f"at most {max_drop} less is allowed" if max_drop is not None and not passed else ""
    return Check(f"{what} {new:.3f} against {old:.3f}{apart}{where}", passed, remark)
