"""The `sglang_export:` block: what it takes, what it refuses, and where exports may go."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eagle3_export.config import ExportConfig, parse_export_block, read_export_block
from eagle3_export.errors import UsageError


def test_defaults_are_those_of_the_readme() -> None:
    assert ExportConfig().model_dump() == {
        "output_dir": None,
        "sglang_version": "0.5.23",
        "runtime": "auto",
        "on_incompatible": "error",
        "on_failure": "warn",
        "embed_tokens": "keep",
        "num_steps": (1, 3, 5, 10, 16),
        "keep_last": None,
    }


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"outptu_dir": "x"}, "outptu_dir"),
        ({"runtime": "fast"}, "runtime"),
        ({"keep_last": "3"}, "keep_last"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": True}, "keep_last"),
        ({"num_steps": []}, "num_steps"),
        ({"num_steps": [0]}, "num_steps"),
        ({"num_steps": [True]}, "num_steps"),
        ({"num_steps": "1,3"}, "num_steps"),
        ({"sglang_version": 0.5}, "sglang_version"),
        ([1, 2], "mapping"),
        ("x", "mapping"),
    ],
)
def test_a_wrong_block_is_refused_by_key(block: object, named: str) -> None:
    with pytest.raises(UsageError, match=named):
        parse_export_block(block)  # type: ignore[arg-type]


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(UsageError) as caught:
        parse_export_block({"runtime": "fast", "surprise": 1})
    assert "runtime" in str(caught.value)
    assert "surprise" in str(caught.value)


def test_depths_are_sorted_and_unique() -> None:
    assert parse_export_block({"num_steps": [5, 1, 5, 3]}).num_steps == (1, 3, 5)


@pytest.mark.parametrize("inside", ["", "exports", "a/../exports", "deep/er"])
def test_exports_never_lie_in_save_path(tmp_path: Path, inside: str) -> None:
    with pytest.raises(UsageError, match="save_path"):
        ExportConfig(output_dir=str(tmp_path / "run" / inside)).resolve_output_dir(tmp_path / "run")


def test_a_symlink_into_save_path_is_seen_through(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "elsewhere").symlink_to(tmp_path / "run")
    with pytest.raises(UsageError, match="save_path"):
        ExportConfig(output_dir=str(tmp_path / "elsewhere" / "x")).resolve_output_dir(tmp_path / "run")


def test_the_default_output_dir_stands_beside_save_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert ExportConfig().resolve_output_dir("out/run") == Path("out/run-sglang")
    assert ExportConfig().resolve_output_dir("out/run/") == Path("out/run-sglang")
    monkeypatch.chdir(tmp_path)
    assert ExportConfig().resolve_output_dir(".") == tmp_path.with_name(tmp_path.name + "-sglang")
    assert ExportConfig(output_dir="run-exports").resolve_output_dir("run") == Path("run-exports")


def test_a_yaml_file_without_our_block_has_none(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("train:\n  epochs: 3\n")
    assert read_export_block(config) is None
    config.write_text("sglang_export:\ntrain: {}\n")
    assert read_export_block(config) == {}


@pytest.mark.parametrize("content", ["- a\n- b\n", "a: [", "\x00", "!!python/object:os.system {}"])
def test_a_broken_yaml_file_is_a_usage_error(tmp_path: Path, content: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(content)
    with pytest.raises(UsageError, match=r"run\.yaml"):
        read_export_block(config)


def test_a_missing_yaml_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"nowhere\.yaml"):
        read_export_block(tmp_path / "nowhere.yaml")


json_like = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from([*ExportConfig.model_fields, "other"]), json_like))
def test_any_block_gives_a_config_or_a_usage_error(block: dict[str, object]) -> None:
    try:
        config = parse_export_block(block)
    except UsageError:
        return
    assert "other" not in block
    assert list(config.num_steps) == sorted(set(config.num_steps))
