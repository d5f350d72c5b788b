"""What every test shares."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

pytest_plugins = ["tests.support.storage.filesystems"]

# A busy machine is not a failing test.
settings.register_profile("shared", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared")
