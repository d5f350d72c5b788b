"""Replays of sampled text against a server that samples, simulated in plain PyTorch.

SGLang with a draft and no `--speculative-use-rejection-sampling`: a drafted token is accepted with the probability that
the target gives it; after a rejection the target's distribution without that token is sampled. A replay never sees
those probabilities: it compares the drafts with text that the target sampled by itself. Both must count the same.
"""

from __future__ import annotations

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.slow

from eagle3_export.estimates.replay import Span, replay  # noqa: E402

WORDS, DEEPEST, DOCUMENTS, TOKENS = 24, 8, 1500, 80
HALF = WORDS // 2


def target_and_chains():
    """A target that remembers one word, [WORDS, WORDS]; and what a draft says after each word, [WORDS, DEEPEST].

    After the first half of the words the target is nearly certain, after the other half it is not; a text changes
    over once in a while. The draft knows the likeliest word, but for some words another, and is worse at every
    second step of a chain.
    """
    random = torch.Generator().manual_seed(0)
    scores = torch.randn(WORDS, WORDS, generator=random)
    likeliest = torch.cat(
        [torch.randperm(HALF, generator=random), HALF + torch.randperm(HALF, generator=random)]
    )
    words = torch.arange(WORDS)
    scores[words, likeliest] += torch.where(words < HALF, 7.0, 3.5)
    scores[:HALF, HALF:] -= 2.0
    scores[HALF:, :HALF] -= 2.0
    probabilities = scores.softmax(-1)
    first = probabilities.argmax(-1)
    first[::7] = (first[::7] + 1) % WORDS
    second = first.clone()
    second[::4] = (second[::4] + 3) % WORDS
    chains, last = [], words
    for step in range(DEEPEST):
        last = (second if step % 2 else first)[last]
        chains.append(last)
    return probabilities, torch.stack(chains, dim=1)


def sampled(probabilities, random):
    return torch.multinomial(probabilities, 1, generator=random)[:, 0]


def texts(probabilities, random):
    """Texts [DOCUMENTS, TOKENS] that the target samples by itself."""
    tokens = [torch.randint(0, WORDS, (DOCUMENTS,), generator=random)]
    while len(tokens) < TOKENS:
        tokens.append(sampled(probabilities[tokens[-1]], random))
    return torch.stack(tokens, dim=1)


def replayed(tokens, chains, depth):
    """Histograms [DOCUMENTS, depth + 1] of the replay, one document at a time."""
    lengths = torch.zeros(tokens.shape, dtype=torch.long)
    for place in range(TOKENS - 1):
        follow = tokens[:, place + 1 : place + 1 + DEEPEST]
        right = chains[tokens[:, place], : follow.shape[1]] == follow
        lengths[:, place] = right.long().cumprod(1).sum(1)
    return np.array(
        [
            replay([Span(0, row)], DEEPEST, [depth]).depths[depth].histogram
            for row in lengths.numpy().astype(np.int64)
        ]
    ), lengths


def served(probabilities, chains, depth, random):
    """Histograms [DOCUMENTS, depth + 1] of the simulated server; what lies beyond the end is not counted."""
    last = torch.randint(0, WORDS, (DOCUMENTS,), generator=random)
    known = torch.ones(DOCUMENTS, dtype=torch.long)
    histogram = torch.zeros(DOCUMENTS, depth + 1, dtype=torch.long)
    while (going := known < TOKENS).any():
        start, accepted = last.clone(), torch.zeros(DOCUMENTS, dtype=torch.long)
        holds = torch.ones(DOCUMENTS, dtype=torch.bool)
        rejected = torch.full((DOCUMENTS,), -1)
        for step in range(depth):
            drafted = chains[start, step]
            chance = probabilities[last].gather(1, drafted[:, None])[:, 0]
            right = holds & (torch.rand(DOCUMENTS, generator=random) < chance)
            rejected = torch.where(holds & ~right, drafted, rejected)
            last = torch.where(right, drafted, last)
            accepted += right
            holds = right
        remaining = probabilities[last].clone()
        refused = rejected >= 0
        remaining[refused, rejected[refused]] = 0.0
        last = sampled(remaining, random)  # the bonus token
        counted = torch.minimum(accepted, TOKENS - known)
        histogram[going, counted[going]] += 1
        known += torch.where(going, accepted + 1, 0)
    return histogram.numpy()


def share(counts, totals):
    """A ratio of two sums over documents, and its standard error."""
    mean = counts.sum() / totals.sum()
    residuals = counts - mean * totals
    return mean, np.sqrt((residuals**2).sum()) / totals.sum()


@pytest.mark.parametrize("depth", [1, 3, 5, 8])
def test_a_replay_of_sampled_text_counts_what_a_sampling_server_accepts(depth):
    probabilities, chains = target_and_chains()
    random = torch.Generator().manual_seed(depth)
    foreseen, lengths = replayed(texts(probabilities, random), chains, depth)
    found = served(probabilities, chains, depth, random)
    assert (foreseen @ np.arange(1, depth + 2)).min() >= TOKENS - 1
    for accepted in range(depth + 1):
        mine, my_error = share(foreseen[:, accepted], foreseen.sum(1))
        theirs, their_error = share(found[:, accepted], found.sum(1))
        assert abs(mine - theirs) < 4 * np.hypot(my_error, their_error), accepted
        assert my_error < 0.007, "fine enough to tell"
    mine, my_error = share(foreseen @ np.arange(depth + 1), foreseen.sum(1))
    theirs, their_error = share(found @ np.arange(depth + 1), found.sum(1))
    assert abs(mine - theirs) < 4 * np.hypot(my_error, their_error)
    if depth >= 5:  # and the mean over positions is something else
        over_positions = lengths.clamp(max=depth)[:, :-1].float().mean().item()
        assert (1 + over_positions) > 1.1 * (1 + theirs)
