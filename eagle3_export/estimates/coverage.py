"""How much of a run's text the draft vocabulary can spell."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from eagle3_export.errors import CheckpointError
from eagle3_export.estimates.acceptance import Coverage


def draft_vocabulary_coverage(
    frequencies: Mapping[int, int], target_ids: Iterable[int], *, source: str
) -> Coverage:
    """Counts the share of the tokens that the draft vocabulary holds.

    Args:
        frequencies: count by token id of the target's vocabulary.
        target_ids: the ids the draft can say: `i + d2t[i]` for every draft id i; all ids without a map.
        source: what was counted, for the reader of the metadata.

    Raises:
        CheckpointError: nothing was counted.
    """
    tokens = sum(frequencies.values())
    if tokens == 0:
        raise CheckpointError(f"{source} counts no tokens.", remedy="Prepare the training data again.")
    covered = sum(frequencies.get(token, 0) for token in set(target_ids))
    return Coverage(tokens=tokens, covered=covered, ratio=covered / tokens, source=source)
