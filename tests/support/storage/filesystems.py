"""Files and real filesystems for the storage tests."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from eagle3_export.storage.safetensors_file import TensorSource, read_safetensors
from tests.support.drafts import Sizes, draft_tensors, safetensors_bytes
from tests.support.machine import program, require_root

# Files of 2 and of 6 MB, whose longest tensors span many blocks of a filesystem.
WIDE = Sizes(hidden=512, inner=64, vocabulary=256, draft_vocabulary=64, heads=4, kv_heads=2, head=16)
WIDE_AND_LONG = Sizes(
    hidden=512, inner=512, vocabulary=2048, draft_vocabulary=512, heads=4, kv_heads=2, head=16
)


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

    def write(directory: Path = tmp_path, name: str = "model.safetensors", sizes: Sizes = WIDE) -> Path:
        directory.mkdir(parents=True, exist_ok=True)
        path = directory / name
        path.write_bytes(safetensors_bytes(draft_tensors(sizes), {"format": "pt"}))
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
