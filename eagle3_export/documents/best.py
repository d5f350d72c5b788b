"""Which export of a run is the best, and why: the one definition, for the pointer, the index, reports and the gate."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter

from eagle3_export.documents.schema import ExportMetadata
from eagle3_export.estimates.acceptance import AcceptanceEstimate
from eagle3_export.estimates.comparison import Basis, Kind, kind_of, majority

NONE_RATED = "No export has an estimate from validation yet."
MAX_NAMES = 5  # of exports in a sentence


@dataclass(frozen=True, slots=True)
class BestChoice:
    """The export that `best` points to.

    Attributes:
        name: of the export; None where no export has an estimate from validation.
        why: how it was chosen, or why there is none.
    """

    name: str | None
    why: str


@dataclass(frozen=True)
class Candidate:
    """What an export is ordered and compared by, had once from its metadata.

    Attributes:
        name: of the export.
        order: its place in training; an export that does not know its step comes last.
        kind: what its estimate may be compared with; None for one that cannot be the best.
        estimate: of its acceptance length.
    """

    name: str
    order: tuple[bool, int, int, str, str]
    kind: Kind | None
    estimate: AcceptanceEstimate

    @classmethod
    def of(cls, export: ExportMetadata) -> Candidate:
        """Returns what the metadata says of it."""
        step, estimate = export.global_step, export.acceptance
        return cls(
            export.name,
            (
                step is None,
                step or 0,
                export.epoch if export.epoch is not None else -1,
                export.created_at,
                export.name,
            ),
            kind_of(estimate) if estimate.source != "training" else None,
            estimate,
        )


BY_TRAINING = attrgetter("order")


def best_choice(exports: Sequence[ExportMetadata]) -> BestChoice:
    """Returns the best export of a run, by the rule of `best_of`.

    Args:
        exports: in any order.
    """
    return best_of(sorted(map(Candidate.of, exports), key=BY_TRAINING))


def best_of(candidates: Sequence[Candidate]) -> BestChoice:
    """Returns the export with the highest estimate from validation, the later one of two that are equal.

    Exports are compared only with those whose estimates can be compared: the largest group from one text by one
    method, at the shallowest depth that one of the group was trained for. Of groups of one size, those that were
    replayed come first; of several such, the one that training saved last.

    Args:
        candidates: in order of training.
    """
    compared = _compared(candidates)
    if not compared or compared[0].kind is None:
        return BestChoice(None, NONE_RATED)
    basis = Basis.of_kind(compared[0].kind, [candidate.estimate.num_steps for candidate in compared])
    lengths = [basis.length(candidate.estimate) for candidate in compared]
    highest = max(lengths)
    at = len(lengths) - 1 - lengths[::-1].index(highest)
    found = f"Highest of the {len(compared)} estimates" if len(compared) > 1 else "The only estimate"
    sentences = [f"{found} by {basis}: {highest:.3f}.", *_not_compared(candidates, compared)]
    return BestChoice(compared[at].name, " ".join(sentences))


def compared_exports(exports: Sequence[ExportMetadata]) -> list[ExportMetadata]:
    """Returns the exports among which the best one is chosen, in order of training.

    Args:
        exports: of one run, in any order.
    """
    ordered = in_training_order(exports)
    return [ordered[at] for at in majority([Candidate.of(export).kind for export in ordered])]


def not_compared(exports: Sequence[ExportMetadata]) -> list[str]:
    """Returns which rated exports could not be compared with those that were, a sentence for each kind of estimate.

    Args:
        exports: of one run, in any order.
    """
    candidates = sorted(map(Candidate.of, exports), key=BY_TRAINING)
    return _not_compared(candidates, _compared(candidates))


def in_training_order(exports: Sequence[ExportMetadata]) -> list[ExportMetadata]:
    """Returns the exports as training saved them; those that do not know their step come last."""
    return sorted(exports, key=lambda export: Candidate.of(export).order)


def _compared(candidates: Sequence[Candidate]) -> list[Candidate]:
    return [candidates[at] for at in majority([candidate.kind for candidate in candidates])]


def _not_compared(candidates: Sequence[Candidate], compared: Sequence[Candidate]) -> list[str]:
    if len(compared) == len(candidates):
        return []
    kinds: dict[Kind, list[str]] = {}
    chosen = compared[0].kind if compared else None
    for candidate in candidates:
        kind = kind_of(candidate.estimate)
        if kind is not None and kind != chosen:
            kinds.setdefault(kind, []).append(candidate.name)
    return [
        f"Not compared: {_named(names)}, whose estimate is {method} from {text}."
        for (text, method), names in kinds.items()
    ]


def _named(names: Sequence[str]) -> str:
    more = len(names) - MAX_NAMES
    return ", ".join(names[:MAX_NAMES]) + (f" and {more} more" if more > 0 else "")
