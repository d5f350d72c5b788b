"""What the proof ends with: predicted and served, epoch by epoch, and whether the prediction was true."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from rich.table import Table

from eagle3_export.documents.json_files import read_metadata

WITHIN = 0.02
INSIDE = 4 / 5


@dataclass(frozen=True)
class Epoch:
    """One epoch's draft. Lengths are in tokens per verify step, bonus token included.

    Attributes:
        position_mean: 1 + sum of full_acc_k over the validation's positions.
        replayed: the walk over the validation text.
        low: lower end of its 95 % interval.
        high: upper end of it.
        predicted: its verify steps by accepted drafts, 0 to the depth.
        measured: what SGLang did on the same prompts.
        served: its verify steps by accepted drafts.
    """

    number: int
    position_mean: float
    replayed: float
    low: float
    high: float
    predicted: list[int]
    measured: float
    served: list[int]

    @property
    def off(self) -> float:
        """How far the replay is from the measurement, as a share of it; negative where it says too little."""
        return self.replayed / self.measured - 1

    @property
    def inside(self) -> bool:
        """Whether the interval holds the measurement."""
        return self.low <= self.measured <= self.high


def read_epoch(export: Path, depth: int) -> Epoch:
    """Reads what an export's metadata.json says after it was measured."""
    metadata = read_metadata(export)
    walk = metadata.acceptance.replay.at(depth) if metadata.acceptance.replay else None
    measured = metadata.measured.measurements[0] if metadata.measured else None
    if metadata.epoch is None or walk is None or walk.interval is None or measured is None:
        raise SystemExit(f"{export} was not replayed and measured: {metadata.acceptance.reasons}")
    shares = [1.0, *(measured.accepted_per_position or []), 0.0]
    reached = [round(share * measured.verify_steps) for share in shares]
    return Epoch(
        number=metadata.epoch,
        position_mean=metadata.acceptance.position_mean_acceptance_length or float("nan"),
        replayed=walk.acceptance_length,
        low=walk.interval.low,
        high=walk.interval.high,
        predicted=walk.histogram,
        measured=measured.acceptance_length,
        served=[here - further for here, further in pairwise(reached)],
    )


_HEADINGS = ("epoch", "mean over positions", "replay [95 % interval]", "SGLang", "replay is off by", "")


def _cells(epoch: Epoch) -> tuple[str, ...]:
    return (
        str(epoch.number),
        f"{epoch.position_mean:.3f}",
        f"{epoch.replayed:.3f} [{epoch.low:.3f}, {epoch.high:.3f}]",
        f"{epoch.measured:.3f}",
        f"{epoch.off:+.1%}",
        "inside" if epoch.inside else "outside",
    )


def terminal_table(epochs: Sequence[Epoch]) -> Table:
    """One row per epoch, and its two histograms."""
    table = Table(title="Acceptance length, predicted and served")
    for heading in (*_HEADINGS, "verify steps by accepted drafts"):
        table.add_column(heading, justify="right")
    for epoch in epochs:
        histograms = f"replay {_counts(epoch.predicted)}\nSGLang {_counts(epoch.served)}"
        table.add_row(*_cells(epoch), histograms)
    return table


def markdown_table(epochs: Sequence[Epoch]) -> str:
    """The same for the documentation."""
    headings = (
        *_HEADINGS[:-1],
        "interval",
        "replay: verify steps by accepted drafts 0, 1, …",
        "SGLang: the same",
    )
    lines = [_row(headings), _row(["---:"] * len(headings))]
    for epoch in epochs:
        lines.append(_row((*_cells(epoch), _counts(epoch.predicted), _counts(epoch.served))))
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _counts(histogram: Sequence[int]) -> str:
    return ", ".join(map(str, histogram))


def faults(epochs: Sequence[Epoch]) -> list[str]:
    """What of the prediction was not true: it is to be within 2 % in every epoch, and inside in four of five."""
    found = [
        f"epoch {epoch.number}: the replay is off by {epoch.off:+.1%}, more than {WITHIN:.0%}"
        for epoch in epochs
        if abs(epoch.off) > WITHIN
    ]
    inside = sum(epoch.inside for epoch in epochs)
    if inside < INSIDE * len(epochs):
        found.append(f"the interval holds the measurement in {inside} of {len(epochs)} epochs")
    return found
