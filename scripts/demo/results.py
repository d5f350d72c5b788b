"""What the demo ends with: what training said of each draft, and what serving it showed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from eagle3_export.documents.json_files import read_metadata
from eagle3_export.documents.schema import ExportMetadata


@dataclass(frozen=True)
class Served:
    """One export and how it was served.

    Attributes:
        histogram: number of verify steps by accepted draft tokens, 0 to the number of draft steps.
    """

    metadata: ExportMetadata
    histogram: list[int]

    @classmethod
    def from_result(cls, export: Path, result: Mapping[str, Any]) -> Served:
        return cls(read_metadata(export), list(result["accepted_drafts_histogram"]))

    @property
    def measured_acceptance_length(self) -> float:
        """1 + mean accepted drafts per verify step.

        Not completion tokens / verify steps: in short outputs the first and the last token bias that downwards.
        """
        accepted = sum(count * number for number, count in enumerate(self.histogram))
        return 1 + accepted / sum(self.histogram)


def results_table(served: Sequence[Served], num_steps: int) -> Table:
    """One row per epoch."""
    table = Table(
        title=f"Acceptance length with {num_steps} draft steps (tokens per verify step, bonus token included)",
        caption="full_acc_0 and the estimate: held-out text, teacher-forced, inside the draft vocabulary. Measured: "
        "SGLang, greedy, the verifier's own continuations of held-out prompts; so small a verifier repeats itself, "
        "which is easier to draft than held-out text.",
    )
    for heading in ("epoch", "full_acc_0", "estimated", "measured by SGLang"):
        table.add_column(heading, justify="right")
    table.add_column(f"verify steps by accepted drafts 0…{num_steps}")
    for row in served:
        metadata = row.metadata
        estimate = {depth.num_steps: depth.acceptance_length for depth in metadata.acceptance.per_depth}.get(
            num_steps
        )
        table.add_row(
            str(metadata.epoch),
            _number(metadata.full_acc_0, 3),
            _number(estimate, 2),
            f"{row.measured_acceptance_length:.2f}",
            " ".join(f"{count:4d}" for count in row.histogram),
        )
    return table


def _number(value: float | None, digits: int) -> str:
    return "unknown" if value is None else f"{value:.{digits}f}"
