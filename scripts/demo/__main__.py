"""Runs the demo from the repository's root: `python -m scripts.demo`."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import yaml
from rich.console import Console
from rich.rule import Rule

from eagle3_export.documents.json_files import read_metadata
from scripts.demo.results import Served, results_table
from scripts.demo.world import DEMO, held_out_prompts, train_verifier, write_offline_data
from tests.support.sglang_cpu import serve

CONFIG = Path("configs/demo.yaml")
NUM_PROMPTS = 24
PROMPT_LENGTH = 32  # tokens
# Short: a verifier this small soon repeats itself, which is easy to draft.
NEW_TOKENS = 32


def main() -> int:
    console = Console(highlight=False, soft_wrap=True)
    config = yaml.safe_load(CONFIG.read_text())
    training = config["train"]
    verifier = Path(training["verifier"]["verifier_name_or_path"])
    data = Path(training["data"]["data_path"])
    checkpoints = Path(training["trainer"]["save_path"])
    exports = Path(config["sglang_export"]["output_dir"])
    began = time.monotonic()

    def phase(number: int, title: str) -> None:
        console.print(Rule(f"{number}/4  {title}  ({time.monotonic() - began:.0f} s)", align="left"))

    quiet_libraries()
    for directory in (verifier, data, checkpoints, exports):
        shutil.rmtree(directory, ignore_errors=True)

    phase(1, "A small verifier learns the documentation that ships with Python")
    train_verifier(verifier, DEMO, say=console.print)

    phase(2, "Its hidden states, in the format that speculators trains from")
    write_offline_data(verifier, data, training["draft"]["target_layer_ids"], DEMO, say=console.print)

    command = ["eagle3-export", "train", "--config", str(CONFIG)]
    phase(3, f"{' '.join(command)}")
    status = subprocess.run([sys.executable, "-m", "eagle3_export", *command[1:]]).returncode
    if status:
        console.print(f"Training ended with status {status}; see above.")
        return status

    num_steps = int(training["loss"]["ttt_steps"])
    phase(4, f"SGLang serves every export: {NUM_PROMPTS} held-out prompts, {num_steps} draft steps")
    served = serve_exports(console, verifier, exports, num_steps)

    console.print()
    console.print(results_table(served, num_steps))
    console.print(f"Exports: {exports}/<epoch>; how to serve one: {exports}/best/README.md")
    console.print(f"Took {time.monotonic() - began:.0f} s.")
    return 0


def quiet_libraries() -> None:
    """Leave the terminal to the demo's own lines."""
    import datasets
    import transformers

    datasets.disable_progress_bars()
    transformers.utils.logging.disable_progress_bar()


def serve_exports(console: Console, verifier: Path, exports: Path, num_steps: int) -> list[Served]:
    """Greedy generation with each epoch's export, two engines at a time where there are two cores."""
    prompts = held_out_prompts(verifier, NUM_PROMPTS, PROMPT_LENGTH, DEMO)

    def measure(export: Path) -> Served:
        console.print(f"epoch {export.name}: SGLang starts")
        options = engine_options(read_metadata(export).sglang.launch_arguments)
        result = serve.generate(
            verifier, export, num_steps, prompts, max_new_tokens=NEW_TOKENS, options=options, timeout=900
        )
        served = Served.from_result(export, result)
        console.print(
            f"epoch {export.name}: {served.measured_acceptance_length:.2f} tokens per verify step "
            f"(accepted drafts 0…{num_steps}: {served.histogram})"
        )
        return served

    epochs = sorted(
        (path for path in exports.iterdir() if path.name.isdecimal()), key=lambda path: int(path.name)
    )
    with ThreadPoolExecutor(max_workers=min(2, os.cpu_count() or 1)) as pool:
        return list(pool.map(measure, epochs))


def engine_options(launch_arguments: Sequence[str]) -> dict[str, str | int]:
    """The launch arguments in an export's metadata.json as keyword arguments of `sglang.Engine`."""
    return {
        flag.removeprefix("--").replace("-", "_"): int(value) if value.isdecimal() else value
        for flag, value in zip(launch_arguments[::2], launch_arguments[1::2], strict=True)
    }


if __name__ == "__main__":
    raise SystemExit(main())
