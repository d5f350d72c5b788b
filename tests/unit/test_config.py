"""The `sglang_export:` block: what it takes, what it refuses, and where exports may go."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from eagle3_export.config import (
    ExportConfig,
    is_nearly_our_name,
    parse_export_block,
    read_export_block,
)
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
        "replay_num_steps": None,
        "keep_last": None,
    }


@pytest.mark.parametrize(
    ("block", "named"),
    [
        ({"outptu_dir": "x"}, "outptu_dir"),
        ({"runtime": "fast"}, "runtime"),
        ({"keep_last": "3"}, "keep_last"),
        ({"replay_num_steps": 65}, "replay_num_steps"),
        ({"keep_last": 0}, "keep_last"),
        ({"keep_last": True}, "keep_last"),
        ({"num_steps": []}, "num_steps"),
        ({"num_steps": [0]}, "num_steps"),
        ({"num_steps": [True]}, "num_steps"),
        ({"num_steps": "1,3"}, "num_steps"),
        ({"sglang_version": 0.5}, 'quote it: sglang_version: "0.5"'),
        ({"sglang_version": 5}, 'quote it: sglang_version: "5"'),
        ({"sglang_version": "0.5,23"}, "is not a version"),
        ({"sglang_version": ""}, "is not a version"),
        ({"num_steps": 5}, r"write num_steps: \[5\]"),
        ({"num_steps": ["3"]}, "num_steps: input should be a valid integer"),
        ({"run_time": "exact"}, r"did you mean sglang_export\.runtime"),
        ({1: 2}, "1: keys should be strings"),
        ([1, 2], "mapping"),
        ("x", "mapping"),
        ("", "mapping"),
        (0, "mapping"),
        (False, "mapping"),
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


def test_a_problem_that_follows_from_another_is_not_named() -> None:
    with pytest.raises(UsageError) as caught:
        parse_export_block({"num_steps": ["one"]})
    assert str(caught.value).count("num_steps:") == 1


def test_a_version_is_checked_wherever_a_config_is_made() -> None:
    with pytest.raises(ValidationError, match="is not a version"):
        ExportConfig(sglang_version="newest")


def test_the_home_directory_is_expanded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    config = parse_export_block({"output_dir": "~/exports"})
    assert config.resolve_output_dir(tmp_path / "run") == tmp_path / "exports"
    assert parse_export_block({"output_dir": "./~/x"}).output_dir == "./~/x"


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


# Where a conversion fails, PyYAML raises what Python raises.
CONVERSIONS = ["2026-02-30", "!!int ''", "!!float x", "!!bool x", "!!timestamp x"]


def test_switched_off_is_told_from_empty_and_from_absent(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("sglang_export: false\n")
    assert read_export_block(config) is False
    with pytest.raises(UsageError, match="switches the export off"):
        ExportConfig.from_yaml(config)


def test_a_config_from_a_file(tmp_path: Path) -> None:
    config = tmp_path / "run.yaml"
    config.write_text("train: {}\nsglang_export: {keep_last: 2}\n")
    assert ExportConfig.from_yaml(config) == ExportConfig(keep_last=2)
    config.write_text("sglang_export: {keep_last: two}\n")
    with pytest.raises(UsageError, match=r"run\.yaml: sglang_export\.keep_last"):
        ExportConfig.from_yaml(config)


@pytest.mark.parametrize(
    "name",
    [
        "sglang-export",
        "sglang_exports",
        "sglangExport",
        "SGLANG_EXPORT",
        "sglang export",
        "sglng_export",
        "sglang_exporter",
        "export_sglang",
        "eagle3_export",
        "sgl_export",
    ],
)
@pytest.mark.parametrize(
    "place", ["{name}: {{}}", "train: {{{name}: {{}}}}", "train: {{trainer: {{{name}: {{}}}}}}"]
)
def test_a_block_of_nearly_our_name_is_refused(tmp_path: Path, name: str, place: str) -> None:
    config = tmp_path / "run.yaml"
    config.write_text(place.format(name=name))
    with pytest.raises(
        UsageError, match="Call the block sglang_export: and write it at the top level"
    ) as caught:
        read_export_block(config)
    assert f"{name}:" in caught.value.what


@pytest.mark.parametrize("place", ["train: {sglang_export: {}}", "train: {draft: {sglang_export: false}}"])
def test_our_block_inside_of_speculators_is_refused(tmp_path: Path, place: str) -> None:
    (tmp_path / "run.yaml").write_text(place)
    with pytest.raises(UsageError, match="write it at the top level"):
        read_export_block(tmp_path / "run.yaml")


def test_other_names_are_others(tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(
        "datagen: {}\nexport: {}\nwandb: {}\ntrain: {trainer: {save_path: sglang_export}, draft: 3, x: []}\n"
    )
    assert read_export_block(tmp_path / "run.yaml") is None


@pytest.mark.slow
@pytest.mark.training
def test_speculators_own_keys_are_none_of_ours() -> None:
    """All that its configs may hold, from the trainer's own model of them."""
    from speculators.train.config import TrainConfig

    names = {*TrainConfig.model_fields}
    for field in TrainConfig.model_fields.values():
        names |= set(getattr(field.annotation, "model_fields", {}))
    assert len(names) > 50
    assert [name for name in names if is_nearly_our_name(name)] == []


def test_a_pipe_is_refused(tmp_path: Path) -> None:
    """speculators reads the file again, and a pipe would be empty then: it would train with its defaults."""
    os.mkfifo(tmp_path / "run.yaml")
    with pytest.raises(UsageError, match="it is not a regular file"):
        read_export_block(tmp_path / "run.yaml")


@pytest.mark.parametrize(
    "content",
    [
        "- a\n- b\n",
        "a: [",
        "\x00",
        "!!python/object:os.system {}",
        "[" * 5000,
        *(f"train: {{run: {v}}}" for v in CONVERSIONS),
    ],
)
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
