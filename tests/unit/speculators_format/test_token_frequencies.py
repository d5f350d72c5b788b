"""A damaged token_freq.pt costs one number, and no run."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export.errors import CheckpointError
from eagle3_export.export import export_checkpoint
from eagle3_export.speculators_format.run_files import frequencies_file
from eagle3_export.speculators_format.token_frequencies import read_token_frequencies, run_coverage
from tests.support.drafts import write_checkpoint


def archive(compression: int) -> bytes:
    """What torch.save writes, compressed: a zip file with one pickle; 4000 counts, so that packing does something."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", compression) as file:
        file.writestr("archive/data.pkl", pickle.dumps(dict.fromkeys(range(4000), 7), protocol=2))
    return buffer.getvalue()


ARCHIVES = {
    name: archive(getattr(zipfile, f"ZIP_{name}")) for name in ("STORED", "DEFLATED", "BZIP2", "LZMA")
}
DATA_AT = len("archive/data.pkl") + 30  # the local file header of a zip member, then its bytes


@pytest.mark.parametrize("name", list(ARCHIVES))
def test_whole_archives_are_read(tmp_path: Path, name: str) -> None:
    (tmp_path / "token_freq.pt").write_bytes(ARCHIVES[name])
    assert read_token_frequencies(tmp_path / "token_freq.pt") == dict.fromkeys(range(4000), 7)


@pytest.mark.parametrize("name", list(ARCHIVES))
@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_damaged_archives_raise_our_error_and_cost_one_number(
    tmp_path_factory: object, name: str, data: st.DataObject
) -> None:
    content = bytearray(ARCHIVES[name])
    for _ in range(data.draw(st.integers(1, 8))):
        at = data.draw(st.integers(0, len(content) - 1) | st.integers(DATA_AT, DATA_AT + 40))
        content[at] ^= data.draw(st.integers(1, 255))
    directory: Path = tmp_path_factory.mktemp("run")  # type: ignore[attr-defined]
    (directory / "token_freq.pt").write_bytes(content)
    (directory / "run.yaml").write_text(f"train:\n  data:\n    data_path: {directory}\n")
    try:
        read_token_frequencies(directory / "token_freq.pt")
    except CheckpointError as error:
        assert "token frequencies" in error.what
    run_coverage(frequencies_file(directory), [0, 1, 2])


@pytest.mark.parametrize("name", ["DEFLATED", "BZIP2", "LZMA"])
def test_a_checkpoint_beside_damaged_frequencies_is_exported(tmp_path: Path, name: str) -> None:
    broken = bytearray(ARCHIVES[name])
    broken[DATA_AT : DATA_AT + 24] = bytes(255 - byte for byte in broken[DATA_AT : DATA_AT + 24])
    (tmp_path / "token_freq.pt").write_bytes(broken)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.yaml").write_text(f"train:\n  data:\n    data_path: {tmp_path}\n")
    result = export_checkpoint(write_checkpoint(tmp_path / "run" / "1"), tmp_path / "out")
    assert result.metadata.acceptance.coverage is None


def test_relative_data_paths_count_from_where_the_training_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "project" / "data").mkdir(parents=True)
    (tmp_path / "project" / "data" / "token_freq.pt").write_bytes(ARCHIVES["STORED"])
    run = tmp_path / "project" / "runs" / "a"
    run.mkdir(parents=True)
    (run / "run.yaml").write_text(
        "train:\n  data:\n    data_path: ./data\n  trainer:\n    save_path: runs/a\n"
    )
    monkeypatch.chdir(tmp_path)
    coverage = run_coverage(frequencies_file(run), [0] * 1000)
    assert coverage is not None and coverage.ratio == 0.25
