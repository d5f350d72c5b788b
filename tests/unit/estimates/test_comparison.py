"""Which estimates may be compared, and at what depth."""

from __future__ import annotations

import pytest

from eagle3_export.estimates.acceptance import AcceptanceEstimate, estimate_acceptance, estimate_origin
from eagle3_export.estimates.comparison import Basis, kind_of, majority
from eagle3_export.estimates.replay import DepthCounts, ReplayCounts, ReplayedData, replay_record
from tests.support.documents import replayed_documents


def estimate(*full: float, positions: int | None = None, source="validation") -> AcceptanceEstimate:
    metrics = {f"full_acc_{step}": value for step, value in enumerate(full)}
    if positions is not None:
        metrics |= {f"full_acc_{step}_total": positions for step in range(len(full))}
    return estimate_acceptance(metrics, source=source)


SHALLOW = estimate(0.80, 0.62, 0.45)  # 2.87 at 3
DEEP = estimate(0.75, 0.55, 0.38, 0.25, 0.17)  # 3.10 at 5, 2.68 at 3
CONDITIONAL = estimate_acceptance({"cond_acc_0": 0.8, "cond_acc_1": 0.75})
GEOMETRIC = estimate(0.9)
TRAINING = estimate(0.9, 0.8, 0.7, source="training")
NONE = estimate_acceptance({})


def comparable_majority(estimates: list[AcceptanceEstimate]) -> list[int]:
    return majority([kind_of(each) for each in estimates])


def test_estimates_of_different_depth_are_compared_at_the_shallower():
    basis = Basis.common([SHALLOW, DEEP])
    assert basis == Basis("validation", "cumulative", 3)
    assert basis.length(SHALLOW) == pytest.approx(2.87)
    assert basis.length(DEEP) == pytest.approx(2.68)


@pytest.mark.parametrize("other", [CONDITIONAL, GEOMETRIC, TRAINING, NONE])
def test_estimates_of_another_source_or_method_are_not_compared(other):
    assert Basis.common([SHALLOW, other]) is None


def replayed(length: float, source: str, *, digest: str = "", whole: bool = False) -> AcceptanceEstimate:
    """A replay at one draft step; with a digest, of data that `estimate` walked."""
    steps = 100
    accepted = round((length - 1) * steps)
    counts = ReplayCounts(
        1, {1: DepthCounts([steps - accepted, accepted], documents=1)}, documents=1, spans=1
    )
    data = ReplayedData("/data", 0, 1, 0, None, whole, digest) if digest else None
    return estimate_acceptance({}, source=source, replay=replay_record(counts, data=data))


BY_CALLBACK = replayed(1.5, "validation")
AFTERWARDS = replayed(1.6, "estimate", digest="sha256:a", whole=True)
OF_CHAT = replayed(1.9, "estimate", digest="sha256:b")
OF_CHAT_ELSEWHERE = replayed(1.8, "estimate", digest="sha256:b")
OF_CODE = replayed(1.7, "estimate", digest="sha256:c")


def test_a_validation_is_the_same_text_whoever_replayed_it():
    basis = Basis.common([BY_CALLBACK, AFTERWARDS])
    assert basis == Basis("validation", "replay", 1)
    assert basis.length(AFTERWARDS) == pytest.approx(1.6)
    assert estimate_origin(AFTERWARDS) == "validation, replayed afterwards"


@pytest.mark.parametrize("other", [BY_CALLBACK, AFTERWARDS, OF_CODE])
def test_other_data_are_compared_with_the_same_data_only(other):
    assert Basis.common([OF_CHAT, other]) is None
    assert Basis.common([OF_CHAT, OF_CHAT_ELSEWHERE]) is not None
    assert estimate_origin(OF_CHAT) == "1 document of /data"


def test_best_is_not_the_export_that_easier_text_was_replayed_on():
    runs = [BY_CALLBACK, OF_CHAT, AFTERWARDS]
    assert comparable_majority(runs) == [0, 2]


def test_geometric_estimates_are_compared_without_a_depth():
    basis = Basis.common([GEOMETRIC, estimate(0.8)])
    assert basis == Basis("validation", "geometric", None)
    assert basis.length(GEOMETRIC) == pytest.approx(9.0)


def test_nothing_has_no_basis():
    assert Basis.common([]) is None


def test_the_largest_comparable_group_is_chosen():
    assert comparable_majority([GEOMETRIC, SHALLOW, NONE, DEEP]) == [1, 3]
    assert comparable_majority([NONE]) == comparable_majority([]) == []


def test_the_interval_is_that_of_the_common_depth():
    one, other = estimate(0.8, positions=400), estimate(0.8, 0.4, positions=400)
    deep = estimate(0.8, 0.4, 0.2, positions=400)
    low, high = (lambda spread: (spread.low, spread.high))(Basis.common([other, deep]).interval(deep))
    # X accepted drafts: E = .8 + .4 = 1.2, E[X²] = .8 + 3·.4 = 2, sd = sqrt(.56), / sqrt(400) · 1.96 = 0.0733
    assert (low, high) == (pytest.approx(2.2 - 0.0733, abs=0.01), pytest.approx(2.2 + 0.0733, abs=0.01))
    assert Basis.common([one, other]) is None  # the first has one step only, so it is geometric


@pytest.mark.parametrize(
    ("second", "tied"),
    # sd of X at .8, .6, .4 is 1.166: half an interval is 1.96 · 1.166 / sqrt(1000) = 0.072, of a difference 0.102
    [((0.80, 0.60, 0.40), True), ((0.77, 0.57, 0.37), True), ((0.76, 0.56, 0.36), False)],
)
def test_a_difference_within_its_interval_is_a_tie(second, tied):
    estimates = [estimate(0.8, 0.6, 0.4, positions=1000), estimate(*second, positions=1000)]
    found = Basis.common(estimates).difference(*estimates)
    assert (found.tied, found.documents) == (tied, None)


def test_without_intervals_nothing_is_a_tie():
    assert Basis.common([SHALLOW, SHALLOW]).difference(SHALLOW, SHALLOW) is None


def test_replays_of_the_same_documents_are_paired():
    """Each document accepts one draft more of the one: 40 and 70 of 100 steps, no tie whatever the documents are."""
    one, other = (
        estimate_acceptance({}, source="validation", replay=replayed_documents(*accepted))
        for accepted in ((40, 80), (30, 70))
    )
    found = Basis.common([one, other]).difference(one, other)
    assert found.documents == 2
    assert found.tokens == pytest.approx(0.1)
    assert not found.tied
    alone = Basis.common([one, other]).interval(other)
    assert alone.low < one.estimated_acceptance_length < alone.high
