"""The difference of two replays of the same documents, against sums made by hand."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.estimates.pairing import paired_difference
from eagle3_export.estimates.per_document import MAX_DOCUMENTS, DocumentCounts, added
from eagle3_export.estimates.replay import Span, replay, replay_record


def counts(accepted, steps=(10, 10, 10), *, digest="sha256:a", num_steps=3) -> DocumentCounts:
    return DocumentCounts(num_steps, digest, list(steps), list(accepted))


def test_a_difference_that_changes_its_sign_from_document_to_document_is_a_tie():
    found = paired_difference(counts([10, 20, 30]), counts([8, 18, 31]))
    # 60 / 30 - 57 / 30 = 0.1. Linearised over 30 steps, by document: 1 / 30, 1 / 30, -2 / 30; squares 6 / 900,
    # times 3 / 2 is 0.01; Student's t of two degrees 4.302653.
    assert found.tokens == pytest.approx(0.1)
    assert found.interval.low == pytest.approx(0.1 - 0.4302653)
    assert found.interval.high == pytest.approx(0.1 + 0.4302653)
    assert found.documents == 3
    assert found.tied


def test_what_is_the_same_in_every_document_is_no_tie_however_different_the_documents_are():
    found = paired_difference(counts([10, 20, 30]), counts([9, 19, 29]))
    assert found.interval.low == pytest.approx(0.1) == found.interval.high
    assert not found.tied
    # Taken alone, either length is uncertain by 4.3 · sqrt(3 / 2 · 200) / 30 = 2.5 tokens.


def test_a_draft_ties_with_itself():
    found = paired_difference(counts([10, 20, 30]), counts([10, 20, 30]))
    assert (found.tokens, found.interval.low, found.interval.high, found.tied) == (0, 0, 0, True)


@pytest.mark.parametrize(
    "other",
    [None, counts([1, 2, 3], digest="sha256:b"), counts([1, 2, 3], num_steps=5), counts([1, 2], (10, 10))],
)
def test_only_the_same_documents_at_one_depth_are_paired(other):
    assert paired_difference(counts([1, 2, 3]), other) is None


def test_one_document_is_no_sample():
    assert paired_difference(counts([1], (10,)), counts([2], (10,))) is None


@given(st.lists(st.lists(st.integers(0, 3), min_size=2, max_size=30), min_size=2, max_size=9))
def test_against_a_draft_that_is_never_right_it_is_the_interval_of_the_length(texts):
    """The one and only uncertainty is then that of the other, which `DepthCounts.interval` knows."""
    names = {number: f"{number:02d}" for number in range(len(texts))}
    spans = [Span(n, np.minimum(text, np.arange(len(text))[::-1])) for n, text in enumerate(texts)]
    walked = replay(spans, 3, [1, 3], names)
    one = replay_record(walked).per_document
    never = replay([Span(s.document, np.zeros_like(s.accepted)) for s in spans], 3, [3], names)
    found = paired_difference(one, replay_record(never).per_document)
    alone = walked.depths[3].interval()
    assert (sum(one.verify_steps), sum(one.accepted)) == (
        walked.depths[3].verify_steps,
        sum(a * n for a, n in enumerate(walked.depths[3].histogram)),
    )
    assert found.tokens == pytest.approx(walked.depths[3].acceptance_length - 1)
    assert min(4.0, 1 + found.interval.high) == pytest.approx(alone.high)
    assert max(1.0, 1 + found.interval.low) == pytest.approx(alone.low)


def test_documents_of_one_text_are_one_cluster_and_too_many_are_not_kept():
    assert added({"a": (1, 2)}, {"a": (3, 4), "b": (5, 6)}) == {"a": (4, 6), "b": (5, 6)}
    assert added(None, {"a": (1, 2)}) is added({"a": (1, 2)}, None) is None
    many = {str(n): (1, 1) for n in range(MAX_DOCUMENTS)}
    assert len(added(many, {"0": (1, 1)})) == MAX_DOCUMENTS
    assert added(many, {"one more": (1, 1)}) is None


def test_why_there_are_no_counts_of_documents():
    spans = [Span(number, np.array([0, 0])) for number in range(MAX_DOCUMENTS + 1)]
    record = replay_record(replay(spans, 1, [1], {n: str(n) for n in range(len(spans))}))
    assert record.per_document is None
    assert record.reasons["per_document"] == "There are more than 2000 documents."
    assert "not told apart" in replay_record(replay(spans[:3], 1, [1])).reasons["per_document"]
