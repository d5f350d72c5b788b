"""What a validation predicts, against what SGLang's own engine counts on the same prompts: the same histograms.

One verifier with easy and hard stretches, its greedy answers, drafts trained by the command, exports made by the
callback. The two differ in the last verify step of an answer only, and there by a rule: SGLang counts every draft that
the verifier confirms, also those beyond the end of the answer, which no text can tell.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from tests.support.sglang_cpu import serve, stretches, toy
from tests.support.sglang_cpu.proof import needs_sglang, window_flag
from tests.support.training.checks import metadata, output_of
from tests.support.training.harness import start_forked
from tests.support.training.recorder import train
from tests.support.training.tiny_world import AUX_LAYERS, TinyWorld, in_float32, train_arguments

pytestmark = [needs_sglang, pytest.mark.slow, pytest.mark.sglang, pytest.mark.training]

TRAINED, VALIDATED = 60, 15  # documents
DEPTHS = (3, 5, 8)  # the trained one, and two that passes of their own compute
REDUCED, FULL = toy.VOCAB // 2, toy.VOCAB
SERVED = [(REDUCED, depth) for depth in DEPTHS] + [(FULL, 8)]
HOW: dict[str, Any] = {
    "draft_attn_impl": "sdpa",
    "total_seq_len": 512,  # several documents in a batch
    "train_data_ratio": TRAINED / (TRAINED + VALIDATED),
}


@dataclass
class Answer:
    """One request, and what plain PyTorch says of the chains in it.

    Attributes:
        prompt: everything before the answer; in a second turn the first one too.
        tokens: of the answer.
        accepted: by draft vocabulary, for each token the drafts in a row that the verifier confirms, at most 8.
    """

    prompt: list[int]
    tokens: list[int]
    accepted: dict[int, list[int]] = field(default_factory=dict)

    def verify_steps(self, vocabulary: int, depth: int) -> Iterator[tuple[int, int]]:
        """Accepted drafts of each verify step, and how many tokens of the answer were left before it."""
        known = 1  # the prefill gives the first token
        while known < len(self.tokens):
            accepted = min(depth, self.accepted[vocabulary][known - 1])
            yield accepted, len(self.tokens) - known
            known += accepted + 1


@dataclass
class World:
    """What was trained, predicted and served."""

    data: TinyWorld
    folder: Path
    answers: list[Answer]
    served: dict[tuple[int, int], dict[str, Any]] = field(default_factory=dict)

    def validation(self, vocabulary: int) -> tuple[Path, dict[str, Any]]:
        """The arguments' run that validates a frozen draft: its export and the acceptance in its document."""
        export = output_of(self.folder / f"validation-{vocabulary}") / "0"
        return export, metadata(export)["acceptance"]


def frozen(world: World, vocabulary: int) -> dict[str, Any]:
    """Options of a run that validates the trained draft as it was saved, in bfloat16, and leaves it as it is."""
    draft = world.folder / f"draft-{vocabulary}"
    return {**HOW, "draft_vocab_size": vocabulary, "from_pretrained": str(draft), "lr": 0.0, "epochs": 1}


DEEPER = ["--sglang-export.replay-num-steps", str(max(DEPTHS))]


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from tests.support.sglang_cpu import chain_drafting

    folder = tmp_path_factory.mktemp("world")
    verifier = stretches.make_verifier(folder / "verifier")
    documents = stretches.make_answers(folder / "data", verifier, count=TRAINED + VALIDATED, longest=60)
    answers = [
        Answer(document.tokens[:first], document.tokens[first:end])
        for document in documents[TRAINED:]
        for first, end in document.answers
    ]
    made = World(TinyWorld(verifier, folder / "data"), folder, answers)
    target = chain_drafting.Target(verifier, AUX_LAYERS)
    for vocabulary in (REDUCED, FULL):
        run = folder / f"training-{vocabulary}"
        how = {**HOW, "draft_vocab_size": vocabulary, "epochs": 5, "lr": 0.01, "checkpoint_freq": 5}
        assert train(made.data, run, **how)[0] == 0
        draft = in_float32(run / "4", folder / f"draft-{vocabulary}")
        assert (
            train(made.data, folder / f"validation-{vocabulary}", DEEPER, **frozen(made, vocabulary))[0] == 0
        )
        plain = chain_drafting.with_the_targets_embedding(chain_drafting.PlainDraft(draft), target)
        for answer in answers:
            answer.accepted[vocabulary] = chain_drafting.accepted_from(
                target, plain, answer.prompt, answer.tokens, max(DEPTHS)
            )
    made.served = dict(
        zip(SERVED, serve.generate_each([request(made, *case) for case in SERVED]), strict=True)
    )
    return made


def request(world: World, vocabulary: int, depth: int) -> serve.Request:
    export, _ = world.validation(vocabulary)
    return serve.Request(
        world.data.verifier,
        export,
        depth,
        [answer.prompt for answer in world.answers],
        [len(answer.tokens) for answer in world.answers],
        ignore_eos=False,
        options={"skip_tokenizer_init": True, "speculative_draft_window_size": window_flag(export)},
    )


def cut_at_the_end(world: World, vocabulary: int, depth: int) -> list[int]:
    """The histogram with every last verify step counted as far as the answer goes."""
    histogram = [0] * (depth + 1)
    for answer in world.answers:
        for accepted, left in answer.verify_steps(vocabulary, depth):
            histogram[min(accepted, left)] += 1
    return histogram


def test_the_answers_are_of_every_kind(world: World) -> None:
    """Ended by the verifier and by their length, in first and in second turns, several documents in a batch."""
    by_itself = [answer.tokens[-1] == toy.EOS for answer in world.answers]
    assert 3 <= sum(by_itself) <= len(by_itself) - 3
    assert len(world.answers) - VALIDATED >= 3
    assert sum(len(a.prompt) + len(a.tokens) for a in world.answers) > HOW["total_seq_len"]
    _, acceptance = world.validation(REDUCED)
    replay = acceptance["replay"]
    assert (replay["documents"], replay["spans"]) == (VALIDATED, len(world.answers))
    assert replay["first_choice_share"] == 1.0, "the text is the verifier's own"
    # words of the text that the reduced vocabulary does not hold: those miss, in the replay as in the server
    assert replay["response_tokens"] < sum(len(answer.tokens) for answer in world.answers)


@pytest.mark.parametrize(("vocabulary", "depth"), SERVED)
def test_the_predicted_histogram_is_sglangs(world: World, vocabulary: int, depth: int) -> None:
    served = world.served[vocabulary, depth]
    _, acceptance = world.validation(vocabulary)
    predicted = acceptance["replay"]["depths"][depth - 1]
    assert served["output_ids"] == [answer.tokens for answer in world.answers]

    # SGLang is as plain PyTorch says, answer by answer; it counts last steps in full
    walked = [list(answer.verify_steps(vocabulary, depth)) for answer in world.answers]
    for steps, histogram in zip(walked, served["histogram_per_request"], strict=True):
        assert histogram == [sum(accepted == n for accepted, _ in steps) for n in range(depth + 1)]

    # what is predicted differs from it in last steps that went beyond the end of the answer, and in nothing else
    difference = [0] * (depth + 1)
    for steps in walked:
        assert all(accepted < left for accepted, left in steps[:-1]), "only the last step reaches the end"
        for accepted, left in steps[-1:]:
            difference[accepted] += 1
            difference[min(accepted, left)] -= 1
    assert predicted["extrapolated"] is False
    assert predicted["num_steps"] == depth
    assert [
        counted - foreseen
        for counted, foreseen in zip(served["accepted_drafts_histogram"], predicted["histogram"], strict=True)
    ] == difference
    assert predicted["histogram"] == cut_at_the_end(world, vocabulary, depth)
    assert predicted["verify_steps"] == served["verify_steps"]


@pytest.mark.parametrize("depth", [3, 5, 8])
def test_the_mean_over_positions_is_another_number(world: World, depth: int) -> None:
    """The same chains, words outside the draft vocabulary counted: 15 % and more above what is served."""
    chains = [
        min(depth, accepted, len(answer.tokens) - place)
        for answer in world.answers
        for place, accepted in enumerate(answer.accepted[REDUCED][:-1], start=1)
    ]
    over_positions = 1 + sum(chains) / len(chains)
    _, acceptance = world.validation(REDUCED)
    predicted = acceptance["replay"]["depths"][depth - 1]["acceptance_length"]
    assert over_positions > 1.15 * predicted
    counts = world.served[REDUCED, depth]["accepted_drafts_histogram"]
    measured = 1 + sum(n * count for n, count in enumerate(counts)) / sum(counts)
    assert predicted == pytest.approx(measured, rel=0.05), "last steps are a few of many"


def test_two_ranks_predict_the_same(world: World, tmp_path: Path) -> None:
    # batches so long that one for each rank holds all documents: the trainer leaves out what is left over for one rank
    how = {**frozen(world, REDUCED), "total_seq_len": 2 * HOW["total_seq_len"]}
    arguments = [*train_arguments(world.data, tmp_path / "run", **how), *DEEPER]
    run = start_forked(2, arguments, tmp_path)
    assert run.wait() == 0, run.output[-4000:]
    replay = metadata(output_of(tmp_path / "run") / "0")["acceptance"]["replay"]
    _, alone = world.validation(REDUCED)
    assert replay == alone["replay"]
    for depth in DEPTHS:
        assert replay["depths"][depth - 1]["histogram"] == cut_at_the_end(world, REDUCED, depth)
