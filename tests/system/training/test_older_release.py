"""The same training tests under speculators 0.8.1, laid over this environment without its pins."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.training.harness import ROOT

pytestmark = [pytest.mark.slow, pytest.mark.nightly, pytest.mark.training]

RELEASE = "0.8.1"
TESTS = ("test_saves.py", "test_callback.py", "test_replay.py", "test_estimate.py")
# Two ranks whose data make unequal batches end in an error of 0.8.1's own, without an export too: its ranks meet in
# different collectives (gloo: 8 bytes against 4).
SELECTED = (
    "(end_of_epoch or fractions or save_best or interrupted_in_an_epoch or replay or estimate)"
    " and not counts_of_every_rank"
)


@pytest.fixture(scope="session")
def overlay(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("speculators-older")
    packages = [f"speculators=={RELEASE}", f"hs-connectors=={RELEASE}"]
    install = [
        sys.executable,
        "-m",
        "pip",
        "install",
        "--quiet",
        "--no-deps",
        "--target",
        str(directory),
        *packages,
    ]
    done = subprocess.run(install, capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"speculators {RELEASE} cannot be fetched: {done.stderr.strip().splitlines()[-1:]}")
    return directory


def test_saves_and_interrupts(overlay: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(overlay), str(ROOT)]),
        "OMP_NUM_THREADS": "1",
        "EXPECTED_SPECULATORS": RELEASE,
    }
    tests = [str(Path(__file__).parent / name) for name in TESTS]
    options = ["-q", "-W", "ignore", "-p", "no:cacheprovider", "--tb=short", "-k", SELECTED]
    command = [sys.executable, "-m", "pytest", *options, *tests]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, cwd=ROOT, timeout=600)
    assert done.returncode == 0, done.stdout[-6000:]
    assert " passed" in done.stdout
    assert "skipped" not in done.stdout
