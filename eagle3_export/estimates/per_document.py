"""What a replay counted in each document, so that two replays of the same documents can be compared one by one."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from eagle3_export.estimates.accuracies import IN_DOCUMENTS, Count, Depth

MAX_DOCUMENTS = 2000  # of which the counts are kept: two short numbers each in metadata.json
TOO_MANY = f"There are more than {MAX_DOCUMENTS} documents."
NOT_TOLD_APART = "The documents were not told apart by their text."


@dataclass(frozen=True, slots=True)
class DocumentCounts:
    """The verify steps and accepted drafts of every document, at one depth."""

    __pydantic_config__: ClassVar[Mapping[str, Any]] = IN_DOCUMENTS

    num_steps: Depth
    """Their draft depth: that of the headline."""
    digest: str
    """sha256:… of the documents' own digests. Lists of the same digest are of the same documents, in the same order."""
    verify_steps: list[Count]
    """By document, in the order of their digests."""
    accepted: list[Count]
    """Accepted drafts, in the same order."""

    @classmethod
    def of(cls, counts: Mapping[str, tuple[int, int]], num_steps: int) -> DocumentCounts:
        """Returns the counts as a document holds them.

        Args:
            counts: verify steps and accepted drafts, by a digest of the document's text.
            num_steps: their draft depth.
        """
        names = sorted(counts)
        digest = hashlib.sha256(" ".join(names).encode()).hexdigest()
        steps, accepted = ([counts[name][at] for name in names] for at in (0, 1))
        return cls(num_steps, f"sha256:{digest}", steps, accepted)


def summed(counts: Iterable[tuple[str, tuple[int, int]]]) -> dict[str, tuple[int, int]] | None:
    """Returns the counts of every document; None where those are too many. Documents of one text are one.

    Args:
        counts: a digest of a document's text, with verify steps and accepted drafts in it; in any order.
    """
    total: dict[str, tuple[int, int]] = {}
    for name, (steps, accepted) in counts:
        before = total.get(name, (0, 0))
        total[name] = (before[0] + steps, before[1] + accepted)
    return total if len(total) <= MAX_DOCUMENTS else None


def added(
    one: Mapping[str, tuple[int, int]] | None, other: Mapping[str, tuple[int, int]] | None
) -> dict[str, tuple[int, int]] | None:
    """Returns the counts of both, as `summed` does; None where one has none.

    Args:
        one: verify steps and accepted drafts, by document.
        other: the same, of others.
    """
    return None if one is None or other is None else summed([*one.items(), *other.items()])
