"""One tiny world for all training tests of a session."""

from __future__ import annotations

import os
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.support.training.tiny_world import TinyWorld, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture(scope="session")
def speculators_release() -> str:
    """The release that trains in this process: the newest, or the one that a test of older releases asked for."""
    release = version("speculators")
    assert release == os.environ.get("EXPECTED_SPECULATORS", release)
    return release


@pytest.fixture
def save_path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
