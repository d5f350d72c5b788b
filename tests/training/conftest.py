"""One tiny world for all training tests of a session."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.training.tiny_world import TinyWorld, make_world


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> TinyWorld:
    return make_world(tmp_path_factory.mktemp("world"))


@pytest.fixture
def save_path(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"
