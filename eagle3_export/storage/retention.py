"""Which exports are old enough to go."""

from __future__ import annotations

from collections.abc import Collection, Mapping


def outdated(
    epochs: Mapping[str, int | None], keep_last: int | None, protected: Collection[str] = ()
) -> list[str]:
    """Returns the names that retention removes, lowest epoch first.

    Args:
        epochs: the epoch that each export, or each checkpoint it would be made from, is named by; None for other
            names, which always stay.
        keep_last: how many of the highest epochs stay; None keeps all.
        protected: names that stay in any case.
    """
    if keep_last is None:
        return []
    numbered = sorted((epoch, name) for name, epoch in epochs.items() if epoch is not None)
    return [name for _, name in numbered[: -max(keep_last, 1)] if name not in protected]
