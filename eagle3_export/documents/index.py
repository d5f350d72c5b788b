"""`index.json`: every export of a run, the newest and the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.row import export_row
from eagle3_export.documents.schema import NOT_RECORDED, ExportIndex, ExportMetadata, IndexEntry, RunRecord
from eagle3_export.estimates.acceptance import NO_ESTIMATE, AcceptanceEstimate
from eagle3_export.estimates.comparison import Basis, Kind, kind_of, majority
from eagle3_export.estimates.reasons import explained


def build_index(
    exports: Sequence[ExportMetadata],
    *,
    run: RunRecord | None = None,
    latest: str | None = None,
    best: str | None = None,
) -> ExportIndex:
    """Lists a run's exports in order of training.

    Args:
        exports: their metadata, in any order.
        run: whose exports they are.
        latest: name the `latest` pointer has; default: the one saved last.
        best: name the `best` pointer has; default: that of `choose_best`.
    """
    ordered = in_training_order(exports)
    values = {
        "run": run,
        "latest": latest or (ordered[-1].name if ordered else None),
        "best": best or choose_best(ordered),
    }
    because = {
        "run": NOT_RECORDED,
        "latest": "Nothing has been exported yet.",
        "best": "No export has an estimate from validation yet.",
    }
    return ExportIndex(
        **values,
        updated_at=utc_now(),
        exports=[_index_entry(export) for export in ordered],
        reasons=explained(values, because),
    )


def index_line(export: ExportMetadata) -> bytes:
    """Returns an export's entry as it stands in index.json: one line of JSON."""
    entry = _index_entry(export).model_dump(mode="json")
    return b"\n    " + json.dumps(entry, allow_nan=False, ensure_ascii=False).encode()


def with_lines(index: ExportIndex, lines: Sequence[bytes]) -> bytes:
    """Returns index.json with these entries in place of its own.

    What index.json costs is to make its entries, so each is made once, by `index_line`, and kept.

    Args:
        index: without entries.
        lines: in order of training.
    """
    document = json.dumps(index.model_dump(mode="json"), indent=2, allow_nan=False, ensure_ascii=False)
    # In a string a line break would be written as \\n, so this is the key and nothing else.
    before, after = document.split('\n  "exports": []')
    closing = "\n  ]" if lines else "]"
    return b"".join((f'{before}\n  "exports": ['.encode(), b",".join(lines), f"{closing}{after}\n".encode()))


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


def choose_best(exports: Sequence[ExportMetadata]) -> str | None:
    """Returns the name of the best export, by the rule of `best_of`; None where no export has an estimate."""
    return best_of([Candidate.of(export) for export in exports])


def best_of(candidates: Sequence[Candidate]) -> str | None:
    """Returns the name of the export with the highest estimate from validation, the later one of two that are equal.

    Exports are compared only with those whose estimates can be compared: the largest group that was estimated by
    one method, at the shallowest depth that one of the group was trained for.
    """
    compared = [candidates[at] for at in majority([candidate.kind for candidate in candidates])]
    if not compared or compared[0].kind is None:
        return None
    basis = Basis.of_kind(compared[0].kind, [candidate.estimate.num_steps for candidate in compared])
    lengths = [basis.length(candidate.estimate) for candidate in compared]
    highest = max(lengths)
    equal = (candidate for candidate, length in zip(compared, lengths, strict=True) if length == highest)
    return max(equal, key=BY_TRAINING).name


def compared_exports(exports: Sequence[ExportMetadata]) -> list[ExportMetadata]:
    """Returns the exports among which the best one is chosen: those whose estimates can be compared."""
    return [exports[at] for at in majority([Candidate.of(export).kind for export in exports])]


def in_training_order(exports: Sequence[ExportMetadata]) -> list[ExportMetadata]:
    """Returns the exports as training saved them; those that do not know their step come last."""
    return sorted(exports, key=lambda export: Candidate.of(export).order)


def _index_entry(export: ExportMetadata) -> IndexEntry:
    row, acceptance = export_row(export), export.acceptance
    values: dict[str, Any] = {
        name: getattr(row, name) for name in IndexEntry.model_fields if name not in ("reasons", "per_depth")
    }
    because = {
        **export.reasons,
        "measured_acceptance_length": export.reasons.get("measured"),
        "measured_num_steps": export.reasons.get("measured"),
        "acceptance_source": acceptance.reasons.get("source"),
        "acceptance_method": acceptance.reasons.get("method"),
        "acceptance_num_steps": acceptance.reasons.get("num_steps"),
        "includes_bonus_token": acceptance.reasons.get("includes_bonus_token"),
    }
    return IndexEntry(
        **values,
        per_depth={str(depth): length for depth, length in row.per_depth.items()},
        reasons=explained(values, because, NO_ESTIMATE),
    )
