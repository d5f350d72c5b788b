"""What chains accept of packed batches, against a reference that takes the documents apart again."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from eagle3_export.estimates.replay import ReplayCounts, replay_record  # noqa: E402
from eagle3_export.training import chains  # noqa: E402

VOCABULARY = 4
SPOKEN = (0, 1, 3)  # the draft's words, of the target's


@st.composite
def packed(draw):
    """Documents of (token, is response) pairs, first token included, packed with padding; drafts for each position."""
    token = st.tuples(st.integers(0, VOCABULARY - 1), st.booleans())
    documents = draw(st.lists(st.lists(token, min_size=1, max_size=12), max_size=4))
    padding = draw(st.integers(0, 4))
    steps = draw(st.integers(1, 4))
    length = sum(len(document) - 1 for document in documents) + padding
    row = st.lists(st.integers(0, len(SPOKEN) - 1), min_size=length, max_size=length)
    return documents, padding, draw(st.lists(row, min_size=steps, max_size=steps)), draw(row)


def batch_of(documents, padding):
    ids = [token for document in documents for token, _ in document[1:]] + [0] * padding
    mask = [inside for document in documents for _, inside in document[1:]] + [False] * padding
    numbers = [n for n, document in enumerate(documents) for _ in document[1:]] + [-1] * padding
    return {
        "input_ids": torch.tensor([ids], dtype=torch.long),
        "loss_mask": torch.tensor([mask], dtype=torch.long),
        "document_ids": torch.tensor([numbers], dtype=torch.long),
    }


def responses_of(documents):
    """(document, positions in the packed batch) of every response, in order."""
    found, at = [], 0
    for number, document in enumerate(documents):
        run: list[int] = []
        for _, inside in [*document[1:], (0, False)]:
            if inside:
                run.append(at)
            elif run:
                found.append((number, run))
                run = []
            at += 1
        at -= 1
    return found


@settings(deadline=None)
@given(packed())
def test_a_chain_is_compared_with_its_own_response_only(case):
    documents, padding, drafted, _ = case
    batch = batch_of(documents, padding)
    text = batch["input_ids"][0].tolist()
    collected = chains.ChainReplay(len(drafted), [1])
    offsets = torch.tensor([target - draft for draft, target in enumerate(SPOKEN)])
    collected.add([torch.tensor([row], dtype=torch.long) for row in drafted], batch, offsets)
    (waiting,) = collected._pending
    accepted, responses, numbers, _ = (part.numpy() for part in waiting)
    spans = chains.response_spans(accepted, responses, numbers)
    expected = []
    for number, positions in responses_of(documents):
        lengths = []
        for position in positions:
            length = 0
            while (
                length < len(drafted)
                and position + 1 + length in positions
                and SPOKEN[drafted[length][position]] == text[position + 1 + length]
            ):
                length += 1
            lengths.append(length)
        expected.append((number, lengths))
    assert [(span.document, span.accepted.tolist()) for span in spans] == expected


@settings(deadline=None)
@given(packed(), st.booleans())
def test_the_verifiers_first_choice_is_for_the_next_token_of_the_same_document(case, reduced):
    documents, padding, _, choices = case
    batch = batch_of(documents, padding)
    offsets = torch.tensor([target - draft for draft, target in enumerate(SPOKEN)]) if reduced else None
    spoken = torch.tensor([token in SPOKEN for token in range(VOCABULARY)]) if reduced else None
    found = chains.first_choices(torch.tensor(choices, dtype=torch.long), batch, offsets, spoken)
    counted = chosen = at = 0
    for document in documents:
        for place in range(1, len(document)):
            token, inside = document[place]
            if place > 1 and inside and (not reduced or token in SPOKEN):
                choice = choices[at - 1]
                counted += 1
                chosen += (SPOKEN[choice] if reduced else choice) == token
            at += 1
    assert [int(n) for n in found] == [counted, chosen]


def test_documents_of_several_batches_are_told_apart():
    one_document = [(0, False), (1, True), (1, True), (1, True)]
    batch = batch_of([one_document, one_document], 2)
    collected = chains.ChainReplay(2, [1, 2])
    for _ in range(3):
        collected.add([torch.ones(1, 8, dtype=torch.long)] * 2, batch, None)
    collected.walk()
    collected.walk()
    assert (collected.counts.documents, collected.counts.spans) == (6, 6)
    assert collected.counts.depths[2].histogram == [0, 0, 6]
    assert collected.counts.depths[1].histogram == [0, 6]


@settings(deadline=None)
@given(packed(), st.randoms())
def test_a_document_has_the_same_digest_wherever_it_is_packed(case, random):
    documents = [document for document in case[0] if len(document) > 1]
    others = random.sample(documents, len(documents))

    def digests(order, padding):
        batch = batch_of(order, padding)
        mask, numbers = batch["loss_mask"][0], batch["document_ids"][0]
        responses = chains.response_numbers(mask, numbers)
        return chains.document_digests(batch["input_ids"][0].numpy(), responses.numpy(), numbers.numpy())

    one, other = digests(documents, 2), digests(others, 0)
    texts = {str(document[1:]) for document in documents}
    assert sorted(one.values()) == sorted(other.values())
    assert len(set(one.values())) == len(texts)


def test_counts_of_documents_do_not_depend_on_the_order_of_the_batches():
    """Two documents: of one all drafts are right, of the other none."""
    right, wrong = [(0, False), *[(1, True)] * 4], [(0, False), *[(2, True)] * 4]
    found = []
    for order in ([right, wrong], [wrong, right]):
        collected = chains.ChainReplay(2, [1, 2])
        for document in order:
            collected.add([torch.ones(1, 4, dtype=torch.long)] * 2, batch_of([document], 0), None)
        collected.walk()
        assert ReplayCounts.from_dict(json.loads(json.dumps(collected.counts.as_dict()))) == collected.counts
        found.append(replay_record(collected.counts).per_document)
    # four tokens: the right one takes one verify step of 2 and, one token being left, none more; the wrong one three
    one, other = found
    assert one == other
    assert sorted(zip(one.verify_steps, one.accepted, strict=True)) == [(1, 2), (3, 0)]
