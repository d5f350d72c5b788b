"""index.json is always what all documents together say, although a new export costs one document only."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export import published
from eagle3_export.documents.index import build_index
from eagle3_export.documents.json_files import read_metadata, to_json
from eagle3_export.documents.schema import ExportMetadata, RunRecord
from eagle3_export.late_numbers import add_measurement
from eagle3_export.output_directory import OutputDirectory
from tests.support import documents

NAMES = ("0", "1", "2", "3", "10", "interrupted")
Action = tuple[str, str, int]


def put(directory: Path, metadata: ExportMetadata) -> None:
    """What an export is recognised by: weights and metadata."""
    directory.mkdir(exist_ok=True)
    (directory / "model.safetensors").write_bytes(b"weights")
    (directory / "metadata.json").write_bytes(to_json(metadata))


def export(name: str, run: RunRecord | None, number: int) -> ExportMetadata:
    """An export whose place in training and whose estimate follow from a number; that of 0 is not known."""
    metrics = {"full_acc_0": number / 9, "full_acc_1": number / 12} if number % 3 else None
    return documents.export(name, epoch=number, step=number, metrics=metrics, run=run)


def publish(output: OutputDirectory, name: str, number: int) -> None:
    with output.staging(name, replace=True) as staged:
        put(staged, export(name, output.run, number))
        output.publish(staged, name, replace=True)


def measured_by_another(output: OutputDirectory, name: str, number: int) -> None:
    """While a run holds the directory's lock, `measure` and `estimate` write the export's documents only."""
    if (output.path / name).is_dir():
        add_measurement(
            output.path / name, documents.measurement(acceptance_length=1 + number / 9, num_steps=2)
        )


def validated(output: OutputDirectory, name: str, number: int) -> None:
    if (output.path / name).is_dir():
        output.add_metrics(name, {"full_acc_0": number / 9, "full_acc_1": number / 15})


def removed_by_hand(output: OutputDirectory, name: str, number: int) -> None:
    shutil.rmtree(output.path / name, ignore_errors=True)


def put_by_hand(output: OutputDirectory, name: str, number: int) -> None:
    if not (output.path / f"by-hand-{name}").exists():
        put(output.path / f"by-hand-{name}", export(name, output.run, number))


ACTIONS: dict[str, Callable[[OutputDirectory, str, int], None]] = {
    act.__name__: act for act in (publish, validated, measured_by_another, removed_by_hand, put_by_hand)
}


def entries(index: Path) -> Any:
    content = json.loads(index.read_text())
    return {key: content[key] for key in ("exports", "best")}


def rebuilt(out: Path) -> Any:
    """The index by the documents on the disk, each read by itself."""
    exports = [
        read_metadata(path).model_copy(update={"name": path.parent.name})
        for path in sorted(out.glob("*/metadata.json"))
        if not path.parent.is_symlink()
    ]
    content = json.loads(to_json(build_index(exports)))
    return {key: content[key] for key in ("exports", "best")}


@settings(max_examples=60, deadline=None)
@given(
    actions=st.lists(
        st.tuples(st.sampled_from(sorted(ACTIONS)), st.sampled_from(NAMES), st.integers(0, 9)), max_size=14
    ),
    keep_last=st.sampled_from([None, 1, 2]),
)
def test_the_index_is_what_all_documents_say(actions: list[Action], keep_last: int | None) -> None:
    with TemporaryDirectory() as place:
        out = Path(place, "out")
        with OutputDirectory(out, Path(place, "run"), keep_last=keep_last) as output:
            for action, name, number in actions:
                ACTIONS[action](output, name, number)
                publish(output, "7", number)
                assert entries(out / "index.json") == rebuilt(out)


@pytest.fixture
def looked_at(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The documents whose status was asked for while exports were listed."""
    found: list[str] = []
    real = os.stat

    def stat(path: Any, *arguments: Any, **more: Any) -> os.stat_result:
        if "dir_fd" in more:
            found.append(str(path))
        return real(path, *arguments, **more)

    monkeypatch.setattr(published.os, "stat", stat)
    return found


def test_one_new_export_among_many_is_one_document(tmp_path: Path, looked_at: list[str]) -> None:
    with OutputDirectory(tmp_path / "out", tmp_path / "run") as output:
        for number in range(20):
            publish(output, str(number), number)
        looked_at.clear()
        publish(output, "20", 20)
        assert looked_at == ["20/metadata.json"]
        looked_at.clear()
        output.add_metrics("4", {"full_acc_0": 0.5})
        assert looked_at == ["4/metadata.json"]


def test_a_change_while_the_index_is_written_is_seen_next_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with OutputDirectory(out, tmp_path / "run") as output:
        for number in range(3):
            publish(output, str(number), number)
        own = output._own_exports

        def meanwhile(*arguments: Any) -> Any:
            exports = own(*arguments)
            add_measurement(out / "0", documents.measurement())
            return exports

        monkeypatch.setattr(output, "_own_exports", meanwhile)
        publish(output, "3", 3)
        monkeypatch.undo()
        publish(output, "4", 4)
        assert entries(out / "index.json") == rebuilt(out)


def test_a_change_by_hand_is_seen_when_the_directory_is_opened_again(tmp_path: Path) -> None:
    out = tmp_path / "out"
    output = OutputDirectory(out, tmp_path / "run")
    with output:
        publish(output, "0", 1)
        publish(output, "1", 2)
    put(out / "0", export("0", output.run, 8))
    with output:
        publish(output, "2", 4)
    assert entries(out / "index.json") == rebuilt(out)


def test_an_index_that_is_a_link_to_something_elsewhere_is_not_followed(tmp_path: Path) -> None:
    out, elsewhere = tmp_path / "out", tmp_path / "elsewhere.json"
    with OutputDirectory(out, tmp_path / "run") as output:
        publish(output, "0", 1)
        (out / "index.json").rename(elsewhere)
        (out / "index.json").symlink_to(elsewhere)
        before = elsewhere.stat().st_mtime_ns
        add_measurement(out / "0", documents.measurement())
        publish(output, "1", 2)
    assert elsewhere.stat().st_mtime_ns == before
    assert not (out / "index.json").is_symlink()
    assert entries(out / "index.json") == rebuilt(out)
