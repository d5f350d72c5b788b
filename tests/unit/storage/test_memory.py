"""What an export holds in memory, from the shell and in a training process."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from eagle3_export.storage.safetensors_file import read_safetensors
from tests.support.drafts import SIZES_OF_8B, Sizes, write_large_checkpoint
from tests.support.storage.filesystems import mounted

MEGABYTE = 1024  # ru_maxrss is in kB


# A small process in between: a child inherits the peak of the one that starts it (Linux, `exec_mmap`).
STARTER = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, "-m", "eagle3_export", "convert", *sys.argv[1:]], stdout=2)
_, status, usage = os.wait4(process.pid, 0)
print(status, usage.ru_maxrss)
"""


def peak_of_convert(checkpoint: Path, out: Path) -> int:
    """Peak resident memory of ``eagle3-export convert``, in kB."""
    answer = subprocess.run(
        [sys.executable, "-c", STARTER, checkpoint, out], stdout=subprocess.PIPE, text=True, check=True
    )
    status, peak = map(int, answer.stdout.split())
    assert status == 0
    return peak


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["xfs", "ext4"])
def test_convert_of_2_gb(tmp_path: Path, kind: str) -> None:
    """Zeros without room on the disk: cloned on XFS, copied through the page cache on ext4."""
    with mounted(kind, tmp_path, 6000) as disk:
        checkpoint = write_large_checkpoint(disk / "checkpoint", SIZES_OF_8B)
        assert peak_of_convert(checkpoint, disk / "out") < 64 * MEGABYTE
        assert read_safetensors(disk / "out" / "model.safetensors").size > 1.9e9


def test_the_exporting_process_grows_little(tmp_path: Path) -> None:
    """By less than 32 MB over its idle size, which has NumPy loaded, for 250 MB of weights."""
    checkpoint = write_large_checkpoint(tmp_path / "0", Sizes(1024, 2816, 100_000, 8000, 16, 8, 64))
    program = """
import resource, sys
import numpy
from eagle3_export.config import ExportConfig
from eagle3_export.export import export_checkpoint
import eagle3_export.documents.metadata, eagle3_export.documents.model_card, huggingface_hub
def peak(): return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
before = peak()
export_checkpoint(sys.argv[1], sys.argv[2], ExportConfig())
print(peak() - before)
"""
    answer = subprocess.run(
        [sys.executable, "-c", program, checkpoint, tmp_path / "out"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert int(answer.stdout) < 32 * MEGABYTE
