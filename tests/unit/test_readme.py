"""The README says what is: commands, options, config keys, findings, files."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

from eagle3_export.cli.commands import app
from eagle3_export.compatibility.rules import FINDING_IDS
from eagle3_export.compatibility.text_rules import OTHER_TEXT_ID
from eagle3_export.config import parse_export_block

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
COMMANDS = get_command(app).commands  # type: ignore[attr-defined]


def code_blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def test_every_finding_is_explained() -> None:
    named = set(re.findall(r"`([a-z0-9-]+)`", README))
    assert {*FINDING_IDS, OTHER_TEXT_ID} - named == set()


def test_the_config_block_is_valid_and_shows_every_default() -> None:
    (block,) = [yaml.safe_load(block) for block in code_blocks("yaml") if "sglang_export" in block]
    shown = block["sglang_export"]
    defaults = parse_export_block({})
    assert set(shown) == set(type(defaults).model_fields)
    given = parse_export_block(shown)
    assert given.model_dump(exclude={"output_dir"}) == defaults.model_dump(exclude={"output_dir"})


def test_the_training_keys_are_grouped_as_speculators_reads_them() -> None:
    """It leaves out without a word what lies in no group of its own."""
    (block,) = [yaml.safe_load(block) for block in code_blocks("yaml") if "sglang_export" in block]
    ready = yaml.safe_load((ROOT / "configs" / "demo.yaml").read_text(encoding="utf-8"))
    for group, keys in block["train"].items():
        assert set(keys) <= set(ready["train"][group])


def test_every_command_has_its_lines() -> None:
    used = set(re.findall(r"^eagle3-export ([a-z]+)", "\n".join(code_blocks("bash")), flags=re.MULTILINE))
    assert used == set(COMMANDS)


@pytest.mark.parametrize("line", [line for block in code_blocks("bash") for line in block.splitlines()])
def test_every_option_shown_exists(line: str) -> None:
    match = re.match(r"eagle3-export ([a-z]+) (.*)", line.split(" #")[0])
    if match is None or match[1] == "train":
        return
    known = {option for parameter in COMMANDS[match[1]].params for option in parameter.opts}
    assert set(re.findall(r"--[a-z-]+", match[2])) <= known


@pytest.mark.parametrize("block", code_blocks("python"))
def test_python_blocks_name_what_exists(block: str) -> None:
    for node in ast.walk(ast.parse(block)):
        if isinstance(node, ast.ImportFrom):
            module = importlib.import_module(f"{node.module}")
            assert [alias.name for alias in node.names if not hasattr(module, alias.name)] == []


def test_every_file_named_exists() -> None:
    for name in set(re.findall(r"`((?:eagle3_export|scripts|configs|docs|tests)/[\w./-]+)`", README)):
        assert (ROOT / name).exists(), name
    for name in re.findall(r"\]\(((?!http|#)[^)]+)\)", README):
        assert (ROOT / name).exists(), name
