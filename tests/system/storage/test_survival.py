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
def memory_directories(tmp_path: Path) -> Iterator[list[Path]]:
    """On tmpfs where there is one: thousands of fsyncs to a disk prove nothing here."""
    shared = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=shared if shared.is_dir() else tmp_path) as directory:
        directories = [Path(directory, str(index)) for index in range(2)]
        for path in directories:
            path.mkdir()
        yield directories


def campaign(kind: str, directories: list[Path], step: int) -> list[dict[str, Any]]:
    """Two processes, each with its share of the points."""
    workers = [
        subprocess.Popen(
            [
                sys.executable,
                "-m",
                "tests.support.storage.campaign",
                kind,
                directory,
                "--share",
                f"{index}/{step}",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=Path(__file__).parents[3],
            text=True,
        )
        for index, directory in enumerate(directories)
    ]
    answers = []
    for worker in workers:
        output, errors = worker.communicate(timeout=400)
        if "ptrace" in errors and "not permitted" in errors:
            pytest.skip("this machine does not let a process trace its child")
        assert worker.returncode == 0, errors
        answers.append({**json.loads(output), "errors": errors})
    return answers


def test_killed_before_a_system_call(memory_directories: list[Path]) -> None:
    """Two of three calls here; ``python -m tests.support.storage.campaign kill DIRECTORY`` tries every one."""
    answers = campaign("kill", memory_directories, 3)
    assert sum(answer["kills"] for answer in answers) >= 300
    assert [answer["faults"] for answer in answers] == [[], []]


def test_an_error_from_a_system_call_on_files(memory_directories: list[Path]) -> None:
    """A fifth of the calls times EIO, ENOSPC and EACCES; ``... campaign fail DIRECTORY`` tries all."""
    answers = campaign("fail", memory_directories, 10)
    assert sum(answer["failures"] for answer in answers) >= 200
    assert [(answer["faults"], answer["errors"]) for answer in answers] == [([], ""), ([], "")]
    assert all(answer["statuses"].get("2", 0) > 30 for answer in answers)


@pytest.mark.parametrize("kind", ["ext4", "xfs"])
def test_a_power_cut_leaves_the_old_export_or_the_new_one(tmp_path: Path, kind: str) -> None:
    """At every thirtieth system call, on a filesystem that copies and on one that clones."""
    with mounted(kind, tmp_path, 400) as mount:
        [answer] = campaign("cut", [mount], 30)
    assert answer["cuts"] >= 10
    assert answer["faults"] == []
