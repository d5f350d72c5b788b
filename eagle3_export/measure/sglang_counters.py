"""The names of SGLang's counters in an answer's `meta_info`, release by release.

Source: `managers/tokenizer_manager.py` of every wheel from 0.4.10 to 0.5.23, below `sglang/srt/`. A test derives the
names again from the wheels (`scripts/sglang_counters.py`) and compares. In all of them an accepted draft does not
include the bonus token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from packaging.version import InvalidVersion, Version

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.counts import Counts, counts_of_request
from eagle3_export.measure.facts import read_count


@dataclass(frozen=True, slots=True)
class CounterName:
    """A key of `meta_info`.

    Attributes:
        key: its name.
        since: first release that reports it.
        until: last release that does; None where the newest known one still does.
    """

    key: str
    since: str
    until: str | None = None


VERIFY_STEPS = (CounterName("spec_verify_ct", "0.4.10"),)
ACCEPTED = (
    CounterName("spec_num_correct_drafts", "0.5.12"),
    CounterName("spec_accepted_drafts", "0.5.11", "0.5.20"),
    CounterName("spec_accept_token_num", "0.5.5.post3", "0.5.10.post1"),
)
HISTOGRAM = (
    CounterName("spec_correct_drafts_histogram", "0.5.12"),
    CounterName("spec_accept_histogram", "0.5.9", "0.5.20"),
)
# Accepted drafts / (verify steps * draft depth). Only the releases that report no number of accepted drafts, up to
# 0.5.5.post2, are read by it.
ACCEPT_RATE = (CounterName("spec_accept_rate", "0.5.3.post2"),)

HISTOGRAM_SINCE = HISTOGRAM[-1].since
ACCEPTED_SINCE = ACCEPT_RATE[0].since
CHAT_COUNTERS_SINCE = "0.5.13"  # `return_meta_info` in entrypoints/openai/protocol.py


def read_counts(meta: Any, num_steps: int) -> Counts:
    """Reads the counters of one request.

    Args:
        meta: the answer's `meta_info`.
        num_steps: draft depth of the server.

    Raises:
        MeasurementError: there is no `meta_info`, or its counters contradict each other.
    """
    completion = read_count(meta.get("completion_tokens")) if isinstance(meta, Mapping) else None
    if completion is None:
        raise MeasurementError("The server's answer has no meta_info with completion_tokens.")
    verify_steps = read_count(_first(meta, VERIFY_STEPS))
    accepted = read_count(_first(meta, ACCEPTED))
    histogram = _first(meta, HISTOGRAM)
    if histogram is not None:
        counted = [read_count(count) for count in histogram] if isinstance(histogram, list) else [None]
        if None in counted:
            raise MeasurementError(
                f"The server's histogram of accepted drafts is none: {str(histogram)[:200]}."
            )
        histogram = counted
    if accepted is None and histogram is None:
        accepted = _accepted_of_rate(_first(meta, ACCEPT_RATE), verify_steps, num_steps)
    return counts_of_request(completion, verify_steps, accepted, histogram, num_steps)


def explain_missing(version: str | None, counts: Counts) -> str:
    """Returns why a server of this release gave no acceptance by position."""
    who = f"SGLang {version}" if version else "This SGLang"
    if counts.accepted is None:
        return (
            f"{who} does not report accepted drafts{_later(version, ACCEPTED_SINCE)}, so the acceptance length is the"
            " reported one: completion tokens / verify steps."
        )
    return f"{who} reports how many drafts it accepted, but not at which positions{_later(version, HISTOGRAM_SINCE)}."


def _later(version: str | None, since: str) -> str:
    """Names the release from which on a counter is reported, for a server that is older."""
    try:
        older = version is not None and Version(version) < Version(since)
    except InvalidVersion:
        older = False
    return f" (releases from {since} on do)" if older else " in these answers"


def _first(meta: Mapping[str, Any], names: Sequence[CounterName]) -> Any:
    return next((meta[name.key] for name in names if meta.get(name.key) is not None), None)


def _accepted_of_rate(rate: Any, verify_steps: int | None, num_steps: int) -> int | None:
    """The whole number that the rate was made of; None where there is none."""
    if not isinstance(rate, float | int) or not 0 <= rate <= 1 or not verify_steps:
        return None
    accepted = rate * verify_steps * num_steps
    return round(accepted) if abs(accepted - round(accepted)) < 1e-6 * max(1.0, accepted) else None
