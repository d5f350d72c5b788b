"""Measures what the replay adds to the trainer's own validation and training, side by side in one run.

    python scripts/bench_replay.py
    python scripts/bench_replay.py --hidden 256 --tokens 1024 --rounds 20        # smaller
    python scripts/bench_replay.py --compile

A real trainer of speculators on made-up hidden states, as wide as a small model. In every round, in an order that
changes from round to round:

- one validation as the trainer makes it, and one with the replay and the walk after it;
- two passes over the training data. The second follows a validation with the replay: nothing of
  it may be left on the model.

Prints for each part the median seconds of both, the median of the ratios of the rounds, and the middle half of those
ratios. To be run on an idle machine: ratios that scatter more widely than they differ from 1 say nothing.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.training import tiny_world
from tests.support.training.recorder import with_trainer

PARTS = ("validation", "training pass")


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--hidden", type=int, default=512, help="hidden size (%(default)s)")
    parser.add_argument("--vocabulary", type=int, default=8192, help="of the verifier (%(default)s)")
    parser.add_argument("--draft-vocabulary", type=int, default=4096, help="of the draft (%(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens in a batch (%(default)s)")
    parser.add_argument(
        "--batches", type=int, default=4, help="in a validation, and as many to train (%(default)s)"
    )
    parser.add_argument("--steps", type=int, default=3, help="draft steps of the training (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="(%(default)s)")
    parser.add_argument("--compile", action="store_true", help="compile the draft's forward pass")
    return parser.parse_args()


def make_world(folder: Path, options: argparse.Namespace) -> tiny_world.TinyWorld:
    """A verifier of that width, and random states: what is computed takes as long as on real ones."""
    import torch
    from datasets import Dataset
    from safetensors.torch import save_file

    width = options.hidden
    verifier = tiny_world.make_verifier(
        folder / "verifier", vocab_size=options.vocabulary, hidden_size=width, intermediate_size=4 * width,
        head_dim=width // 4, max_position_embeddings=4096,
    )  # fmt: skip
    length = 256
    count = 2 * options.batches * options.tokens // length
    random = torch.Generator().manual_seed(0)
    ids = torch.randint(0, options.vocabulary, (count, length), generator=random)
    (folder / "data" / "hidden_states").mkdir(parents=True)
    for n in range(count):
        states = torch.randn(length, len(tiny_world.AUX_LAYERS) + 1, width, generator=random)
        path = folder / "data" / "hidden_states" / f"hs_{n}.safetensors"
        save_file({"token_ids": ids[n].contiguous(), "hidden_states": states}, path)
    mask = [[0] * 32 + [1] * (length - 32)] * count
    rows = Dataset.from_dict({"input_ids": ids.tolist(), "loss_mask": mask, "seq_len": [length] * count})
    rows.set_format("torch")
    rows.save_to_disk(folder / "data")
    torch.save(dict.fromkeys(range(options.vocabulary), 1), folder / "data" / "token_freq.pt")
    return tiny_world.TinyWorld(verifier, folder / "data")


def compare(trainer: Any, options: argparse.Namespace) -> dict[str, list[tuple[float, float]]]:
    """For each part the seconds without and with the replay, by round."""
    from eagle3_export.training.replay import ValidationReplay

    if options.compile:
        import torch

        trainer.model.forward = torch.compile(trainer.model.forward)
    replay = ValidationReplay(trainer, (5, 10, 16))

    def replayed() -> None:
        with replay.watching():
            trainer.val_epoch(0)
        result = replay.result()
        assert result.counts is not None, result.reason

    ways: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
        "validation": (lambda: trainer.val_epoch(0), replayed),
        "training pass": (lambda: trainer.train_epoch(0), lambda: trainer.train_epoch(0)),
    }
    seconds: dict[str, list[tuple[float, float]]] = {part: [] for part in PARTS}
    for round_ in range(-1, options.rounds):  # the first round warms up, and is not counted
        for part, (without, with_replay) in ways.items():
            taken = {}
            for name, act in ordered({"without": without, "with": with_replay}, backwards=round_ % 2 == 1):
                started = time.perf_counter()
                act()
                taken[name] = time.perf_counter() - started
            if round_ >= 0:
                seconds[part].append((taken["without"], taken["with"]))
    return seconds


def ordered(
    ways: dict[str, Callable[[], object]], *, backwards: bool
) -> Iterator[tuple[str, Callable[[], object]]]:
    return iter(reversed(list(ways.items()))) if backwards else iter(ways.items())


def told(part: str, seconds: list[tuple[float, float]], batches: int) -> dict[str, Any]:
    ratios = [with_replay / without for without, with_replay in seconds]
    low, middle, high = statistics.quantiles(ratios, n=4)
    without, with_replay = (statistics.median(times) for times in zip(*seconds, strict=True))
    return {
        "part": part,
        "seconds_without": round(without, 3),
        "seconds_with": round(with_replay, 3),
        "seconds_per_batch": round(without / batches, 3),
        "ratio": round(middle, 4),
        "middle_half": [round(low, 4), round(high, 4)],
    }


def main() -> None:
    options = arguments()
    os.environ.setdefault("OMP_NUM_THREADS", str(os.cpu_count() or 1))
    with tempfile.TemporaryDirectory(prefix="bench_replay_") as folder:
        world = make_world(Path(folder), options)
        found: dict[str, list[tuple[float, float]]] = {}
        flags = {
            "draft_vocab_size": options.draft_vocabulary,
            "total_seq_len": options.tokens,
            "train_data_ratio": 0.5,
            "draft_attn_impl": "sdpa",
            "ttt_steps": options.steps,
        }
        with (
            Path(os.devnull).open("w") as nowhere,
            contextlib.redirect_stderr(nowhere),
            contextlib.redirect_stdout(nowhere),
        ):
            with_trainer(world, Path(folder) / "run", lambda t: found.update(compare(t, options)), **flags)
    for part, seconds in found.items():
        print(json.dumps(told(part, seconds, options.batches)))


if __name__ == "__main__":
    main()
