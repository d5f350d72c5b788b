"""Real SGLang wheels for the tests, from the package index; tests are skipped where it cannot be reached."""

from __future__ import annotations

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


def wheel(release: str, factory: pytest.TempPathFactory) -> Wheel:
    """The wheel of a release, downloaded once per session."""
    if _failure:
        pytest.skip(_failure[0])
    if release not in _wheels:
        try:
            _wheels[release] = fetch_wheel(release, factory.mktemp("wheels"))
        except FileNotFoundError as error:
            _failure.append(f"the package index does not answer: {error}")
            pytest.skip(_failure[0])
    return _wheels[release]


def target_classes(release: str, factory: pytest.TempPathFactory) -> TargetClasses:
    """The target classes of a release, parsed once per session."""
    if release not in _classes:
        _classes[release] = TargetClasses(wheel(release, factory))
    return _classes[release]
