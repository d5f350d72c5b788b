"""Exports to a filesystem with the habits of network filesystems (FUSE)."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from eagle3_export.verify import verify_export
from tests.support.machine import require_fuse
from tests.support.storage import system_calls
from tests.support.storage.campaign import Stage, kill_everywhere

pytestmark = [pytest.mark.slow, pytest.mark.nightly]
ROOT = Path(__file__).parents[3]


@pytest.fixture(params=["refused", "ignored"])
def network(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Path]:
    """The mount point; the parameter says what becomes of rename flags."""
    require_fuse()
    backing, mount = tmp_path / "backing", tmp_path / "mount"
    backing.mkdir()
    mount.mkdir()
    command = [
        sys.executable,
        "-m",
        "tests.support.storage.network_filesystem",
        backing,
        mount,
        request.param,
    ]
    server = subprocess.Popen(command, cwd=ROOT, stderr=subprocess.PIPE, text=True)
    try:
        for _ in range(200):
            if os.path.ismount(mount):
                break
            if server.poll() is not None:
                assert server.stderr is not None
                pytest.skip(f"FUSE cannot mount here: {server.stderr.read()[-200:]}")
            time.sleep(0.05)
        yield mount
    finally:
        unmount = ["umount", "-l"] if os.geteuid() == 0 else ["fusermount3", "-u", "-z"]
        subprocess.run([*unmount, mount], check=False)
        server.terminate()
        server.wait()


def test_exports_replacements_pointers_and_retention(network: Path) -> None:
    stage = Stage(network, lagging=True)
    stage.reset()
    for _ in range(2):
        assert stage.action() == 0
        assert stage.problems() == []
    assert stage.problems_after_recovery() == []
    assert verify_export(stage.out / "latest", source=stage.run / "2").ok


@pytest.mark.skipif(not system_calls.AVAILABLE, reason="the tracer knows Linux on x86-64 only")
def test_killed_exports_are_made_good_by_the_next_run(network: Path) -> None:
    """Where a rename cannot exchange, a killed run may leave a gap; the next one closes it.

    What a deleted directory still seems to hold goes with the run after that.
    """
    answer = kill_everywhere(Stage(network, lagging=True), (7, 100))
    assert answer["kills"] >= 3
    assert [fault for fault in answer["faults"] if fault.startswith("after")] == []
    assert [
        fault for fault in answer["faults"] if "vanished" not in fault and "points nowhere" not in fault
    ] == []
