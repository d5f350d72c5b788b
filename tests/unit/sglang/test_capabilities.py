"""The table of releases against the releases themselves."""

from __future__ import annotations

import pytest

from eagle3_export.errors import UsageError
from eagle3_export.sglang.capabilities import NEWEST, OLDEST, RELEASES, capabilities, releases_up_to
from tests.support.wheels import derive_capabilities, render_table, wheel


@pytest.mark.slow
@pytest.mark.nightly
@pytest.mark.parametrize("release", ["0.4.10", "0.5.7", "0.5.11", "0.5.12", "0.5.17", "0.5.23"])
def test_the_table_says_what_the_wheel_says(release: str) -> None:
    assert derive_capabilities(release, wheel(release)) == capabilities(release)


@pytest.mark.parametrize(
    ("release", "has", "lacks"),
    [
        (
            "0.4.10",
            (),
            ("fc_norm", "multiple_layers", "norm_before_fc", "window_flag", "plugins"),
        ),
        (
            "0.5.11",
            ("plugins", "rope_parameters"),
            ("fc_norm", "multiple_layers", "norm_before_fc", "window_flag"),
        ),
        (
            "0.5.12",
            ("fc_norm", "norm_output", "aux_count", "multiple_layers", "window_flag"),
            ("norm_before_fc",),
        ),
        ("0.5.16", ("fc_norm",), ("norm_before_fc",)),
        ("0.5.17", ("norm_before_fc",), ()),
        ("0.5.23", ("norm_before_fc", "draft_quantization_flag"), ()),
    ],
)
def test_what_is_known_of_the_releases(release: str, has: tuple[str, ...], lacks: tuple[str, ...]) -> None:
    known = capabilities(release)
    assert [name for name in has if not getattr(known, name)] == []
    assert [name for name in lacks if getattr(known, name)] == []


def test_releases_between_beyond_and_before() -> None:
    assert capabilities("0.5.12.post9").version == "0.5.12.post1"
    assert capabilities("9.9").version == NEWEST
    assert capabilities("0.1").version == OLDEST
    assert capabilities("0.5.23+cpu").version == "0.5.23"
    with pytest.raises(UsageError, match="not a version"):
        capabilities("main")


def test_releases_are_in_order() -> None:
    assert releases_up_to(NEWEST) == list(RELEASES)
    assert releases_up_to("0.5.4") == list(RELEASES[: RELEASES.index("0.5.4") + 1])


def test_the_written_table_holds_only_changes() -> None:
    per_release = {
        "1.0": {"A": "plain"},
        "1.1": {"A": "plain", "B": "first is one"},
        "1.2": {"A": "plain, final"},
        "1.3": {"A": "plain, final", "B": "plain"},
    }
    namespace: dict[str, object] = {}
    exec(render_table(per_release), namespace)
    assert namespace["TARGET_CLASSES"] == {
        "A": (("1.0", "plain"), ("1.2", "plain, final")),
        "B": (("1.1", "first is one"), ("1.2", None), ("1.3", "plain")),
    }
