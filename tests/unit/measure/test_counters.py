"""SGLang's counters: every release's names, what follows from them, and what contradicts."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.version import Version

from eagle3_export.errors import MeasurementError
from eagle3_export.measure.counts import Counts, add_counts, at_least_of_histogram, check_counts
from eagle3_export.measure.sglang_counters import (
    ACCEPT_RATE,
    ACCEPTED,
    HISTOGRAM,
    VERIFY_STEPS,
    explain_missing,
    read_counts,
)
from tests.support.stand_in_server import counters

# By hand: 10 verify steps accept 0 + 1 + 6 + 12 = 19 drafts; 8, 7 and 4 of the steps accept 1, 2 and 3 or more.
HISTOGRAM_OF_TEN = (2, 1, 3, 4)


@pytest.mark.parametrize("release", ["0.5.10", "0.5.11", "0.5.12", "0.5.23"])
def test_every_name_that_accepted_drafts_had(release: str) -> None:
    counts = read_counts({"completion_tokens": 29} | counters(release, HISTOGRAM_OF_TEN), 3)
    check_counts(counts, 3)
    assert counts.acceptance_length == pytest.approx(2.9)
    assert counts.per_position == pytest.approx([0.8, 0.7, 0.4])


@pytest.mark.parametrize("release", ["0.5.5", "0.5.8"])
def test_releases_without_a_histogram(release: str) -> None:
    # 33 tokens: the reported length, 3.3, is another number than the accepted drafts give
    counts = read_counts({"completion_tokens": 33} | counters(release, HISTOGRAM_OF_TEN), 3)
    check_counts(counts, 3)
    assert (counts.acceptance_length, counts.per_position) == (pytest.approx(2.9), None)
    assert explain_missing(release, counts) == (
        f"SGLang {release} reports how many drafts it accepted, but not at which positions"
        " (releases from 0.5.9 on do)."
    )


def test_releases_that_report_verify_steps_only() -> None:
    counts = read_counts({"completion_tokens": 33} | counters("0.5.2", HISTOGRAM_OF_TEN), 3)
    check_counts(counts, 3)
    assert counts.acceptance_length == pytest.approx(3.3)
    assert (
        "SGLang 0.5.2 does not report accepted drafts (releases from 0.5.3.post2 on do)"
        in explain_missing("0.5.2", counts)
    )


@pytest.mark.parametrize("left_out", ["spec_verify_ct", "spec_num_correct_drafts"])
def test_what_follows_from_the_histogram_is_computed(left_out: str) -> None:
    meta = {"completion_tokens": 29} | counters("0.5.23", HISTOGRAM_OF_TEN)
    del meta[left_out]
    counts = read_counts(meta, 3)
    check_counts(counts, 3)
    assert (counts.verify_steps, counts.accepted, counts.at_least) == (10, 19, (8, 7, 4))


def test_an_answer_of_one_token_needs_no_verify_step() -> None:
    one = read_counts({"completion_tokens": 1}, 3)
    ten = read_counts({"completion_tokens": 29} | counters("0.5.23", HISTOGRAM_OF_TEN), 3)
    assert add_counts([one, ten]).per_position == pytest.approx([0.8, 0.7, 0.4])


@pytest.mark.parametrize("histogram", [3, "12", [1, "2"], [1, -2], [True, 2], [10**400]])
def test_a_histogram_that_is_none(histogram: Any) -> None:
    with pytest.raises(MeasurementError, match="histogram"):
        read_counts({"completion_tokens": 3, "spec_verify_ct": 3, "spec_accept_histogram": histogram}, 3)


@given(
    st.dictionaries(
        st.sampled_from([name.key for name in (*VERIFY_STEPS, *ACCEPTED, *HISTOGRAM, *ACCEPT_RATE)]),
        st.one_of(
            st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers(0, 9))
        ),
    ),
    st.integers(0, 5),
)
def test_any_answer_gives_counts_or_our_error(meta: dict[str, Any], depth: int) -> None:
    try:
        counts = read_counts({"completion_tokens": 5} | meta, depth)
        check_counts(counts, depth)
    except MeasurementError:
        return
    if counts.accepted is not None:
        assert 1 <= counts.acceptance_length <= 1 + depth


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_length_is_one_plus_the_sum_over_positions_for_any_histogram(histogram: list[int]) -> None:
    depth, steps = len(histogram) - 1, sum(histogram)
    accepted = sum(n * count for n, count in enumerate(histogram))
    counts = Counts(accepted + steps, steps, accepted, at_least_of_histogram(histogram, depth))
    check_counts(counts, depth)
    assert counts.per_position is not None
    assert counts.acceptance_length == pytest.approx(1 + sum(counts.per_position))


@given(st.lists(st.integers(0, 50), min_size=2, max_size=9).filter(any))
def test_a_rate_gives_back_the_accepted_drafts_it_was_made_of(histogram: list[int]) -> None:
    depth = len(histogram) - 1
    accepted = sum(n * count for n, count in enumerate(histogram))
    meta = {"completion_tokens": 5} | counters("0.5.5", tuple(histogram))
    assert read_counts(meta, depth).accepted == accepted


RELEASES = (
    "0.5.3.post1",
    "0.5.3.post2",
    "0.5.5.post2",
    "0.5.5.post3",
    "0.5.8",
    "0.5.9",
    "0.5.10.post1",
    "0.5.11",
)


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("release", [*RELEASES, "0.5.12", "0.5.20", "0.5.21", "0.5.23"])
def test_the_table_is_what_the_wheels_report(release: str) -> None:
    from tests.support.wheels import reported_counters, wheel

    reported = reported_counters(wheel(release))
    for name in (*VERIFY_STEPS, *ACCEPTED, *HISTOGRAM, *ACCEPT_RATE):
        until = Version(name.until or "99")
        assert (name.key in reported) == (Version(name.since) <= Version(release) <= until), name
