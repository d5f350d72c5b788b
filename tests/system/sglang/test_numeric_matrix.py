"""The numeric proof over the space of drafts: speculators' model against SGLang's class, stock and with the plugin."""

from __future__ import annotations

import itertools
import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from eagle3_export.config import ExportConfig
from eagle3_export.export import export_checkpoint
from eagle3_export.numeric import compare as numeric
from tests.support.sglang_cpu import matrix, toy
from tests.support.sglang_cpu.proof import assert_exact, needs_sglang, window_flag


@dataclass
class Compared:
    """One draft, exported, and what both kinds of server computed of it."""

    case: matrix.Case
    findings: dict[str, str] = field(default_factory=dict)
    architecture: str = ""
    with_plugin: numeric.NumericReport | None = None
    stock: numeric.NumericReport | None = None


def compare(cases: list[matrix.Case], folder: Path) -> list[Compared]:
    """Make, export and compare each case, with the plugin and without."""
    compared, requests = [], []
    for index, case in enumerate(cases):
        source, export = folder / str(index), folder / f"{index}-export"
        toy.random_draft(source, seed=index, **matrix.draft_arguments(case))
        result = export_checkpoint(source, export, ExportConfig(runtime=case["runtime"]))
        config = json.loads((export / "config.json").read_text())
        levels = {finding.id: finding.level for finding in result.findings}
        compared.append(Compared(case, levels, config["architectures"][0]))
        requests.append(numeric.NumericCase(str(export), str(source), draft_window=window_flag(export)))
    with_plugin = numeric.compare(requests)
    stock = numeric.compare([replace(request, plugin=False) for request in requests])
    for entry, own, theirs in zip(compared, with_plugin, stock, strict=True):
        entry.with_plugin, entry.stock = own, theirs
    return compared


@pytest.fixture(scope="module")
def compared_drafts(tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    cases = matrix.pairwise(matrix.CHOICES) + matrix.pairwise(matrix.STOCK_CHOICES)
    return compare(cases, tmp_path_factory.mktemp("matrix"))


@pytest.fixture(scope="module")
def stock_drafts(compared_drafts: list[Compared]) -> list[Compared]:
    """Those that the export leaves to SGLang's own class."""
    return [entry for entry in compared_drafts if entry.architecture == "LlamaForCausalLMEagle3"]


def flagged(entry: Compared) -> bool:
    return bool(entry.case["norm_before_residual"])


@needs_sglang
@pytest.mark.slow
@pytest.mark.sglang
class TestMatrix:
    """Every pair of choices, four draft steps deep, float32."""

    @pytest.mark.parametrize("choices", [matrix.CHOICES, matrix.STOCK_CHOICES])
    def test_every_pair_occurs(self, choices: dict[str, Sequence[Any]]) -> None:
        seen = {pair for case in matrix.pairwise(choices) for pair in itertools.combinations(case.items(), 2)}
        assert len(seen) == sum(len(a) * len(b) for a, b in itertools.combinations(choices.values(), 2))

    def test_with_the_plugin_none_differs(self, compared_drafts: list[Compared]) -> None:
        for entry in compared_drafts:
            assert_exact(entry.with_plugin, entry.case)

    def test_stock_differs_only_where_a_finding_says_so(self, stock_drafts: list[Compared]) -> None:
        assert {flagged(entry) for entry in stock_drafts} == {True, False}
        assert len(stock_drafts) >= len(matrix.pairwise(matrix.STOCK_CHOICES))
        for entry in stock_drafts:
            assert entry.stock is not None and entry.stock.problem is None
            if flagged(entry):
                assert entry.findings["norm-before-residual"] == "inexact"
                error = entry.stock.max_relative_error
                assert error is not None and error > 1e-2  # else the finding would be wrong
            else:
                assert_exact(entry.stock, entry.case)

    def test_the_plugins_class_is_unknown_to_stock(self, compared_drafts: list[Compared]) -> None:
        needing = [entry for entry in compared_drafts if entry.architecture != "LlamaForCausalLMEagle3"]
        assert len(needing) >= 3
        for entry in needing:
            assert entry.stock is not None and entry.stock.problem is not None
            assert "does not know Eagle3ExportLlamaForCausalLM" in entry.stock.problem

    def test_a_draft_without_the_flag_is_the_same_to_the_bit(self, stock_drafts: list[Compared]) -> None:
        for entry in stock_drafts:
            assert entry.stock is not None and entry.with_plugin is not None
            assert entry.stock.served_class != entry.with_plugin.served_class
            assert (entry.stock.logits_digest == entry.with_plugin.logits_digest) is not flagged(entry)
