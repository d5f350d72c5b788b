"""When one estimate may be compared with another: the one definition, used wherever two of them meet."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.estimates.acceptance import (
    AcceptanceEstimate,
    Method,
    estimated_interval,
    estimated_lengths,
    other_data,
    run_text,
)
from eagle3_export.estimates.accuracies import Interval
from eagle3_export.estimates.pairing import Difference, paired_difference

# Of which text an estimate is, and by which method it was made: two of one kind can be compared.
Kind = tuple[str, Method]


@dataclass(frozen=True, slots=True)
class Basis:
    """What estimates have in common when they are compared: their text, their method, and one draft depth.

    Attributes:
        text: validation (of a run, whenever it was replayed), training, or the digest of other data.
        method: how the lengths were derived from the accuracies.
        num_steps: the depth at which all of them were trained; None for geometric estimates, which have no depth.
    """

    text: str
    method: Method
    num_steps: int | None

    @classmethod
    def common(cls, estimates: Sequence[AcceptanceEstimate]) -> Basis | None:
        """Returns the basis on which all these estimates can be compared: the shallowest depth among them.

        Returns:
            None if there are none, if one of them has no length, or if they differ in text or method.
        """
        kinds = {kind_of(estimate) for estimate in estimates}
        if len(kinds) != 1 or None in kinds:
            return None
        (kind,) = (kind for kind in kinds if kind is not None)
        return cls.of_kind(kind, [estimate.num_steps for estimate in estimates])

    @classmethod
    def of_kind(cls, kind: Kind, depths: Sequence[int | None]) -> Basis:
        """Returns the basis of estimates of one kind.

        Args:
            kind: of all of them.
            depths: the `num_steps` of each.
        """
        known = [depth for depth in depths if depth is not None]
        return cls(*kind, min(known) if len(known) == len(depths) else None)

    def length(self, estimate: AcceptanceEstimate) -> float:
        """Returns the estimate's acceptance length on this basis, in tokens per verify step.

        Args:
            estimate: one of those that the basis is common to.
        """
        if self.num_steps is None or self.num_steps == estimate.num_steps:
            return estimate.estimated_acceptance_length or 0.0
        return estimated_lengths(estimate, self.num_steps).get(self.num_steps, 0.0)

    def interval(self, estimate: AcceptanceEstimate) -> Interval | None:
        """Returns the 95 % interval of `length`, or None where it is not known."""
        if self.num_steps is None or self.num_steps == estimate.num_steps:
            return estimate.interval
        return estimated_interval(estimate, self.num_steps)

    def difference(self, one: AcceptanceEstimate, other: AcceptanceEstimate) -> Difference | None:
        """Returns how far two lengths are apart, the first less the second; None where no interval is known.

        Replays of the same documents are paired, document by document. Others are taken to be independent; both were
        validated on the same text, so the true interval is narrower then.

        Args:
            one: an estimate that the basis is common to.
            other: another.
        """
        replays = [estimate.replay.per_document if estimate.replay else None for estimate in (one, other)]
        paired = paired_difference(*replays)
        if paired is not None and one.num_steps == self.num_steps == other.num_steps:
            return paired
        spreads = [self.interval(estimate) for estimate in (one, other)]
        halves = [(spread.high - spread.low) / 2 for spread in spreads if spread is not None]
        if len(halves) < 2:
            return None
        tokens, half = self.length(one) - self.length(other), math.hypot(*halves)
        return Difference(tokens, Interval(tokens - half, tokens + half), None)

    def __str__(self) -> str:
        depth = "" if self.num_steps is None else f" at depth {self.num_steps}"
        return f"{self.method}, from {self.text}{depth}"


def majority(kinds: Sequence[Kind | None]) -> list[int]:
    """Returns the positions of the most frequent kind.

    Of kinds as frequent a replay is taken, which is what a server would report; then the one that appears last.

    Args:
        kinds: of some estimates, in order of training; None belongs to no group.
    """
    counted = Counter(kinds)
    del counted[None]
    most = max(counted.values(), default=0)
    frequent = {kind for kind, count in counted.items() if count == most}
    last = [kind for kind in reversed(kinds) if kind in frequent] if len(frequent) > 1 else list(frequent)
    chosen = next((kind for kind in last if kind is not None and kind[1] == "replay"), next(iter(last), None))
    return [position for position, kind in enumerate(kinds) if kind is not None and kind == chosen]


def kind_of(estimate: AcceptanceEstimate) -> Kind | None:
    """Returns what an estimate can be compared with, or None where it has no length."""
    if estimate.estimated_acceptance_length is None or estimate.source is None or estimate.method is None:
        return None
    return _text(estimate), estimate.method


def _text(estimate: AcceptanceEstimate) -> str:
    """The text of a number: a run's own validation is the same text whoever walked it."""
    data = other_data(estimate)
    return f"data {data.digest}" if data is not None else str(run_text(estimate))
