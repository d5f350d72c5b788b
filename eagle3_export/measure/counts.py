"""What a server counted while it answered, and the checks that make it a measurement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.errors import MeasurementError


@dataclass(frozen=True, slots=True)
class Counts:
    """Counters over some requests.

    Attributes:
        completion_tokens: tokens generated.
        verify_steps: forward passes of the target that verified drafts.
        accepted: draft tokens accepted over all verify steps; None where the server does not say.
        at_least: verify steps that accepted at least k + 1 drafts, k < draft depth; None likewise.
    """

    completion_tokens: int
    verify_steps: int
    accepted: int | None
    at_least: tuple[int, ...] | None

    @property
    def reported_acceptance_length(self) -> float:
        """Completion tokens / verify steps, the figure SGLang reports; short outputs bias it."""
        return self.completion_tokens / self.verify_steps

    @property
    def acceptance_length(self) -> float:
        """1 + accepted drafts / verify steps; as reported where the server does not say what it accepted."""
        if self.accepted is None:
            return self.reported_acceptance_length
        return 1 + self.accepted / self.verify_steps

    @property
    def per_position(self) -> list[float] | None:
        """Share of verify steps that accepted at least k + 1 drafts, k < draft depth."""
        return None if self.at_least is None else [count / self.verify_steps for count in self.at_least]


def counts_of_request(
    completion_tokens: int,
    verify_steps: int | None,
    accepted: int | None,
    histogram: Sequence[int] | None,
    num_steps: int,
) -> Counts:
    """Returns the counters of one request; what a histogram implies is computed where the server leaves it out.

    Args:
        completion_tokens: tokens generated.
        verify_steps: None where the server does not say.
        accepted: draft tokens accepted; None likewise.
        histogram: verify steps that accepted exactly n drafts, by n; None likewise.
        num_steps: draft depth of the server.

    Raises:
        MeasurementError: the histogram does not add up to the verify steps, or accepts more than the depth allows.
    """
    if histogram is None:
        # An answer of one token needs no verify step, and then nothing is reported.
        nothing = not verify_steps and not accepted and num_steps
        return Counts(
            completion_tokens,
            verify_steps or 0,
            0 if nothing else accepted,
            (0,) * num_steps if nothing else None,
        )
    if verify_steps is None:
        verify_steps = sum(histogram)
    if sum(histogram) != verify_steps:
        raise MeasurementError(
            f"The server's histogram {list(histogram)} does not add up to its {verify_steps} verify steps."
        )
    if accepted is None:
        accepted = sum(drafts * steps for drafts, steps in enumerate(histogram))
    return Counts(completion_tokens, verify_steps, accepted, at_least_of_histogram(histogram, num_steps))


def at_least_of_histogram(histogram: Sequence[int], num_steps: int) -> tuple[int, ...]:
    """Returns the verify steps that accepted at least k + 1 drafts, from how many accepted exactly n.

    Raises:
        MeasurementError: more drafts were accepted than the depth allows.
    """
    if any(histogram[num_steps + 1 :]):
        raise MeasurementError(f"The server accepted more drafts in a step than its depth, {num_steps}.")
    return tuple(sum(histogram[k + 1 :]) for k in range(num_steps))


def add_counts(counts: Sequence[Counts]) -> Counts:
    """Returns the counters over all requests; if one request lacks a counter, the sum is None."""
    accepted = [count.accepted for count in counts if count.accepted is not None]
    at_least = [count.at_least for count in counts if count.at_least is not None]
    return Counts(
        completion_tokens=sum(count.completion_tokens for count in counts),
        verify_steps=sum(count.verify_steps for count in counts),
        accepted=sum(accepted) if len(accepted) == len(counts) else None,
        at_least=tuple(sum(column) for column in zip(*at_least, strict=True))
        if at_least and len(at_least) == len(counts)
        else None,
    )


def check_counts(counts: Counts, num_steps: int) -> None:
    """Refuses counters that cannot all be true.

    Raises:
        MeasurementError: nothing was verified; 1 + the sum over positions is not the mean length; more was accepted
            than was drafted.
    """
    if counts.verify_steps == 0:
        raise MeasurementError(
            "The server verified no draft at all.",
            why="It answered without speculation.",
            remedy="Start it with --speculative-algorithm EAGLE3 and this draft, and ask for longer answers.",
        )
    if counts.at_least is not None:
        falling = [counts.verify_steps, *counts.at_least]
        unequal = counts.accepted is not None and sum(counts.at_least) != counts.accepted
        if unequal or falling != sorted(falling, reverse=True):
            raise MeasurementError(
                f"The server's counters contradict each other: {counts.accepted} drafts accepted, but"
                f" {list(counts.at_least)} by position over {counts.verify_steps} verify steps.",
                why="An acceptance length is 1 + the sum of the acceptance at every position.",
                remedy="Report this with the server's version; nothing was written.",
            )
    if counts.accepted is not None and not 0 <= counts.accepted <= num_steps * counts.verify_steps:
        raise MeasurementError(
            f"The server accepted {counts.accepted} drafts in {counts.verify_steps} steps of depth {num_steps}."
        )
