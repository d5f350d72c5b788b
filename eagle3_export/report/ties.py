"""Which of several exports to deploy whose estimates tie: the cheapest of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from eagle3_export.documents.measurements import differing_conditions, headline_measurement
from eagle3_export.documents.schema import ExportMetadata, Measurement
from eagle3_export.report.runs import Run, listed


@dataclass(frozen=True, slots=True)
class Advice:
    """The export to deploy.

    Attributes:
        export: that one.
        why: in a sentence, why it is not simply the best; empty where it is.
    """

    export: ExportMetadata
    why: str = ""


def advised(run: Run) -> Advice | None:
    """Returns the export to deploy; None where no export has an estimate from validation.

    That is the best one, unless others tie with it document by document. Of those that tie, the one that was measured
    is advised (of several under equal conditions the one with the longest acceptance); else the earliest: those that
    are paired were trained for one depth and cost the same to serve, and nothing says that the training after it
    changed anything. Ties that were not paired, because the documents are not known, change nothing: such a tie may be
    a real difference.

    Args:
        run: whose exports are compared.
    """
    best = run.best_export
    if best is None:
        return None
    paired = [name for name in run.ties if run.differences[name].documents is not None]
    if not paired:
        return Advice(best)
    tied = [export for export in run.compared if export.name in (*paired, best.name)]
    chosen, reason = _cheapest(tied)
    names, documents = [export.name for export in tied], run.differences[paired[0]].documents
    text = (
        f"{listed(names)} are a tie: paired over the same {documents} documents, no difference from"
        f" {best.name}, the highest, is told from zero{_largest(run, paired)}. Advised is {chosen.name}: {reason}"
    )
    if chosen.name != best.name:
        text += f" `best` points to {best.name}."
    return Advice(chosen, text)


def _largest(run: Run, paired: Sequence[str]) -> str:
    """The tie that is furthest apart, with its interval."""
    name = max(paired, key=lambda each: run.differences[each].tokens)
    found = run.differences[name]
    low, high = found.interval.low, found.interval.high
    return f" ({name} is {found.tokens:.3f} below it, 95 % interval {low:.3f} to {high:.3f})"


def _cheapest(tied: Sequence[ExportMetadata]) -> tuple[ExportMetadata, str]:
    measured = [(export, found) for export in tied if (found := headline_measurement(export)) is not None]
    if measured:
        return _measured(measured)
    return tied[0], "the earliest; all of them cost the same to serve."


def _measured(measured: Sequence[tuple[ExportMetadata, Measurement]]) -> tuple[ExportMetadata, str]:
    _, newest = max(measured, key=lambda pair: pair[1].measured_at)
    alike = [
        (export, found)
        for export, found in measured
        if found is newest
        or (found.num_steps == newest.num_steps and not differing_conditions(found, newest))
    ]
    export, found = max(alike, key=lambda pair: pair[1].acceptance_length)
    length = f"{found.acceptance_length:.2f} at {found.num_steps} draft steps"
    what = "it was measured on a server" if len(alike) == 1 else "the highest of those measured on a server"
    return export, f"{what}, {length}."
