"""A real export, killed at or failed by its system calls: what a reader finds, and what the next run makes of it."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.storage import system_calls
from tests.support.storage.filesystems import mounted

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not system_calls.AVAILABLE, reason="the tracer knows Linux on x86-64 only"),
]


@pytest.fixture
def memory_directory(tmp_path: Path) -> Iterator[Path]:
    """On tmpfs where there is one: thousands of fsyncs to a disk prove nothing here."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as directory:
        yield Path(directory)


def campaign(kind: str, directory: Path, step: int, first: int = 0) -> dict[str, Any]:
    """Tries every `step`-th point, from `first` on, in a process of its own; what it found, and its stderr."""
    module = [sys.executable, "-m", "tests.support.storage.campaign"]
    worker = subprocess.run(
        [*module, kind, directory, "--share", f"{first}/{step}"],
        cwd=Path(__file__).parents[3],
        capture_output=True,
        text=True,
        timeout=800,
    )
    if "ptrace" in worker.stderr and "not permitted" in worker.stderr:
        pytest.skip("this machine does not let a process trace its child")
    assert worker.returncode == 0, worker.stderr
    return {**json.loads(worker.stdout), "errors": worker.stderr}


def test_killed_before_a_system_call(memory_directory: Path) -> None:
    """A third of the calls; ``python -m tests.support.storage.campaign kill DIRECTORY`` tries every one."""
    answer = campaign("kill", memory_directory, 3)
    assert answer["kills"] >= 150
    assert answer["faults"] == []


@pytest.mark.nightly
def test_killed_before_another_third_of_the_system_calls(memory_directory: Path) -> None:
    answer = campaign("kill", memory_directory, 3, first=1)
    assert answer["kills"] >= 150
    assert answer["faults"] == []


def test_an_error_from_a_system_call_on_files(memory_directory: Path) -> None:
    """A tenth of the calls times EIO, ENOSPC and EACCES; ``... campaign fail DIRECTORY`` tries all."""
    answer = campaign("fail", memory_directory, 10)
    assert answer["failures"] >= 100
    assert (answer["faults"], answer["errors"]) == ([], "")
    assert answer["statuses"].get("2", 0) > 30


@pytest.mark.nightly
def test_an_error_from_another_tenth_of_the_system_calls(memory_directory: Path) -> None:
    answer = campaign("fail", memory_directory, 10, first=1)
    assert answer["failures"] >= 100
    assert (answer["faults"], answer["errors"]) == ([], "")
    assert answer["statuses"].get("2", 0) > 30


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_leaves_the_old_export_or_the_new_one(tmp_path: Path, kind: str) -> None:
    """At every thirtieth system call, on a filesystem that copies and on one that clones."""
    with mounted(kind, tmp_path, 400) as mount:
        answer = campaign("cut", mount, 30)
    assert answer["cuts"] >= 10
    assert answer["faults"] == []
