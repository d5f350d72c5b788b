"""Exports and workloads for measurements, made by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from eagle3_export.documents.index import build_index
from eagle3_export.documents.json_files import to_json
from eagle3_export.measure.prompt_forms import Prompt
from eagle3_export.measure.workload import Workload
from tests.support.documents import GOOD, export


def make_export(output_dir: Path, name: str, **changes: Any) -> Path:
    """The documents of one export in a run's output directory."""
    metadata = export(name, metrics=GOOD, **changes)
    directory = output_dir / name
    directory.mkdir(parents=True)
    (directory / "metadata.json").write_bytes(to_json(metadata))
    (directory / "README.md").write_text("old")
    (output_dir / "index.json").write_bytes(to_json(build_index([metadata])))
    return directory


def workload(*prompts: str, **changes: Any) -> Workload:
    return Workload([Prompt(text=text) for text in prompts or ("a", "b")], "prompts.txt", **changes)


def files_of(directory: Path) -> dict[Path, bytes]:
    return {path: path.read_bytes() for path in directory.parent.rglob("*") if path.is_file()}
