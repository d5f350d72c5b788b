"""The replay of the real trainer's own validation, against a walk over the same passes token by token."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.training.replay import Replayed, ValidationReplay
from tests.support.training.checks import metadata, output_of
from tests.support.training.harness import start_forked
from tests.support.training.recorder import train, with_trainer
from tests.support.training.tiny_world import TinyWorld, in_float32, train_arguments

# until some drafts are right
LEARNS: dict[str, Any] = {"lr": 0.01, "epochs": 15, "draft_attn_impl": "sdpa", "train_data_ratio": 0.6}

pytestmark = [pytest.mark.slow, pytest.mark.training]


@pytest.fixture(scope="session")
def turns(world: TinyWorld, tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    """The tiny world with documents of several turns, of none, of one token, and responses at both ends."""
    from datasets import Dataset, load_from_disk

    data = tmp_path_factory.mktemp("turns") / "data"
    shutil.copytree(world.data, data, ignore=shutil.ignore_patterns("*.arrow", "*.json"))
    masks = [
        [0] * 4 + [1] * 28,
        [0] * 6 + [1] * 9 + [0] * 5 + [1] * 12,
        [0] * 3 + [1] * 1 + [0] * 8 + [1] * 2 + [0] * 18,
        [1] * 32,
        [0] * 32,
        [1] * 5 + [0] * 26 + [1],
    ]
    rows = load_from_disk(str(world.data)).with_format(None)
    dataset = Dataset.from_dict(
        {
            "input_ids": rows["input_ids"],
            "loss_mask": [masks[n % len(masks)] for n in range(len(rows))],
            "seq_len": rows["seq_len"],
        }
    )
    dataset.set_format("torch")
    dataset.save_to_disk(data)
    return TinyWorld(world.verifier, data)


def walked_by_hand(trainer: Any, steps: int, depth: int) -> dict[str, Any]:
    """Histogram, documents and first choices of a validation, from passes made here and taken apart as lists."""
    import torch

    histogram, documents, spans, counted, chosen = [0] * (depth + 1), 0, 0, 0, 0
    model = trainer.model
    model.eval()
    trainer.val_loader.batch_sampler.set_epoch(0)
    spoken = model.t2d.nonzero()[:, 0].tolist()
    for batch in trainer.val_loader:
        inputs = {key: value for key, value in batch.items() if isinstance(value, torch.Tensor)}
        with torch.no_grad():
            drafted, _, _ = model(**inputs, **{**trainer.config.val_call_kwargs, "ttt_steps": steps})
            states = model.verifier_norm(inputs["verifier_last_hidden_states"])
            choices = model.verifier_lm_head(states).argmax(-1)[0].tolist()
        drafts = [[spoken[i] for i in step[0].tolist()] for step in drafted]
        text, mask, numbers = (inputs[k][0].tolist() for k in ("input_ids", "loss_mask", "document_ids"))
        for number in sorted(set(numbers) - {-1}):
            places = [i for i, n in enumerate(numbers) if n == number]
            walks = False
            for i in places[1:]:
                if mask[i] and text[i] in spoken:
                    counted += 1
                    chosen += spoken[choices[i - 1]] == text[i]
            while places:
                run = []
                while places and mask[places[0]]:
                    run.append(places.pop(0))
                at = 0
                spans += len(run) > 1
                while at < len(run) - 1:
                    walks, got = True, 0
                    while (
                        got < depth
                        and at + 1 + got < len(run)
                        and drafts[got][run[at]] == text[run[at + 1 + got]]
                    ):
                        got += 1
                    histogram[got] += 1
                    at += got + 1
                places[:1] = []
            documents += walks
    return {
        "histogram": histogram,
        "documents": documents,
        "spans": spans,
        "tokens": counted,
        "first_choices": chosen,
    }


def validated(trainer: Any, **options: Any) -> tuple[Replayed, dict[str, float], dict[str, float]]:
    """The replay of a validation, its metrics, and those of the same validation without a replay."""
    replay = ValidationReplay(trainer, (1, 8), **options)
    for epoch in range(trainer.config.num_epochs):
        trainer.train_epoch(epoch)
    plain = trainer.val_epoch(0)
    with replay.watching():
        metrics = trainer.val_epoch(0)
    return replay.result(), metrics, plain


@pytest.mark.parametrize("packed", [256, 80], ids="{} tokens a batch".format)
@pytest.mark.parametrize("deeper", [None, 6], ids="deeper {}".format)
def test_the_replay_is_the_walk_over_the_validation(
    turns: TinyWorld, save_path: Path, packed: int, deeper: int | None
) -> None:
    def use(trainer: Any) -> None:
        replayed, metrics, plain = validated(trainer, replay_num_steps=deeper)
        assert metrics == plain, "not one bit of what the trainer logs and saves by may change"
        assert not trainer.model._forward_hooks
        assert replayed.reason is None
        counts = replayed.counts
        assert counts is not None and set(counts.depths) == set(range(1, 17))
        for depth in (1, 2, 3):
            expected = walked_by_hand(trainer, 3, depth)
            assert counts.depths[depth].histogram == expected["histogram"]
            assert (counts.documents, counts.spans) == (expected["documents"], expected["spans"])
            assert counts.response_tokens == expected["tokens"]
            assert counts.first_choices == expected["first_choices"]
        assert counts.documents > 3
        assert sum(a * n for a, n in enumerate(counts.depths[3].histogram)) > 20, "some drafts must be right"
        if deeper is None:
            assert replayed.deeper is None
        else:
            assert replayed.deeper is not None and set(replayed.deeper.depths) == set(range(1, 17))
            for depth in (3, 6):
                expected = walked_by_hand(trainer, 6, depth)
                assert replayed.deeper.depths[depth].histogram == expected["histogram"]

    with_trainer(turns, save_path, use, total_seq_len=packed, **LEARNS)


def test_documents_that_the_packing_cuts_off_are_walked_as_far_as_they_go(
    turns: TinyWorld, save_path: Path
) -> None:
    def use(trainer: Any) -> None:
        # a collate function of fewer tokens than the sampler packs cuts the last document of each batch
        trainer.val_loader.collate_fn.max_len = 70
        replayed, metrics, plain = validated(trainer)
        assert metrics == plain
        assert replayed.counts is not None
        assert replayed.counts.depths[3].histogram == walked_by_hand(trainer, 3, 3)["histogram"]

    with_trainer(turns, save_path, use, total_seq_len=100, **LEARNS)


def test_a_compiled_forward_pass_is_replayed_too(turns: TinyWorld, save_path: Path) -> None:
    """As on a GPU, where speculators compiles `forward`; traced here and not turned into machine code."""
    import torch

    def use(trainer: Any) -> None:
        plain_forward = type(trainer.model).forward
        graphs: list[Any] = []

        def backend(graph: Any, _: Any) -> Any:
            graphs.append(graph)
            return graph.forward

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(trainer.model), "forward", torch.compile(plain_forward, backend=backend))
            replayed, metrics, plain = validated(trainer)
            assert graphs
            first = len(graphs)
            with ValidationReplay(trainer, (1,)).watching():
                assert trainer.val_epoch(0) == metrics
            assert len(graphs) == first, "a second replay compiles nothing"
        assert metrics == plain
        assert replayed.counts is not None
        expected = walked_by_hand(trainer, 3, 3)
        assert replayed.counts.depths[3].histogram == expected["histogram"]
        assert replayed.counts.first_choices == expected["first_choices"] > 0

    with_trainer(turns, save_path, use, **LEARNS)


def test_what_cannot_be_replayed_is_a_reason_and_no_error(turns: TinyWorld, save_path: Path) -> None:
    def use(trainer: Any) -> None:
        replay = ValidationReplay(trainer, (1,))
        assert replay.result().reason == "No validation pass was seen."
        # a model that returns its drafts in another form
        handle = trainer.model.register_forward_hook(lambda m, i, out: (out[0][0], *out[1:]))
        with replay.watching():
            metrics = trainer.val_epoch(0)
        handle.remove()
        assert metrics["full_acc_0_epoch"] >= 0
        assert "nothing to replay" in str(replay.result().reason)
        # documents without a response
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(
                trainer.val_loader.dataset, "data", trainer.val_loader.dataset.data.map(no_response)
            )
            with replay.watching():
                trainer.val_epoch(0)
        assert "no response" in str(replay.result().reason)
        # the fault of ours: the validation goes on, and later ones are replayed again
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("eagle3_export.training.chains.response_numbers", lambda *_: 1 / 0)
            with replay.watching():
                assert trainer.val_epoch(0) == metrics
        assert "ZeroDivisionError" in str(replay.result().reason)
        with replay.watching():
            assert trainer.val_epoch(0) == metrics
        assert replay.result().reason is None

    with_trainer(turns, save_path, use)


def no_response(row: dict[str, Any]) -> dict[str, Any]:
    return {**row, "loss_mask": [0] * len(row["loss_mask"])}


def test_the_headline_is_the_replay_and_the_trainers_files_are_the_same(
    turns: TinyWorld, save_path: Path, tmp_path: Path
) -> None:
    status, records = train(turns, save_path, epochs=2)
    assert status == 0
    document = metadata(output_of(save_path) / "1")
    acceptance = document["acceptance"]
    assert acceptance["method"] == "replay"
    assert acceptance["num_steps"] == 3
    walk = acceptance["replay"]["depths"][2]
    assert document["estimated_acceptance_length"] == walk["acceptance_length"]
    assert acceptance["interval"] == walk["interval"]
    assert walk["acceptance_length"] == pytest.approx(1 + sum(walk["accepted_per_position"]))
    assert sum(walk["histogram"]) == walk["verify_steps"] > 0
    shares = [step["full_acc"] for step in acceptance["steps"]]
    assert acceptance["position_mean_acceptance_length"] == pytest.approx(1 + sum(shares))
    assert acceptance["adjusted_acceptance_length"] is None and acceptance["coverage"]
    assert "as they occur" in acceptance["reasons"]["adjusted_acceptance_length"]
    assert [row["extrapolated"] for row in acceptance["per_depth"]] == [False, False, True, True, True]
    # Whatever the packing of an epoch, the documents are the same, and so is their order.
    each, before = (metadata(output_of(save_path) / name)["acceptance"]["replay"] for name in ("1", "0"))
    counts = each["per_document"]
    assert counts["digest"] == before["per_document"]["digest"]
    assert counts["num_steps"] == 3 and len(counts["verify_steps"]) == each["documents"]
    assert sum(counts["verify_steps"]) == walk["verify_steps"]
    assert 1 + sum(counts["accepted"]) / walk["verify_steps"] == walk["acceptance_length"]

    # The same training without the exporter: what it logs, and the metrics and weights that it saves, are the same, bit
    # for bit.
    from speculators.train import cli
    from speculators.train.config import TrainConfig

    from tests.support.training.recorder import recording

    alone = tmp_path / "alone"
    with recording() as plain:
        cli.main(TrainConfig.resolve(train_arguments(turns, alone, epochs=2)))
    assert plain.validations == records.validations
    for epoch in ("0", "1"):
        saved = [directory / epoch / "val_metrics.json" for directory in (save_path, alone)]
        assert saved[0].exists() == saved[1].exists()
        assert not saved[0].exists() or saved[0].read_text() == saved[1].read_text()
        weights = [directory / epoch / "model.safetensors" for directory in (save_path, alone)]
        assert weights[0].read_bytes() == weights[1].read_bytes()


@pytest.mark.parametrize("changes", [{}, {"fsdp_shard": True}], ids=["ddp", "fsdp"])
def test_the_counts_of_every_rank_reach_the_document(
    turns: TinyWorld, save_path: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Frozen weights, so that two ranks validate the draft that one process validates."""
    replays = []
    for ranks in (1, 2):
        if ranks == 1:
            status, _ = train(turns, save_path, epochs=1, train_data_ratio=0.5)
            assert status == 0
            draft = in_float32(save_path / "0", tmp_path / "draft")
            start = {"from_pretrained": str(draft), "lr": 0.0, "epochs": 1, "train_data_ratio": 0.5}
        again = tmp_path / f"again-{ranks}"
        deeper = ["--sglang-export.replay-num-steps", "5"]
        arguments = [*train_arguments(turns, again, **start, **(changes if ranks > 1 else {})), *deeper]
        run = start_forked(ranks, arguments, tmp_path, label=f"run-{ranks}")
        assert run.wait() == 0, run.output[-4000:]
        replays.append(metadata(output_of(again) / "0")["acceptance"]["replay"])
    one, two = replays
    assert one["depths"][2]["documents"] > 10
    sharded = "fsdp_shard" in changes
    assert [walk["extrapolated"] for walk in two["depths"][:5]] == [False] * 3 + [sharded] * 2
    assert ("deeper" in two["reasons"]) == sharded
    for name in ("documents", "spans", "response_tokens", "first_choices", "per_document"):
        assert two[name] == one[name]
    for ours, theirs in zip(one["depths"][:3] if sharded else one["depths"], two["depths"], strict=False):
        assert ours == theirs
