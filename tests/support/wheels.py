"""Real SGLang wheels for the tests, from the package index; tests are skipped where it cannot be reached.

They are kept between runs, in `~/.cache/eagle3-export/wheels` or where `EAGLE3_EXPORT_WHEELS` says.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts"))

from sglang_capabilities import derive_capabilities, fetch_wheel, render_table
from sglang_counters import reported_counters
from sglang_target_classes import TargetClasses, Wheel, derive_target_classes

__all__ = [
    "TargetClasses",
    "derive_capabilities",
    "derive_target_classes",
    "render_table",
    "reported_counters",
    "target_classes",
    "wheel",
]

_wheels: dict[str, Wheel] = {}
_classes: dict[str, TargetClasses] = {}
_failure: list[str] = []


def wheel(release: str) -> Wheel:
    """The wheel of a release, downloaded once."""
    if _failure:
        pytest.skip(_failure[0])
    if release not in _wheels:
        folder = Path(os.environ.get("EAGLE3_EXPORT_WHEELS", "~/.cache/eagle3-export/wheels")).expanduser()
        try:
            _wheels[release] = fetch_wheel(release, folder)
        except FileNotFoundError as error:
            _failure.append(f"the package index does not answer: {error}")
            pytest.skip(_failure[0])
    return _wheels[release]


def target_classes(release: str) -> TargetClasses:
    """The target classes of a release, parsed once per session."""
    if release not in _classes:
        _classes[release] = TargetClasses(wheel(release))
    return _classes[release]
