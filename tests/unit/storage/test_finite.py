"""The scan for NaN and infinity against NumPy's and the number formats' own definition."""

from __future__ import annotations

import os
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eagle3_export.errors import StorageError
from eagle3_export.storage import finite
from eagle3_export.storage.finite import FiniteScan, non_finite_tensors
from eagle3_export.storage.sources import open_sources
from eagle3_export.storage.write import write_and_scan
from tests.support.drafts import draft_tensors, safetensors_bytes
from tests.support.storage.filesystems import WIDE, served_names

# (exponent bits, mantissa bits), from IEEE 754 and the bfloat16 layout: not finite is an exponent of ones.
FORMATS = {"F64": (11, 52), "F32": (8, 23), "F16": (5, 10), "BF16": (8, 7), "F8_E5M2": (5, 2)}


def write(path: Path, *tensors: tuple[str, str, np.ndarray]) -> Path:
    path.write_bytes(
        safetensors_bytes({name: (dtype, (data.size,), data.tobytes()) for name, dtype, data in tensors})
    )
    return path


def scan(path: Path) -> list[str]:
    return non_finite_tensors(served_names(path))


@pytest.mark.parametrize("dtype", FORMATS)
def test_every_bit_pattern_at_the_edges(tmp_path: Path, dtype: str) -> None:
    exponent, mantissa = FORMATS[dtype]
    bits = 1 + exponent + mantissa
    infinity = ((1 << exponent) - 1) << mantissa
    sign = 1 << (bits - 1)
    edges = {base + step for base in (0, infinity, sign, sign + infinity, 2 * sign) for step in range(-3, 4)}
    patterns = sorted({edge % (2 * sign) for edge in edges})
    tensors = [(hex(p), dtype, np.array([0, p, 1], dtype=f"<u{bits // 8}")) for p in patterns]
    assert scan(write(tmp_path / "f", *tensors)) == [hex(p) for p in patterns if p & infinity == infinity]


@pytest.mark.parametrize(
    ("dtype", "non_finite"),
    [
        ("F8_E5M2", {0x7C, 0x7D, 0x7E, 0x7F, 0xFC, 0xFD, 0xFE, 0xFF}),
        ("F8_E4M3", {0x7F, 0xFF}),
        ("F8_E8M0", {0xFF}),
        ("F8_E4M3FNUZ", {0x80}),
        ("F8_E5M2FNUZ", {0x80}),
        ("U8", set()),
        ("BOOL", set()),
    ],
)
def test_all_256_values_of_the_eight_bit_formats(tmp_path: Path, dtype: str, non_finite: set[int]) -> None:
    tensors = [(f"{pattern:#x}", dtype, np.array([pattern, 0], dtype=np.uint8)) for pattern in range(256)]
    assert set(scan(write(tmp_path / "f", *tensors))) == {f"{pattern:#x}" for pattern in non_finite}


@given(st.lists(st.floats(width=32), min_size=1, max_size=50))
@settings(max_examples=60)
def test_agrees_with_numpy_in_float32(tmp_path_factory: pytest.TempPathFactory, values: list[float]) -> None:
    data = np.array(values, dtype=np.float32)
    path = write(tmp_path_factory.getbasetemp() / "f32", ("x", "F32", data))
    assert bool(scan(path)) == (not np.isfinite(data).all())


@pytest.mark.parametrize("position", [0, 1, 4095, 4096, 8191, 8192, 20_000])
@pytest.mark.parametrize("pattern", [0x7F80, 0x7FC0, 0xFF80, 0xFFFF])
def test_found_wherever_it_stands(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, position: int, pattern: int
) -> None:
    """At the ends of the buffer, in the last partial one, among large negative and positive values."""
    monkeypatch.setattr(finite, "_BUFFER_BYTES", 8192)
    data = np.tile(np.array([0x7F7F, 0xFF7F, 0, 0x8000], dtype=np.uint16), 5001)
    clean = data.copy()
    data[position] = pattern
    path = write(
        tmp_path / "f", ("before", "BF16", clean), ("bad", "BF16", data), ("after", "I64", np.full(9, -1))
    )
    assert scan(path) == ["bad"]


def test_copy_and_scan_side_by_side(tmp_path: Path) -> None:
    tensors = draft_tensors(WIDE)
    dtype, shape, data = tensors["fc.weight"]
    tensors["fc.weight"] = (dtype, shape, data[:-2] + b"\x80\x7f")
    source = tmp_path / "source"
    source.write_bytes(safetensors_bytes(tensors))
    report, found, _ = write_and_scan(tmp_path / "out", served_names(source))
    assert found == ["fc.weight"]
    assert report.bytes_total == (tmp_path / "out").stat().st_size


def test_a_failing_copy_ends_the_scan(tmp_path: Path) -> None:
    source = write(tmp_path / "source", ("x", "BF16", np.zeros(1000, dtype=np.uint16)))
    with pytest.raises(StorageError, match="No such file"):
        write_and_scan(tmp_path / "missing" / "out", served_names(source))


@pytest.mark.parametrize("bad", [[], ["t3"], ["t0", "t7"], ["t7", "t1", "t0"]])
def test_threads_that_share_the_work_find_the_same_in_the_order_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bad: list[str]
) -> None:
    """Pieces of 64 bytes: every thread gets some of every tensor, whose only bad value is the last one of all."""
    monkeypatch.setattr(finite, "_PIECE_BYTES", 64)
    monkeypatch.setattr(finite, "_helpers", lambda: 3)
    names = [f"t{number}" for number in range(8)]
    tensors = []
    for name in names:
        data = np.ones(500, dtype=np.float32)
        data[-1] = np.nan if name in bad else 0
        tensors.append((name, "F32", data))
    found = served_names(write(tmp_path / "f", *tensors))
    assert non_finite_tensors(found) == sorted(bad)
    assert non_finite_tensors(found[::-1]) == sorted(bad, reverse=True)


@pytest.mark.parametrize("pieces", ["one", "many"])
def test_a_source_truncated_under_the_scan_is_not_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, pieces: str
) -> None:
    """Whichever thread meets it, and no thread is left behind."""
    if pieces == "many":
        monkeypatch.setattr(finite, "_PIECE_BYTES", 64)
    source = write(tmp_path / "source", ("x", "BF16", np.zeros(1000, dtype=np.uint16)))
    tensors = served_names(source)
    threads = threading.active_count()
    with open_sources(tensors) as pinned:
        os.truncate(source, 1000)
        with pytest.raises(StorageError, match="source was truncated"), FiniteScan(tensors, pinned) as scan:
            scan.result()
    assert threading.active_count() == threads


def test_a_source_rewritten_under_the_scan_is_refused(tmp_path: Path) -> None:
    source = write(tmp_path / "source", ("x", "BF16", np.zeros(1000, dtype=np.uint16)))
    tensors = served_names(source)
    with open_sources(tensors) as pinned:
        os.utime(source, ns=(0, 0))
        with pytest.raises(StorageError, match="source was changed"), FiniteScan(tensors, pinned) as scan:
            scan.result()


def test_without_a_second_thread_the_scan_still_happens(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter that shuts down starts no threads."""

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    source = write(tmp_path / "source", ("x", "F32", np.array([np.inf], dtype=np.float32)))
    monkeypatch.setattr(threading.Thread, "start", refuse)
    assert write_and_scan(tmp_path / "out", served_names(source))[1] == ["x"]
