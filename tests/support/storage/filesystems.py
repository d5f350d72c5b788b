"""Files and real filesystems for the storage tests."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from tests.support.machine import program, require_root

SIZES = {"BOOL": 1, "U8": 1, "F8_E4M3": 1, "BF16": 2, "F16": 2, "F32": 4, "F64": 8, "I64": 8}


def safetensors_bytes(
    tensors: Mapping[str, tuple[str, tuple[int, ...], bytes]],
    metadata: Mapping[str, str] | None = None,
    pad: int = 8,
) -> bytes:
    """A safetensors file made by hand: name -> (dtype, shape, bytes), header padded to a multiple of `pad`."""
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    at = 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [at, at + len(data)]}
        at += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-(8 + len(text)) % pad)
    return len(text).to_bytes(8, "little") + text + b"".join(data for _, _, data in tensors.values())


def draft_tensors(rows: int = 64, hidden: int = 512) -> dict[str, tuple[str, tuple[int, ...], bytes]]:
    """Tensors of the kinds that a draft has, in the order that safetensors writes them; finite, and never all equal."""
    random = np.random.default_rng(rows * hidden)

    def bf16(*shape: int) -> tuple[str, tuple[int, ...], bytes]:
        values = random.integers(0, 0x7F00, int(np.prod(shape)), dtype=np.uint16)
        return "BF16", shape, values.tobytes()

    return {
        "d2t": ("I64", (rows,), np.arange(rows, dtype=np.int64).tobytes()),
        "embed_tokens.weight": bf16(4 * rows, hidden),
        "fc.weight": bf16(hidden, 3 * hidden),
        "layers.0.hidden_norm.weight": bf16(hidden),
        "layers.0.mlp.down_proj.weight": bf16(hidden, rows),
        "lm_head.weight": bf16(rows, hidden),
        "t2d": ("BOOL", (4 * rows,), random.integers(0, 2, 4 * rows, dtype=np.uint8).tobytes()),
    }


def served_names(path: Path, drop: tuple[str, ...] = ()) -> list[tuple[str, TensorSource]]:
    """The tensors of a file as an export takes them."""
    file = read_safetensors(path)
    return [
        (name.replace("layers.0.", "midlayer."), TensorSource(file, entry))
        for name, entry in file.tensors.items()
        if name not in drop
    ]


@contextmanager
def mounted(kind: str, directory: Path, megabytes: int, options: str = "loop") -> Iterator[Path]:
    """A new filesystem in a sparse file on a loop device; skips where the machine does not allow it."""
    require_root("mounting a filesystem")
    maker = program(f"mkfs.{kind}")
    image, target = directory / f"{kind}.img", directory / kind
    target.mkdir()
    with image.open("wb") as file:
        file.truncate(megabytes * 1024 * 1024)
    subprocess.run([maker, "-q", image], check=True, capture_output=True)
    answer = subprocess.run(
        ["mount", "-t", kind, "-o", options, image, target], capture_output=True, text=True
    )
    if answer.returncode:
        pytest.skip(f"{kind} cannot be mounted here: {answer.stderr.strip()}")
    try:
        yield target
    finally:
        subprocess.run(["umount", "-l", target], check=True)
        image.unlink()


@pytest.fixture
def write_draft(tmp_path: Path) -> Callable[..., Path]:
    """Writes `draft_tensors` to a file."""

    def write(directory: Path = tmp_path, name: str = "model.safetensors", **sizes: int) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        path.write_bytes(safetensors_bytes(draft_tensors(**sizes), {"format": "pt"}))
        return path

    return write


# Sparse, so only what is used counts. The makers want at least 300 MB (xfsprogs 6) and 109 MB (btrfs-progs 6).
MEGABYTES = {"ext4": 64, "xfs": 512, "btrfs": 512}


@pytest.fixture(scope="session", params=["xfs", "btrfs"])
def reflink_directory(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Path]:
    """A directory on a filesystem that can clone."""
    with mounted(request.param, tmp_path_factory.mktemp(request.param), MEGABYTES[request.param]) as path:
        yield path


@pytest.fixture(scope="session")
def ext4_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory on a filesystem that cannot clone."""
    with mounted("ext4", tmp_path_factory.mktemp("ext4"), MEGABYTES["ext4"]) as path:
        yield path
