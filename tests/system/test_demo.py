"""The pieces of the demo: its text, its hidden states on disk, its table."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from scripts.demo.__main__ import engine_options
from scripts.demo.corpus import read_corpus
from scripts.demo.results import Served
from scripts.demo.world import DEMO, held_out_prompts, train_verifier, write_offline_data
from tests.support.documents import export

AUX_LAYER_IDS = [2, 4, 5]
TINY = dataclasses.replace(
    DEMO,
    vocab_size=400,
    hidden_size=32,
    intermediate_size=64,
    steps=3,
    row_length=64,
    training_rows=18,
    held_out_rows=2,
)


@pytest.mark.slow
def test_held_out_documents_are_not_trained_on() -> None:
    corpus = read_corpus()
    assert not set(corpus.training) & set(corpus.held_out)
    held_out = sum(map(len, corpus.held_out))
    assert 0.1 < held_out / (held_out + sum(map(len, corpus.training))) < 0.2


def test_measured_length_counts_accepted_drafts_and_the_bonus_token() -> None:
    served = Served(export(), histogram=[2, 1, 0, 1])
    assert served.measured_acceptance_length == 1 + (1 + 3) / 4


def test_exports_are_served_with_the_launch_arguments_in_their_metadata() -> None:
    arguments = ["--speculative-algorithm", "EAGLE3", "--speculative-num-steps", "3"]
    assert engine_options(arguments) == {"speculative_algorithm": "EAGLE3", "speculative_num_steps": 3}


@pytest.mark.slow
@pytest.mark.training
def test_the_written_world_is_what_the_verifier_computes(tmp_path: Path) -> None:
    import torch
    from safetensors.torch import load_file
    from speculators.train.data import ArrowDataset
    from transformers import LlamaForCausalLM

    verifier = train_verifier(tmp_path / "verifier", TINY, say=lambda _: None)
    share = write_offline_data(verifier, tmp_path / "data", AUX_LAYER_IDS, TINY, say=lambda _: None)

    train, held_out = (
        ArrowDataset(64, tmp_path / "data", train_ratio=share, split=split, hidden_states_dtype=torch.float32)
        for split in ("train", "val")
    )
    assert (len(train), len(held_out)) == (TINY.training_rows, TINY.held_out_rows)
    model = LlamaForCausalLM.from_pretrained(verifier, dtype=torch.float32).eval()
    for dataset, index in ((train, 0), (held_out, 1)):
        sample = dataset[index]
        with torch.inference_mode():
            output = model.model(sample["input_ids"][None], output_hidden_states=True)
            last = model.model.norm(sample["verifier_last_hidden_states"])
        # transformers: hidden_states[i] is the input of layer i, last_hidden_state comes after the last norm
        expected = torch.cat([output.hidden_states[layer][0] for layer in AUX_LAYER_IDS], dim=-1)
        torch.testing.assert_close(sample["hidden_states"], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(last, output.last_hidden_state[0], rtol=1e-4, atol=1e-5)

    frequencies = torch.load(tmp_path / "data" / "token_freq.pt", weights_only=True)
    assert sum(frequencies.values()) == TINY.training_rows * TINY.row_length
    prompts = held_out_prompts(verifier, 3, 16, TINY)
    assert [len(prompt) for prompt in prompts] == [16, 16, 16]
    trained_on = {tuple(row.tolist()) for row in (train[i]["input_ids"][:16] for i in range(len(train)))}
    assert not trained_on & {tuple(prompt) for prompt in prompts}
    assert set(load_file(tmp_path / "data" / "hidden_states" / "hs_0.safetensors")) == {
        "token_ids",
        "hidden_states",
    }
