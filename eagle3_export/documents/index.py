"""`index.json`: every export of a run, the newest and the best."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from eagle3_export.documents.best import BestChoice, best_choice, in_training_order
from eagle3_export.documents.json_files import utc_now
from eagle3_export.documents.row import export_row
from eagle3_export.documents.schema import NOT_RECORDED, ExportIndex, ExportMetadata, IndexEntry, RunRecord
from eagle3_export.estimates.acceptance import NO_ESTIMATE
from eagle3_export.estimates.reasons import explained


def build_index(
    exports: Sequence[ExportMetadata],
    *,
    run: RunRecord | None = None,
    latest: str | None = None,
    best: BestChoice | None = None,
) -> ExportIndex:
    """Lists a run's exports in order of training.

    Args:
        exports: their metadata, in any order.
        run: whose exports they are.
        latest: name the `latest` pointer has; default: the one saved last.
        best: the export the `best` pointer has; default: that of `best_choice`.
    """
    ordered = in_training_order(exports)
    chosen = best or best_choice(ordered)
    values = {
        "run": run,
        "latest": latest or (ordered[-1].name if ordered else None),
        "best": chosen.name,
        "best_why": None if chosen.name is None else chosen.why,
    }
    because = {
        "run": NOT_RECORDED,
        "latest": "Nothing has been exported yet.",
        "best": chosen.why,
        "best_why": chosen.why,
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
