"""Whether the difference of two replays of the same documents is one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from eagle3_export.estimates.accuracies import Interval
from eagle3_export.estimates.per_document import DocumentCounts
from eagle3_export.estimates.replay import student_t95


@dataclass(frozen=True, slots=True)
class Difference:
    """How far two acceptance lengths are apart.

    Attributes:
        tokens: the first less the second, in tokens per verify step.
        interval: 95 % interval of that.
        documents: over which the two were paired; None where they were taken to be independent.
    """

    tokens: float
    interval: Interval
    documents: int | None

    @property
    def tied(self) -> bool:
        """Whether it may as well be none: zero lies in its interval."""
        return self.interval.low <= 0.0 <= self.interval.high


def paired_difference(one: DocumentCounts | None, other: DocumentCounts | None) -> Difference | None:
    """Returns the difference of two acceptance lengths over the same documents.

    Both are ratios of sums over documents. A document that is hard for one draft is hard for the other, so the
    interval is of the differences in each document (linearised ratios, Student's t), not of the two lengths.

    Args:
        one: counts of a replay.
        other: of another.

    Returns:
        None where they are not of the same documents at one depth, or of fewer than two.
    """
    if one is None or other is None or (one.digest, one.num_steps) != (other.digest, other.num_steps):
        return None
    count = len(one.verify_steps)
    if count < 2 or len({len(each) for c in (one, other) for each in (c.verify_steps, c.accepted)}) != 1:
        return None
    (first, of_first), (second, of_second) = _linearised(one), _linearised(other)
    variance = float(np.sum((of_first - of_second) ** 2)) * count / (count - 1)
    half = student_t95(count - 1) * math.sqrt(variance)
    return Difference(first - second, Interval(first - second - half, first - second + half), count)


def _linearised(counts: DocumentCounts) -> tuple[float, np.ndarray]:
    """Accepted drafts per verify step, and what each document adds to the error of that."""
    steps, accepted = np.asarray(counts.verify_steps, float), np.asarray(counts.accepted, float)
    total = max(float(steps.sum()), 1.0)
    ratio = float(accepted.sum()) / total
    return ratio, (accepted - ratio * steps) / total
