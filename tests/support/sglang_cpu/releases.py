"""Run the plugin on other SGLang releases and compare with the simulation, to name the releases it is proven on.

usage: python -m tests.support.sglang_cpu.releases 0.5.16 0.5.22 …

Each release is installed into a temporary folder in front of the import path, with the transformers it pins where
that differs from this environment's. Prints one line per release and draft; ends with status 1 if any differs.
The list belongs into `eagle3_export.sglang.capabilities.PLUGIN_PROVEN_ON`.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from importlib import metadata
from pathlib import Path

from eagle3_export.export import export_checkpoint
from tests.support.sglang_cpu import chain_drafting, serve, toy
from tests.support.sglang_cpu.proof import DRAFTS, NEW_TOKENS, NUM_STEPS

PROVING = {
    # the stock class with norm_before_residual honoured
    "speculators_defaults": {
        "draft_vocab": 96,
        "norm_before_residual": True,
        "norm_output": True,
        "windows": [2048],
    },
    # the plugin's own class
    "all_that_stock_drops": DRAFTS["all_that_stock_drops"],
}


def install(release: str, folder: Path) -> Path:
    """Install one release without its dependencies, but with its transformers, into `folder`."""
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder)]
    subprocess.run([*pip, "--no-deps", f"sglang=={release}"], check=True, capture_output=True)
    requirements = next(folder.glob("sglang-*.dist-info")) / "METADATA"
    pins = [
        line.removeprefix("Requires-Dist: ")
        for line in requirements.read_text().splitlines()
        if line.startswith("Requires-Dist: transformers==")
    ]
    if pins and pins[0] != f"transformers=={metadata.version('transformers')}":
        subprocess.run([*pip, pins[0]], check=True, capture_output=True)
    return folder


def main(releases: list[str]) -> int:
    differing = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        verifier = toy.make_verifier(folder / "verifier")
        prompts = toy.prompts(3)
        simulated = {}
        for draft in PROVING:
            toy.trained_draft(folder / draft, verifier, **PROVING[draft])
            export_checkpoint(folder / draft, folder / f"{draft}-export")
            simulated[draft] = chain_drafting.simulate(
                verifier, folder / draft, NUM_STEPS, prompts, NEW_TOKENS
            )
        for release in releases:
            path = install(release, folder / f"sglang-{release}")
            for draft in PROVING:
                report = folder / "report.json"
                try:
                    answer = serve.generate(
                        verifier, folder / f"{draft}-export", NUM_STEPS, prompts, NEW_TOKENS, report,
                        options={"skip_tokenizer_init": True}, on_path=[path], timeout=900,
                    )  # fmt: skip
                except serve.ServingFailedError as failure:
                    print(release, draft, "FAILED", str(failure)[-300:].replace("\n", " / "), flush=True)
                    differing += 1
                    continue
                same = answer["output_ids"] == [one.output_ids for one in simulated[draft]] and answer[
                    "histogram_per_request"
                ] == [one.histogram for one in simulated[draft]]
                differing += not same
                built = json.loads(report.read_text())["class"]
                verdict = "as simulated" if same else "DIFFERS"
                print(answer["sglang_version"], draft, built, verdict, flush=True)
    return 1 if differing else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
