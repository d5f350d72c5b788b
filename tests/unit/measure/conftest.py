"""An export to measure."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.measuring import make_export


@pytest.fixture
def draft(tmp_path: Path) -> Path:
    """An export in a run's output directory."""
    return make_export(tmp_path / "out", "0")
