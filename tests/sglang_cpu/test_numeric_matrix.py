"""The numeric proof over the space of drafts: speculators' model against SGLang's class, stock and with the plugin."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from eagle3_export import numeric
from eagle3_export.config import ExportConfig
from eagle3_export.export import export_checkpoint
from tests.sglang_cpu import matrix, toy
from tests.sglang_cpu.proof import assert_exact, needs_sglang, window_flag


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
        for with_plugin in (True, False):
            requests.append(numeric.NumericCase(str(export), str(source), with_plugin, window_flag(result)))
    reports = iter(numeric.compare(requests))
    for entry in compared:
        entry.with_plugin = next(reports)
        entry.stock = next(reports)
    return compared


@pytest.fixture(scope="module")
def compared_matrix(tmp_path_factory: pytest.TempPathFactory) -> list[Compared]:
    return compare(matrix.pairwise(), tmp_path_factory.mktemp("matrix"))


@needs_sglang
@pytest.mark.slow
@pytest.mark.sglang
class TestMatrix:
    """Every pair of choices of `matrix.CHOICES`, four draft steps deep, float32."""

    def test_every_pair_occurs(self, compared_matrix: list[Compared]) -> None:
        seen = set()
        for entry in compared_matrix:
            items = list(entry.case.items())
            seen |= {(a, x, b, y) for i, (a, x) in enumerate(items) for b, y in items[i + 1 :]}
        names = list(matrix.CHOICES)
        expected = sum(
            len(matrix.CHOICES[a]) * len(matrix.CHOICES[b])
            for i, a in enumerate(names)
            for b in names[i + 1 :]
        )
        assert len(seen) == expected

    def test_with_the_plugin_none_differs(self, compared_matrix: list[Compared]) -> None:
        for entry in compared_matrix:
            assert_exact(entry.with_plugin, entry.case)

    def test_stock_differs_only_where_a_finding_says_so(self, compared_matrix: list[Compared]) -> None:
        checked = 0
        for entry in compared_matrix:
            if entry.architecture != "LlamaForCausalLMEagle3":
                continue
            checked += 1
            assert entry.stock is not None and entry.stock.problem is None
            if entry.case["norm_before_residual"]:
                assert entry.findings["norm-before-residual"] == "inexact"
                assert entry.stock.max_relative_error > 1e-2  # else the finding would be wrong
            else:
                assert_exact(entry.stock, entry.case)
        assert checked >= 3

    def test_the_plugins_class_is_unknown_to_stock(self, compared_matrix: list[Compared]) -> None:
        needing = [entry for entry in compared_matrix if entry.architecture != "LlamaForCausalLMEagle3"]
        assert len(needing) >= 3
        for entry in needing:
            assert entry.stock is not None and entry.stock.problem is not None
            assert "does not know Eagle3ExportLlamaForCausalLM" in entry.stock.problem

    def test_a_draft_without_the_flag_is_the_same_to_the_bit(self, compared_matrix: list[Compared]) -> None:
        alike = [
            entry
            for entry in compared_matrix
            if entry.architecture == "LlamaForCausalLMEagle3" and not entry.case["norm_before_residual"]
        ]
        assert alike
        for entry in alike:
            assert entry.stock is not None and entry.with_plugin is not None
            assert entry.stock.served_class != entry.with_plugin.served_class
            assert entry.stock.logits_digest == entry.with_plugin.logits_digest
