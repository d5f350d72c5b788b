"""The walk against a reference of ten lines, against simulated servers, and against figures known from elsewhere."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.documents.metadata import with_metrics
from eagle3_export.estimates.acceptance import (
    estimate_acceptance,
    estimate_terms,
    estimated_interval,
    estimated_lengths,
)
from eagle3_export.estimates.comparison import Basis
from eagle3_export.estimates.replay import (
    ReplayCounts,
    Span,
    continued,
    lengths_at,
    replay,
    replay_record,
    student_t95,
)
from tests.support.documents import export


def reference(right, depth):
    """Walks one response token by token. right[i][k]: draft k of the chain after token i equals token i + 1 + k."""
    histogram, token = [0] * (depth + 1), 0
    while token < len(right) - 1:
        accepted = 0
        while accepted < depth and token + 1 + accepted < len(right) and right[token][accepted]:
            accepted += 1
        histogram[accepted] += 1
        token += accepted + 1
    return histogram


def accepted_of(right):
    """Per token, the drafts in a row that are right, as far as the response goes."""
    rows = []
    for token, row in enumerate(right):
        inside = row[: len(right) - 1 - token]
        rows.append(inside.index(False) if False in inside else len(inside))
    return np.array(rows, dtype=np.int64)


@st.composite
def documents(draw):
    """Documents as lists of responses, with the drafts right or wrong at every token; and the trained depth."""
    steps = draw(st.integers(1, 5))
    row = st.lists(st.booleans(), min_size=steps, max_size=steps)
    response = st.lists(row, min_size=0, max_size=25)
    return steps, draw(st.lists(st.lists(response, max_size=3), max_size=5))


def spans_of(texts):
    return [Span(n, accepted_of(right)) for n, text in enumerate(texts) for right in text]


@given(documents())
def test_the_walk_is_the_reference_walk(case):
    steps, texts = case
    counts = replay(spans_of(texts), steps, range(1, steps + 1))
    for depth in range(1, steps + 1):
        walked = [[reference(right, depth) for right in text if len(right) > 1] for text in texts]
        walked = [text for text in walked if text]
        expected = np.sum([row for text in walked for row in text] or [[0] * (depth + 1)], axis=0)
        found = counts.depths[depth]
        assert found.histogram == expected.tolist()
        assert (found.documents, counts.spans) == (len(walked), sum(map(len, walked)))
        verify_steps = [sum(map(sum, text)) for text in walked]
        accepted = [sum(a * n for row in text for a, n in enumerate(row)) for text in walked]
        assert found.accepted_squared == sum(a * a for a in accepted)
        assert found.accepted_times_steps == sum(a * s for a, s in zip(accepted, verify_steps, strict=True))
        assert found.steps_squared == sum(s * s for s in verify_steps)
        if found.verify_steps:
            assert found.acceptance_length == pytest.approx(1 + sum(accepted) / sum(verify_steps))
            shares = found.accepted_per_position
            assert 1 + sum(shares) == pytest.approx(found.acceptance_length)
            assert all(0 <= b <= a <= 1 for a, b in zip([1, *shares], shares, strict=False))


@given(documents())
def test_every_token_is_accepted_or_a_bonus_token_once(case):
    steps, texts = case
    for span in spans_of(texts):
        (counts,) = replay([span], steps, [steps]).depths.values()
        tokens = sum((a + 1) * n for a, n in enumerate(counts.histogram))
        follow = max(0, len(span.accepted) - 1)
        assert tokens in (follow, follow + 1), "the last step's bonus token may lie beyond the end"


@given(documents(), st.integers(1, 4))
def test_ranks_may_share_the_documents_in_any_way(case, ranks):
    steps, texts = case
    whole = replay(spans_of(texts), steps, range(1, steps + 3))
    parts = ReplayCounts(steps)
    for rank in range(ranks):
        mine = [span for span in spans_of(texts) if span.document % ranks == rank]
        part = replay(mine, steps, range(1, steps + 3))
        parts.add(ReplayCounts.from_dict(json.loads(json.dumps(part.as_dict()))))
    assert parts == whole


def continued_by_hand(accepted, steps):
    """Chain i goes on over token i + 1 + k, k >= steps, if the chain of k - steps + 1 tokens later holds to its end."""
    n, result = len(accepted), []
    for i, held in enumerate(accepted):
        length = int(held)
        if length >= min(steps, n - 1 - i):
            while length < n - 1 - i and accepted[i + length - steps + 1] >= min(
                steps, n - 1 - (i + length - steps + 1)
            ):
                length += 1
        result.append(length)
    return result


@given(documents())
def test_beyond_the_trained_depth_a_chain_goes_on_as_the_next_ones_do(case):
    steps, texts = case
    for span in spans_of(texts):
        assert continued(span.accepted, steps).tolist() == continued_by_hand(span.accepted, steps)
        for depth in range(1, 9):
            lengths = lengths_at(span.accepted, steps, depth)
            assert (lengths <= np.maximum(0, np.arange(len(lengths))[::-1])).all()
            assert (np.minimum(lengths, steps) == np.minimum(span.accepted, depth)).all()


def clumpy(rng, tokens, depth, *, easy=0.95, hard=0.45, stretch=50):
    """A text of easy and hard stretches, geometric of that mean length; chains of `depth` drafts at every token."""
    stays = rng.random(tokens + depth) >= 1 / stretch
    chances = np.where(np.cumsum(~stays) % 2 == 0, easy, hard)
    right = (
        rng.random((tokens, depth)) < np.lib.stride_tricks.sliding_window_view(chances[1:], depth)[:tokens]
    )
    return np.minimum(np.cumprod(right, axis=1).sum(axis=1), np.arange(tokens)[::-1])


@pytest.mark.parametrize(
    ("depth", "positions", "steps"), [(3, 2.72, 2.38), (5, 3.48, 2.68), (10, 5.04, 3.05)]
)
def test_clumpy_text_is_walked_in_more_steps_than_its_mean_over_positions_says(depth, positions, steps):
    """Figures of another simulation of the same text."""
    rng = np.random.default_rng(0)
    spans = [Span(n, clumpy(rng, 4000, depth)) for n in range(250)]
    counts = replay(spans, depth, [depth]).depths[depth]
    assert 1 + np.mean([span.accepted.mean() for span in spans]) == pytest.approx(positions, rel=0.02)
    assert counts.acceptance_length == pytest.approx(steps, rel=0.02)


def test_with_one_difficulty_everywhere_the_two_means_agree():
    accepted = clumpy(np.random.default_rng(1), 100_000, 5, easy=0.7, hard=0.7)
    counts = replay([Span(0, accepted)], 5, [5]).depths[5]
    assert counts.acceptance_length == pytest.approx(1 + accepted.mean(), rel=0.01)


def test_continued_chains_of_clumpy_text_come_near_to_those_that_were_computed():
    """Extrapolated from 5 steps to 10, where the mean over positions is off by two thirds."""
    rng = np.random.default_rng(2)
    # a draft that is right or wrong by the token, however early its chain began
    tokens = 100_000
    state = np.cumsum(rng.random(tokens) < 1 / 50) % 2
    right = rng.random(tokens) < np.where(state == 0, 0.95, 0.45)
    wrong_at = np.where(right, tokens, np.arange(tokens))
    run = np.minimum.accumulate(wrong_at[::-1])[::-1][1:] - np.arange(1, tokens)
    deep = np.append(np.minimum(run, 10), 0)
    computed = replay([Span(0, deep)], 10, [10]).depths[10].acceptance_length
    from_five = replay([Span(0, np.minimum(deep, 5))], 5, [10]).depths[10].acceptance_length
    assert from_five == pytest.approx(computed, rel=1e-6)


@pytest.mark.parametrize("count", [10, 40])
def test_the_interval_over_documents_holds_the_truth_about_19_times_in_20(count):
    rng = np.random.default_rng(3)
    depth, tokens = 5, 200

    def document(n):
        difficulty = rng.uniform(0.3, 0.95)  # documents differ, as real ones do
        return Span(n, clumpy(rng, tokens, depth, easy=min(0.99, difficulty + 0.2), hard=difficulty - 0.2))

    truth = replay([document(n) for n in range(4_000)], depth, [depth]).depths[depth].acceptance_length
    hits = 0
    for _ in range(300):
        interval = replay([document(n) for n in range(count)], depth, [depth]).depths[depth].interval()
        hits += interval.low <= truth <= interval.high
    assert 0.90 <= hits / 300 <= 0.985


def test_one_document_has_no_interval_and_none_has_no_steps():
    span = Span(0, np.array([1, 0, 1, 0]))
    assert replay([span], 1, [1]).depths[1].interval() is None
    empty = replay([Span(0, np.array([0]))], 1, [1])
    assert (empty.documents, empty.spans, empty.depths[1].histogram) == (0, 0, [0, 0])


@pytest.mark.parametrize(
    ("degrees", "quantile"),
    [(1, 12.706), (3, 3.182), (4, 2.776), (5, 2.571), (10, 2.228), (30, 2.042), (1000, 1.962)],
)
def test_student_t_as_in_the_tables(degrees, quantile):
    assert student_t95(degrees) == pytest.approx(quantile, rel=1e-3)


METRICS = {"full_acc_0": 0.8, "full_acc_1": 0.6, "full_acc_2": 0.4}


class TestInAnEstimate:
    """The replay becomes the headline, and everything beside it keeps its own name."""

    def walked(self, **shares):
        spans = [Span(n, np.array([3, 0, 1, 2, 0, 0])) for n in range(4)]
        counts = replay(spans, 3, [1, 2, 3, 5])
        counts.response_tokens, counts.first_choices = shares.get("tokens", 0), shares.get("chosen", 0)
        return replay_record(counts)

    def test_the_headline_is_the_walk_at_the_trained_depth(self):
        # a chain of three, a bonus token, then one that never holds: two verify steps for six tokens
        estimate = estimate_acceptance(METRICS, [1, 3, 5, 10], replay=self.walked())
        assert (estimate.method, estimate.num_steps, estimate.source) == ("replay", 3, "validation")
        assert estimate.estimated_acceptance_length == pytest.approx(1 + 3 / 2)
        assert estimate.position_mean_acceptance_length == pytest.approx(2.8)
        assert estimate.adjusted_acceptance_length is None
        assert "as they occur" in estimate.reasons["adjusted_acceptance_length"]
        assert [(row.num_steps, row.extrapolated) for row in estimate.per_depth] == [
            (1, False),
            (3, False),
            (5, True),
        ]
        assert estimated_lengths(estimate, 16) == pytest.approx({1: 1 + 2 / 3, 2: 3.0, 3: 2.5, 5: 2.5})
        assert estimated_lengths(estimate, 16, adjusted=True) == {}
        assert estimated_interval(estimate, 3) == estimate.interval is not None
        assert estimated_interval(estimate, 4) is None
        assert estimate_terms(estimate) == "3 draft steps, bonus token included, replay"
        assert not any("independent" in text for text in estimate.assumptions)

    def test_a_replay_is_compared_with_replays_only(self):
        with_replay = estimate_acceptance(METRICS, replay=self.walked())
        without = estimate_acceptance(METRICS, no_replay="It rained.")
        assert Basis.common([with_replay, without]) is None
        assert Basis.common([with_replay, with_replay]).num_steps == 3
        assert (without.method, without.reasons["replay"]) == ("cumulative", "It rained.")
        assert without.position_mean_acceptance_length == without.estimated_acceptance_length

    def test_chains_deeper_than_trained_replace_what_was_extrapolated(self):
        spans = [Span(n, np.array([3, 0, 1, 2, 0, 0])) for n in range(4)]
        deep = [Span(n, np.array([5, 0, 1, 2, 0, 0])) for n in range(2)]
        record = replay_record(replay(spans, 3, [3, 5]), replay(deep, 5, [3, 5, 8]))
        assert [(w.num_steps, w.extrapolated, w.documents) for w in record.depths] == [
            (3, False, 4),
            (5, False, 2),
            (8, True, 2),
        ]
        assert record.computed_steps == 5

    @pytest.mark.parametrize(("chosen", "found"), [(89, True), (90, False), (0, True)])
    def test_text_of_somebody_else_is_a_finding(self, chosen, found):
        document = with_metrics(export(), METRICS, replay=self.walked(tokens=100, chosen=chosen))
        assert document.acceptance.replay.first_choice_share == chosen / 100
        again = with_metrics(document, METRICS)
        assert again.acceptance == document.acceptance, "the replay of this checkpoint stays"
        for one in (document, again):
            ids = [finding.id for finding in one.sglang.findings]
            assert ids.count("text-not-the-verifiers") == found

    def test_a_replay_without_metrics_speaks_for_itself(self):
        estimate = estimate_acceptance({}, [3], replay=self.walked(), missing_reason="not logged")
        assert (estimate.estimated_acceptance_length, estimate.source) == (2.5, "validation")
        for name in ("position_mean_acceptance_length", "geometric_acceptance_length"):
            assert estimate.reasons[name] == "not logged"
        assert estimate.replay.first_choice_share is None
        assert estimate.replay.reasons["first_choice_share"]
