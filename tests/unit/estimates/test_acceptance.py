"""Acceptance-length estimates against values and simulations that owe nothing to the code under test."""

from __future__ import annotations

import itertools
import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.errors import UsageError
from eagle3_export.estimates.acceptance import Coverage, estimate_acceptance
from eagle3_export.estimates.accuracies import step_accuracies, wilson_interval
from eagle3_export.estimates.chain import trained_chain
from eagle3_export.estimates.depth import best_depth

NULLABLE = (
    "source",
    "estimated_acceptance_length",
    "method",
    "includes_bonus_token",
    "num_steps",
    "geometric_acceptance_length",
    "adjusted_acceptance_length",
    "interval",
    "coverage",
)


def lengths(estimate):
    return {row.num_steps: row.acceptance_length for row in estimate.per_depth}


class TestKnownValues:
    def test_cumulative_accuracies_are_added_not_multiplied(self):
        estimate = estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 0.6, "full_acc_2": 0.4})
        assert estimate.estimated_acceptance_length == pytest.approx(2.8)
        assert (estimate.method, estimate.num_steps, estimate.includes_bonus_token) == ("cumulative", 3, True)

    def test_conditional_accuracies_give_the_same_length(self):
        estimate = estimate_acceptance({"cond_acc_0": 0.8, "cond_acc_1": 0.75, "cond_acc_2": 2 / 3})
        assert estimate.estimated_acceptance_length == pytest.approx(2.8)
        assert estimate.method == "conditional"

    def test_the_often_quoted_single_number(self):
        estimate = estimate_acceptance({"full_acc_0_epoch": 0.747})
        assert estimate.estimated_acceptance_length == pytest.approx(2.95, abs=0.005)
        assert estimate.geometric_acceptance_length == estimate.estimated_acceptance_length
        assert (estimate.method, estimate.includes_bonus_token) == ("geometric", False)
        assert any("no bonus token" in text for text in estimate.assumptions)

    def test_geometric_stands_beside_the_chain_under_its_own_name(self):
        estimate = estimate_acceptance({"full_acc_0": 0.747, "full_acc_1": 0.5})
        assert estimate.geometric_acceptance_length == pytest.approx(2.9526, abs=1e-4)
        assert estimate.estimated_acceptance_length == pytest.approx(2.247)

    def test_beyond_the_trained_depth_the_last_conditional_accuracy_goes_on(self):
        estimate = estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 0.4}, [1, 2, 4])
        assert lengths(estimate) == pytest.approx({1: 1.8, 2: 2.2, 4: 2.2 + 0.2 + 0.1})
        assert [row.extrapolated for row in estimate.per_depth] == [False, False, True]

    def test_a_perfect_draft_accepts_everything(self):
        estimate = estimate_acceptance({"full_acc_0": 1.0, "full_acc_1": 1.0}, [1, 5])
        assert lengths(estimate) == {1: 2.0, 5: 6.0}
        assert estimate.geometric_acceptance_length is None
        assert "without limit" in estimate.reasons["geometric_acceptance_length"]

    def test_a_useless_draft_leaves_the_bonus_token(self):
        assert lengths(estimate_acceptance({"full_acc_0": 0.0, "full_acc_1": 0.0}, [1, 5])) == {
            1: 1.0,
            5: 1.0,
        }

    def test_one_missing_step_is_filled_from_its_conditional_accuracy(self):
        estimate = estimate_acceptance({"full_acc_0": 0.8, "cond_acc_1": 0.75, "full_acc_2": 0.4})
        assert estimate.estimated_acceptance_length == pytest.approx(2.8)
        assert estimate.method == "conditional"

    def test_training_accuracies_are_labelled(self):
        estimate = estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 0.6}, source="training")
        assert estimate.source == "training"
        assert "not from held-out data" in estimate.assumptions[0]


class TestRefusedValues:
    @pytest.mark.parametrize(
        ("value", "named"),
        [
            (2.52, "2.52"),
            (-0.1, "-0.1"),
            (math.nan, "nan"),
            (math.inf, "inf"),
            ("0.8", "'0.8'"),
            (True, "True"),
        ],
    )
    def test_an_impossible_accuracy_is_null_with_a_reason_and_never_clamped(self, value, named):
        estimate = estimate_acceptance({"full_acc_0_epoch": value, "full_acc_1_epoch": 0.3})
        assert estimate.steps[0].full_acc is None
        assert estimate.estimated_acceptance_length is None
        assert estimate.per_depth == []
        assert named in estimate.reasons["full_acc_0"]
        assert named in estimate.reasons["estimated_acceptance_length"]

    def test_a_later_bad_step_keeps_full_acc_0_but_gives_no_length(self):
        estimate = estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 1.2, "full_acc_2": 0.4})
        assert estimate.steps[0].full_acc == 0.8
        assert estimate.estimated_acceptance_length is None
        assert "full_acc_1" in estimate.reasons["estimated_acceptance_length"]

    def test_a_cumulative_accuracy_cannot_rise(self):
        estimate = estimate_acceptance({"full_acc_0": 0.4, "full_acc_1": 0.6})
        assert estimate.estimated_acceptance_length is None
        assert "cannot rise" in estimate.reasons["estimated_acceptance_length"]

    def test_fewer_positions_at_the_edges_are_no_rise(self):
        # 3 right of 224, then the same 3 of 216
        shares = {"full_acc_0": 3 / 224, "full_acc_1": 3 / 216}
        counts = {"full_acc_0_total": 224, "full_acc_1_total": 216}
        assert estimate_acceptance(shares).estimated_acceptance_length is not None
        assert estimate_acceptance(shares | counts).estimated_acceptance_length is not None
        more = shares | counts | {"full_acc_1": 4 / 216}
        assert estimate_acceptance(more).estimated_acceptance_length is None

    @pytest.mark.parametrize("ranks", [2, 4])
    def test_accuracies_summed_over_ranks_are_noticed_inside_the_unit_interval(self, ranks):
        true_full, true_cond = [0.2, 0.12, 0.06], [0.2, 0.6 / ranks, 0.5 / ranks]
        full = [true_full[0], true_full[0] * true_cond[1], true_full[0] * true_cond[1] * true_cond[2]]
        metrics = {f"full_acc_{k}": value * ranks for k, value in enumerate(full)}
        metrics |= {f"cond_acc_{k}": value * ranks for k, value in enumerate(true_cond)}
        estimate = estimate_acceptance(metrics)
        assert estimate.estimated_acceptance_length is None
        assert f"{ranks} ranks" in estimate.reasons["estimated_acceptance_length"]

    @pytest.mark.parametrize("depths", [[0, 3], [-1], [65], [2.0], [True], ["3"]])
    def test_a_depth_that_is_none_is_refused(self, depths):
        with pytest.raises(UsageError, match="num_steps holds"):
            estimate_acceptance({"full_acc_0": 0.8, "full_acc_1": 0.6}, depths)

    def test_where_there_is_no_estimate_only_the_length_says_why(self):
        reasons = estimate_acceptance({}, missing_reason="not validated").reasons
        assert [name for name, why in reasons.items() if why == "not validated"] == [
            "estimated_acceptance_length"
        ]
        assert all(reasons[name] for name in NULLABLE)

    def test_no_metrics_at_all(self):
        estimate = estimate_acceptance({"loss_epoch": 1.0}, missing_reason="not validated")
        assert estimate.estimated_acceptance_length is None
        assert estimate.reasons["estimated_acceptance_length"] == "not validated"


share = st.floats(0, 1)
anything = st.one_of(
    st.floats(allow_nan=True), st.integers(), st.text(max_size=5), st.none(), st.booleans(), share
)
metric_key = st.one_of(
    st.tuples(
        st.sampled_from(["full_acc", "cond_acc"]), st.integers(0, 6), st.sampled_from(["", "_epoch"])
    ).map(lambda parts: f"{parts[0]}_{parts[1]}{parts[2]}"),
    st.sampled_from(
        ["full_acc_0_total", "full_acc_1_total_epoch", "full_acc_99999999999", "loss_0", "full_acc_-1"]
    ),
    st.text(max_size=12),
)


@given(st.dictionaries(metric_key, anything, max_size=12))
def test_any_metrics_give_finite_numbers_and_explained_nulls(metrics):
    estimate = estimate_acceptance(metrics, [1, 3, 16])
    for name in NULLABLE:
        assert getattr(estimate, name) is not None or estimate.reasons[name]
    for step in estimate.steps:
        for kind in ("full_acc", "cond_acc"):
            value = getattr(step, kind)
            assert 0 <= value <= 1 if value is not None else estimate.reasons[f"{kind}_{step.step}"]
    for row in estimate.per_depth:
        assert 1 <= row.acceptance_length <= row.num_steps + 1 + 1e-9
    assert "nan" not in repr(asdict(estimate) | {"reasons": None})


@given(st.lists(share, min_size=1, max_size=6), st.integers(1, 20))
def test_lengths_grow_with_depth_and_by_less_each_time(conditional, depth):
    accuracies = step_accuracies({f"cond_acc_{k}": value for k, value in enumerate(conditional)})
    chain = trained_chain(accuracies).to_depth(depth)
    assert len(chain) == depth
    assert all(a >= b - 1e-12 for a, b in itertools.pairwise(chain))


def simulated_chains(rng, conditional, positions):
    """Accepted drafts of `positions` chains, each step right with its own probability."""
    right = rng.random((positions, len(conditional))) < np.asarray(conditional)
    return np.cumprod(right, axis=1)


def metrics_of(accepted):
    metrics = {}
    for step in range(accepted.shape[1]):
        metrics[f"full_acc_{step}_epoch"] = float(accepted[:, step].mean())
        metrics[f"full_acc_{step}_total_epoch"] = float(len(accepted))
    return metrics


class TestAgainstSimulation:
    def test_the_estimate_is_the_mean_length_of_simulated_chains(self):
        accepted = simulated_chains(np.random.default_rng(1), [0.8, 0.7, 0.6], 5000)
        estimate = estimate_acceptance(metrics_of(accepted))
        assert estimate.estimated_acceptance_length == pytest.approx(1 + accepted.sum(axis=1).mean())

    @pytest.mark.parametrize("conditional", [[0.8, 0.7, 0.6], [0.99, 0.98], [0.05, 0.5, 0.5]])
    def test_the_interval_holds_the_truth_about_19_times_in_20(self, conditional):
        rng = np.random.default_rng(2)
        truth = 1 + np.cumprod(conditional).sum()
        hits = 0
        for _ in range(1000):
            interval = estimate_acceptance(metrics_of(simulated_chains(rng, conditional, 200)), [1]).interval
            hits += interval.low <= truth <= interval.high
        assert 920 <= hits <= 990

    def test_the_adjusted_estimate_is_the_mean_length_with_words_outside_the_vocabulary(self):
        rng = np.random.default_rng(3)
        conditional, coverage, positions = [0.8, 0.7, 0.6], 0.9, 200_000
        inside = np.cumprod(rng.random((positions, 3)) < coverage, axis=1)
        served = (simulated_chains(rng, conditional, positions) * inside).sum(axis=1)
        full = np.cumprod(conditional)
        estimate = estimate_acceptance(
            {f"full_acc_{k}": float(value) for k, value in enumerate(full)},
            coverage=Coverage(tokens=100, covered=90, ratio=coverage, source="test"),
        )
        assert estimate.adjusted_acceptance_length == pytest.approx(1 + served.mean(), abs=0.01)
        assert estimate.adjusted_acceptance_length < estimate.estimated_acceptance_length


# Figures of R's prop.test(x, n, correct = FALSE).
@pytest.mark.parametrize(
    ("right", "positions", "low", "high"),
    [(0, 10, 0.0, 0.2775), (8, 10, 0.4902, 0.9433), (10, 10, 0.7225, 1.0)],
)
def test_wilson_interval(right, positions, low, high):
    interval = wilson_interval(right / positions, positions)
    assert (interval.low, interval.high) == pytest.approx((low, high), abs=5e-5)


class TestBestDepth:
    @pytest.mark.parametrize(
        ("cost", "depth", "speedup"), [(0.1, 3, 2.8 / 1.3), (0.4, 2, 2.4 / 1.8), (2, 1, 0.6)]
    )
    def test_the_dearer_a_draft_step_the_shallower_the_chain(self, cost, depth, speedup):
        best = best_depth({1: 1.8, 2: 2.4, 3: 2.8}, cost)
        assert (best.num_steps, best.speedup) == (depth, pytest.approx(speedup))

    @pytest.mark.parametrize("cost", [-1.0, -1e-9, math.nan, math.inf])
    def test_a_cost_that_makes_no_sense_is_refused(self, cost):
        with pytest.raises(UsageError, match="cost ratio"):
            best_depth({1: 1.8}, cost)

    def test_without_a_length_there_is_no_depth(self):
        with pytest.raises(UsageError, match="no acceptance length"):
            best_depth({}, 0.1)

    def test_equal_speedups_take_the_shallower(self):
        assert best_depth({1: 2.0, 3: 2.0}, 0.0).num_steps == 1


@pytest.mark.slow
@pytest.mark.training
def test_what_speculators_counts_is_what_the_estimate_adds():
    """speculators' own metrics of random chains, and the same chains counted here token by token."""
    torch = pytest.importorskip("torch")
    from speculators.losses import eager
    from speculators.models.eagle3.metrics import compute_metrics
    from speculators.train.utils import normalize_counted_metrics

    torch.manual_seed(0)
    steps, length, vocabulary = 3, 400, 4
    targets = torch.randn(1, length, vocabulary)
    mask = torch.ones(1, length, dtype=torch.bool)
    logits = [torch.randn(1, length, vocabulary) for _ in range(steps)]
    for step in range(steps):  # lean towards the right answer, so that chains get long enough to count
        logits[step][:, : length - step] += 2 * targets[:, step:]
    loss = {"kl_div": (eager.kl_div_loss, 1.0)}
    counted, still_right = {}, mask.clone()
    for step in range(steps):
        counted |= compute_metrics(logits[step], targets, mask, still_right, step, 1.0, loss)[1]
    metrics = normalize_counted_metrics({key: float(value) for key, value in counted.items()})

    hits = [0] * steps
    for start in range(length):
        for step in range(steps):
            wanted = start + step
            if wanted >= length or logits[step][0, start].argmax() != targets[0, wanted].argmax():
                break
            hits[step] += 1
    expected = 1 + sum(right / (length - step) for step, right in enumerate(hits))
    estimate = estimate_acceptance(metrics)
    assert estimate.estimated_acceptance_length == pytest.approx(expected, rel=1e-6)
    assert 1.5 < expected < 4
