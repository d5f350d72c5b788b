"""Exports served by SGLang's own engine, against chain drafting in plain PyTorch, token by token."""

from __future__ import annotations

import json
import os
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.export import export_checkpoint
from eagle3_export.serving import plugin
from tests.support.sglang_cpu import serve, toy
from tests.support.sglang_cpu.proof import DRAFTS, NEW_TOKENS, NUM_STEPS, needs_sglang, window_flag
from tests.support.training import tiny_world

if TYPE_CHECKING:
    from tests.support.sglang_cpu.chain_drafting import Simulated

TRAINED = "trained_by_the_command"


@dataclass
class World:
    """A verifier, drafts trained on it, and what SGLang and the simulation made of them."""

    verifier: Path
    folder: Path
    prompts: list[list[int]]
    served: dict[str, dict[str, Any] | serve.ServingFailedError] = field(default_factory=dict)
    simulated: dict[str, list[Simulated]] = field(default_factory=dict)

    def answer(self, run: str) -> dict[str, Any]:
        result = self.served[run]
        if isinstance(result, serve.ServingFailedError):
            raise result
        return result

    def load_report(self, run: str) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.folder / f"{run}.json").read_text())
        return report

    def assert_as_simulated(self, run: str, draft: str) -> None:
        """Token by token and verify step by verify step."""
        answer, simulated = self.answer(run), self.simulated[draft]
        assert answer["output_ids"] == [one.output_ids for one in simulated]
        assert answer["histogram_per_request"] == [one.histogram for one in simulated]
        assert sum(answer["accepted_drafts_histogram"][1:]) > 10  # some drafts are accepted,
        assert answer["accepted_drafts_histogram"][0] > 0  # and some are not


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    from tests.support.sglang_cpu import chain_drafting

    folder = tmp_path_factory.mktemp("world")
    made = World(toy.make_verifier(folder / "verifier"), folder, toy.prompts(3))
    for name, choices in DRAFTS.items():
        toy.trained_draft(folder / name, made.verifier, **choices)
        export_checkpoint(folder / name, folder / f"{name}-export")
    train_with_default_flags(folder, made.verifier)
    export_checkpoint(folder / TRAINED, folder / "forced-export", ExportConfig(runtime="exact"))
    shuffle_weights(folder / "exact_in_stock-export", folder / "shuffled-export")
    users_package = folder / "on_path" / "users_models"
    users_package.mkdir(parents=True)
    (users_package / "__init__.py").touch()

    def run(name: str, draft: str | None, **how: Any) -> None:
        options: dict[str, Any] = {"skip_tokenizer_init": True}
        export = folder / f"{draft}-export" if draft else None
        if draft == TRAINED:
            options["speculative_draft_window_size"] = window_flag(folder / f"{draft}-export")
        try:
            made.served[name] = serve.generate(
                made.verifier, export, NUM_STEPS, made.prompts, NEW_TOKENS, folder / f"{name}.json",
                options=options, on_path=[folder / "on_path"], **how,
            )  # fmt: skip
        except serve.ServingFailedError as failure:
            made.served[name] = failure

    own, users = ({plugin.EXTERNAL_PACKAGE_VARIABLE: name} for name in (plugin.PACKAGE, "users_models"))
    run("no_draft", None)
    run("stock", "exact_in_stock", plugin=False)
    run("shuffled", "shuffled", plugin=False)
    run("defaults", TRAINED)
    run("forced", "forced", extra_environment=users)
    run("all", "all_that_stock_drops", plugin=False, extra_environment=own)
    run("no_plugin", "all_that_stock_drops", plugin=False)
    for name in (*DRAFTS, TRAINED):
        made.simulated[name] = chain_drafting.simulate(
            made.verifier, folder / name, NUM_STEPS, made.prompts, NEW_TOKENS
        )
    return made


def train_with_default_flags(folder: Path, verifier: Path) -> None:
    """The real training command with speculators' default architecture flags; its callback exports.

    Leaves the last checkpoint as `folder / TRAINED` and its export as `folder / f"{TRAINED}-export"`.
    """
    data = tiny_world.TinyWorld(verifier, tiny_world.make_data(folder / "data", verifier))
    arguments = tiny_world.train_arguments(data, folder / "run", epochs=5, lr=0.01, norm_before_residual=None)
    command = [sys.executable, "-m", "eagle3_export.train", *arguments]
    serve.run_killable(command, {**os.environ, "OMP_NUM_THREADS": "1"}, timeout=300)
    (folder / TRAINED).symlink_to(folder / "run" / "4")
    (folder / f"{TRAINED}-export").symlink_to(folder / "run-sglang" / "latest")


def shuffle_weights(export: Path, shuffled: Path) -> None:
    """A copy of an export whose decoder weights are permuted: same names, shapes and values."""
    import torch
    from safetensors.torch import load_file, save_file

    shuffled.mkdir()
    (shuffled / "config.json").write_text((export / "config.json").read_text())
    generator = torch.Generator().manual_seed(0)
    tensors = load_file(export / "model.safetensors")
    for name, tensor in tensors.items():
        if name.startswith(("midlayer", "fc")):
            order = torch.randperm(tensor.numel(), generator=generator)
            tensors[name] = tensor.flatten()[order].view(tensor.shape).contiguous()
    save_file(tensors, shuffled / "model.safetensors", metadata={"format": "pt"})


@needs_sglang
@pytest.mark.slow
@pytest.mark.sglang
@pytest.mark.training
class TestEngine:
    """The unmodified wheel's engine; expected values from the simulation in plain PyTorch."""

    def test_a_draft_changes_no_token(self, world: World) -> None:
        expected = world.answer("no_draft")["output_ids"]
        assert expected == [toy.greedy(world.verifier, prompt, NEW_TOKENS) for prompt in world.prompts]
        for run in ("stock", "shuffled", "defaults", "forced", "all"):
            assert world.answer(run)["output_ids"] == expected, run

    def test_stock_loads_everything_but_t2d(self, world: World) -> None:
        report = world.load_report("stock")
        assert report["class"] == "LlamaForCausalLMEagle3"
        assert (report["ignored"], report["unfilled"]) == (["t2d"], [])

    def test_stock_accepts_as_simulated(self, world: World) -> None:
        world.assert_as_simulated("stock", "exact_in_stock")

    def test_shuffled_weights_accept_next_to_nothing(self, world: World) -> None:
        assert world.answer("shuffled")["accept_length"] < 1.2
        assert world.answer("stock")["accept_length"] > 1.5

    def test_default_flags_accept_as_simulated(self, world: World) -> None:
        """Trained, exported and served end to end."""
        world.assert_as_simulated("defaults", TRAINED)
        assert (
            json.loads((world.folder / TRAINED / "config.json").read_text())["norm_before_residual"] is True
        )
        assert world.load_report("defaults")["class"] == "LlamaForCausalLMEagle3"

    def test_exact_runtime_accepts_as_simulated(self, world: World) -> None:
        """Beside a user's own SGLANG_EXTERNAL_MODEL_PACKAGE."""
        world.assert_as_simulated("forced", TRAINED)
        assert world.load_report("forced")["class"] == "Eagle3ExportLlamaForCausalLM"

    def test_what_stock_drops_accepts_as_simulated(self, world: World) -> None:
        """Through SGLANG_EXTERNAL_MODEL_PACKAGE alone, without the entry point."""
        world.assert_as_simulated("all", "all_that_stock_drops")
        report = world.load_report("all")
        assert report["class"] == "Eagle3ExportLlamaForCausalLM"
        assert (report["ignored"], report["unfilled"]) == (["t2d"], [])

    def test_without_the_plugin_its_class_fails_loudly(self, world: World) -> None:
        failure = world.served["no_plugin"]
        assert isinstance(failure, serve.ServingFailedError)
        assert "Eagle3ExportLlamaForCausalLM" in failure.log
